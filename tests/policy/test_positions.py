"""A sequence is worth the same whatever is packed beside it, on either side of every length that a model knows."""

import random

import pytest
import torch
from cases import wide
from conftest import make_rollouts, tiny_model
from transformers import GPTNeoConfig, GPTNeoForCausalLM, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from models import compare, sequences
from oblr.batch.packing import pack
from oblr.errors import SettingError
from oblr.policy.model import PolicyModel
from oblr.policy.positions import check_lengths
from oblr.policy.selfcheck import check

SWITCH, CONTEXT, WINDOW = 32, 64, 20
ORIGINAL = {"factor": 2.0, "original_max_position_embeddings": SWITCH}
ROPES = {
    "default": {},
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 4.0},
    "yarn": ORIGINAL,
    "longrope": {"short_factor": [1.0] * 6, "long_factor": [2.0, 3.0, 4.0, 5.0, 6.0, 7.0], **ORIGINAL},
    "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL},
    "proportional": {"partial_rotary_factor": 0.5},
}
#: The length from which each gives other frequencies to all that is packed together.
SWITCHES = {"longrope": SWITCH, "dynamic": CONTEXT}


def model(kind, window=None):
    rope = {"rope_type": kind, "rope_theta": 100.0, **ROPES[kind]}
    layers = ["sliding_attention" if window else "full_attention", "full_attention"]
    shape = {"rope_parameters": rope, "max_position_embeddings": CONTEXT, "head_dim": 12, "sliding_window": window}
    return tiny_model(tied=True, layer_types=layers, use_sliding_window=bool(window), **shape)


def random_lengths(seed, longest):
    """Six sequences, of which one is the longest that there may be."""
    draw = random.Random(seed)
    sizes = [longest, *(draw.randint(2, longest) for _ in range(5))]
    draw.shuffle(sizes)
    prompts = [draw.randint(1, size - 1) for size in sizes]
    return sequences([(prompt, size - prompt) for prompt, size in zip(prompts, sizes, strict=True)])


def test_every_rope_type_of_transformers_is_tried():
    assert ROPES.keys() == {"default", *ROPE_INIT_FUNCTIONS}


@pytest.mark.parametrize("longest", [SWITCH, SWITCH + 1, *wide(CONTEXT, CONTEXT + 1)])
@pytest.mark.parametrize("kind", ROPES)
def test_a_rope_is_right_for_each_sequence_or_refused(kind, longest):
    policy_model = PolicyModel(model(kind, WINDOW), 0.8)
    allowed = longest <= SWITCHES.get(kind, longest)
    config = Qwen3Config(max_position_embeddings=2 * CONTEXT, rope_parameters=policy_model.lm.config.rope_parameters)
    if kind != "dynamic":  # whose switch is the context
        assert_refused(lambda: check_lengths(config, longest), not allowed, rf"^rollout\.max_model_len: .*{kind}")
    assert_refused(lambda: check(policy_model, torch.float32, longest), not allowed, "once a sequence of")
    if allowed:
        for seed in range(2):
            error, right = compare(policy_model, random_lengths(seed, longest))
            assert right, error


def assert_refused(action, refused, match):
    if not refused:
        return action()
    with pytest.raises(SettingError, match=match):
        action()


@pytest.mark.parametrize("kind", SWITCHES)
def test_what_nobody_bounds_is_refused(kind):
    with pytest.raises(SettingError, match=r"^policy\.path: .* once a sequence of \d+ tokens"):
        check(PolicyModel(model(kind), 1.0), torch.float32)


@pytest.mark.parametrize("seed", range(20))
def test_no_position_is_beyond_those_of_the_longest_sequence(seed):
    draw = random.Random(seed)
    rollouts = make_rollouts([draw.randint(1, draw.choice((5, 60))) for _ in range(draw.randint(1, 30))], seed=seed)
    packed, most = pack(rollouts), max(rollout.n_tokens for rollout in rollouts)
    assert packed.position_ids.max() == most - 1
    bound = draw.randint(1, 3 * most)
    bounded = pack(rollouts, bound)
    assert bounded.input_ids.shape[1] <= max(bound, most)
    assert sorted(bounded.segments.sizes) == sorted(rollout.n_tokens for rollout in rollouts)


def test_a_mask_that_is_a_table_bounds_the_rows():
    shape = {"vocab_size": 97, "hidden_size": 48, "num_layers": 2, "num_heads": 4, "max_position_embeddings": CONTEXT}
    torch.manual_seed(0)
    kinds = {"attention_types": [[["global", "local"], 1]], "window_size": WINDOW, "bos_token_id": 1, "eos_token_id": 2}
    policy_model = PolicyModel(GPTNeoForCausalLM(GPTNeoConfig(**kinds, **shape)), 0.8)
    with pytest.raises(SettingError, match=f"rows of more than its {CONTEXT} positions"):
        check(policy_model, torch.float32)
    check(policy_model, torch.float32, CONTEXT, policy_model.longest_row)
    assert policy_model.longest_row == CONTEXT
    rollouts = random_lengths(0, CONTEXT)
    assert pack(rollouts).input_ids.shape[1] > CONTEXT
    error, right = compare(policy_model, rollouts)
    assert right, error


def wrong_window(lm, beyond):
    """In longer rows each token sees one more than the window."""
    forward = lm.model.forward

    def wrong(input_ids, **others):
        width = lm.config.sliding_window
        lm.config.sliding_window += input_ids.shape[1] > beyond
        try:
            return forward(input_ids=input_ids, **others)
        finally:
            lm.config.sliding_window = width

    lm.model.forward = wrong


def test_windows_longer_than_the_probes_are_looked_at():
    lm = model("default", window=48)
    policy_model = PolicyModel(lm, 1.0)
    check(policy_model, torch.float32)
    assert lm.config.sliding_window == lm.model.layers[0].self_attn.sliding_window == 48
    wrong_window(lm, beyond=26)
    with pytest.raises(SettingError, match="computes something else"):
        check(policy_model, torch.float32)
    check(policy_model, torch.float32, longest=48)  # no sequence is longer than the window: it is not there
