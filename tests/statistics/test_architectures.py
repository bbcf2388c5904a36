"""Models that others have written: each is measured as autograd has it, one sequence at a time, or refused by name."""

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from oblr.errors import UnmeasuredError
from oblr.statistics.observer import GradientStatistics

#: By all names that configurations of transformers have for it.
SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "attention_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **{"num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64, "rotary_dim": 4},
    **{"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
MEASURED = (
    *("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "gpt_neox", "gptj"),
    *("bloom", "stablelm", "olmo", "olmo2", "olmo3", "granite", "cohere", "cohere2", "starcoder2", "smollm3"),
    *("nemotron", "glm", "glm4", "persimmon", "codegen", "mpt", "xglm", "exaone4", "helium", "lfm2", "seed_oss"),
)
REFUSED = {
    "gpt2": r"wpe' \(Embedding\) is given \[1, 7\]: .*position_ids",
    "opt": "embed_positions' .* is not known",
    "biogpt": "embed_positions' .* is not known",
    "falcon": r"\(FalconLinear\)",
    "mixtral": r"\(MixtralTopKRouter\)",
    "qwen3_moe": r"\(Qwen3MoeExperts\)",
    "mamba": r"\(MambaMixer\)",
    "apertus": r"\(XIELUActivation\)",
}


def tiny(kind):
    own = CONFIG_MAPPING[kind]
    known = {*own().to_dict(), *own.attribute_map}
    config = own(**{name: value for name, value in SMALL.items() if name in known})
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()


def ids(seed=0):
    return torch.randint(3, 60, (3, 7), generator=torch.Generator().manual_seed(seed))


def backward(lm, rows, **inputs):
    logits = lm(input_ids=rows, use_cache=False, **inputs).logits[:, :-1].float()
    logits.log_softmax(-1).gather(2, rows[:, 1:, None]).sum().backward()


def check(lm, **inputs):
    expected = []
    for i, row in enumerate(ids()):
        backward(lm, row[None], **{name: value[i : i + 1] for name, value in inputs.items()})
        expected.append(sum(p.grad.double().square().sum().item() for p in lm.parameters() if p.grad is not None))
        lm.zero_grad()
    with GradientStatistics(lm) as statistics:
        backward(lm, ids(), **inputs)
        found = statistics.step()
    assert [one.gradient_square for one in found.responses] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", MEASURED)
def test_norms_are_autograds(kind):
    check(tiny(kind))


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_measured_is_refused_by_name(kind):
    with pytest.raises(UnmeasuredError, match=REFUSED[kind]):
        check(tiny(kind))


def test_positions_of_all_tokens_make_a_table_of_positions_measurable():
    check(tiny("gpt2"), position_ids=torch.arange(7).expand(3, 7))
