"""A tokenizer that no policy here has."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

BEGIN, END, TURN = "<s>", "</s>", "<|turn|>"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}" + TURN + "{{ m.role }}\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}" + TURN + "assistant\n{% if enable_thinking is false %}<think></think>{% endif %}"
    "{% endif %}"
)


def byte_tokenizer(folder, begins=True, ends=False, chat=TEMPLATE):
    """One token a byte; as Llama's, it begins a text with a token of its own, and may end it with one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens([BEGIN, END, TURN])
    whole = " ".join([BEGIN] * begins + ["$A"] + [END] * ends)
    core.post_processor = processors.TemplateProcessing(
        single=whole, special_tokens=[(token, core.token_to_id(token)) for token in (BEGIN, END)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token=BEGIN, eos_token=END)
    tokenizer.chat_template = chat
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)
