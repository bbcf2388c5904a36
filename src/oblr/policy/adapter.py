"""Low-rank adapters, which are trained in place of the weights: LoRA, arXiv 2106.09685, by peft.

A linear layer of weight W becomes ``W + (α/r) B A``, with A [r, d_in] and B [d_out, r]; W is frozen, and so is whatever
has no adapter. A and B are linear layers without bias to :mod:`oblr.gradnorm.capture`, so that norms and moments are
those of the adapters alone. Nothing wraps the model: it keeps its type, and its head, and all names but those of the
frozen weights, which :func:`frozen` gives back.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast
from warnings import catch_warnings

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from oblr.errors import SettingError
from oblr.kinds import Few, Positive, Seed
from oblr.run.randomness import derived_seed

#: peft's name for the only adapter, and where it puts the layer that it adapts.
ADAPTER, BASE = "default", "base_layer"


@dataclass(frozen=True)
class LoRA:
    """Which layers have adapters, and of what size.

    Args:
        rank: r, of the product that is added to a layer's weights.
        alpha: α: the product is multiplied by α/r.
        targets: names of the linear layers that have adapters, as they end; ``all-linear``: all but the head.
        seed: of A, the adapters' first values; B begins as zero.
    """

    rank: Few
    alpha: Positive
    targets: Literal["all-linear"] | Sequence[str]
    seed: Seed

    def attach(self, lm: PreTrainedModel, mixed: bool = False) -> None:
        """Freeze ``lm`` and give it float32 adapters, which on a real device have their first values.

        Args:
            mixed: whether autocast says what the adapters' products are computed in; otherwise float32.

        Raises:
            SettingError: the targets are not linear layers of the model, or its head is among them.
        """
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.lora import Linear

        targets = self.targets if isinstance(self.targets, str) else list(self.targets)
        config = LoraConfig(r=self.rank, lora_alpha=self.alpha, target_modules=targets, task_type="CAUSAL_LM")  # type: ignore[arg-type]
        linear = {name for name, module in lm.named_modules() if type(module).forward is nn.Linear.forward}
        head = lm.get_output_embeddings()
        try:
            with catch_warnings(action="ignore"):  # of a tied head, which ends the run below
                inject_adapter_in_model(config, lm, ADAPTER, low_cpu_mem_usage=True)
        except ValueError as error:
            raise _unfit(targets, str(error).split(". ")[0]) from error
        if lm.get_output_embeddings() is not head:
            raise _unfit(targets, "the head is among them, which may be the embedding too")
        for name, layer in adapted(lm).items():
            if name not in linear or not isinstance(layer, Linear):
                raise _unfit(targets, f"{name} is no plain linear layer")
            layer.cast_input_dtype_enabled = not mixed
            frozen_weight = cast(Tensor, layer.get_base_layer().weight)
            for factor in cast(list[nn.Linear], [layer.lora_A[ADAPTER], layer.lora_B[ADAPTER]]):
                factor.weight = nn.Parameter(frozen_weight.new_empty(factor.weight.shape, dtype=torch.float32))
        if not lm.get_input_embeddings().weight.is_meta:
            self.initialise(lm)

    @torch.no_grad()
    def initialise(self, lm: nn.Module) -> None:
        """First values, as peft has them: A uniform within ``1/√d_in``, B zero; the same however they are sharded."""
        for name, layer in adapted(lm).items():
            a, b = factors(layer)
            generator = torch.Generator().manual_seed(derived_seed("lora", self.seed, name))
            _fill(a, nn.init.kaiming_uniform_(torch.empty(a.shape), a=math.sqrt(5), generator=generator))
            _fill(b, torch.zeros(b.shape))


def _unfit(targets: object, fault: str) -> SettingError:
    return SettingError("policy.lora.targets", f"{targets}: {fault}", "name linear layers of the policy, or all-linear")


def _fill(p: Tensor, values: Tensor) -> None:
    if isinstance(p, DTensor):
        there = values.to(p.device_mesh.device_type)
        values = distribute_tensor(there, p.device_mesh, p.placements, src_data_rank=None).to_local()
        p = p.to_local()
    p.copy_(values)


def adapted(lm: nn.Module) -> dict[str, Any]:
    """The layers that have adapters, by name; none where the model is trained itself."""
    return {name: module for name, module in lm.named_modules() if hasattr(module, "lora_A")}


def factors(layer: Any) -> tuple[nn.Parameter, nn.Parameter]:
    """A [r, d_in] and B [d_out, r]."""
    return layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight


def adapters(lm: nn.Module) -> dict[str, nn.Parameter]:
    """All A and B, by their names in ``lm``."""
    own = {id(factor) for layer in adapted(lm).values() for factor in factors(layer)}
    return {name: p for name, p in lm.named_parameters() if id(p) in own}


def frozen(lm: nn.Module) -> Iterator[tuple[str, nn.Parameter, Any]]:
    """Name in the base model's checkpoint, parameter, and the layer whose adapter is to be added to it or None.

    Of a model without adapters all parameters.
    """
    bases, own = {id(layer.base_layer.weight): layer for layer in adapted(lm).values()}, adapters(lm)
    for name, p in lm.named_parameters():
        if name not in own:
            yield name.replace(f".{BASE}.", "."), p, bases.get(id(p))


def merged(layer: Any, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``W + (α/r) B A`` of a layer, float32 [d_out, d_in], of its whole weights."""
    return torch.addmm(weight.float(), b, a, alpha=layer.scaling[ADAPTER])


def save(lm: PreTrainedModel, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Write what ``peft.PeftModel.from_pretrained`` loads onto the base model.

    Args:
        weights: of the adapters, whole, by their names in ``lm``.
    """
    config = cast(Any, lm).peft_config[ADAPTER]
    config.base_model_name_or_path = lm.config._name_or_path
    config.save_pretrained(folder)
    named = {f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}": weight for name, weight in weights.items()}
    save_file(named, folder / "adapter_model.safetensors", {"format": "pt"})
