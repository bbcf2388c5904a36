"""The policy's model: a Hugging Face causal LM as the step sees it, sharded and exported."""

import functools
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, cast

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from oblr.batch.packing import PackedBatch
from oblr.batch.types import TokenStatistics
from oblr.errors import ExportError, SettingError
from oblr.gradnorm.head import head_statistics, is_plain, needs_slices
from oblr.gradnorm.precision import no_autocast
from oblr.policy.adapter import LoRA, adapters, factors, frozen, merged, save
from oblr.policy.attention import SDPA, VARLEN, boundaries
from oblr.policy.export import write, write_weights
from oblr.policy.fit import check_weights, is_finite, not_finite
from oblr.policy.fused import fuse
from oblr.policy.loading import load_config, reader, without_dropout
from oblr.policy.logits import head_path
from oblr.policy.positions import longest_row
from oblr.run.disk import put
from oblr.run.ranks import of_run


def whole(p: Tensor, dtype: torch.dtype) -> Tensor:
    """A parameter that may be sharded, on the device that the run computes on if it is; without gradient."""
    weight = p.detach()
    if not isinstance(weight, DTensor):
        return weight.to(dtype)
    shard = weight.to_local().to(of_run().device, dtype)  # which may lie in host memory
    mesh, placements = weight.device_mesh, weight.placements
    return DTensor.from_local(shard, mesh, placements, shape=weight.shape, stride=weight.stride()).full_tensor()


def copies(x: DTensor) -> int:
    """How many ranks have the same shard."""
    sizes = zip(x.device_mesh.shape, x.placements, strict=True)
    return math.prod(size for size, placement in sizes if placement.is_replicate())


class PolicyModel(nn.Module):
    """A causal LM as the step sees it: packed sequences in, log-probabilities of the response tokens out.

    Args:
        lm: the model.
        temperature: of the behaviour policy; logits are divided by it.

    Raises:
        SettingError: the model's logits are not made as :class:`~oblr.policy.logits.HeadPath` says.
    """

    def __init__(self, lm: PreTrainedModel, temperature: float):
        super().__init__()
        self.path = head_path(lm)
        self.lm, self.temperature, self.sharded = lm, temperature, False
        #: Whether the head's logits are never held at once, however few they are. A sharded head is gathered for its
        #: slices: by all ranks or by none, whatever targets each of them has.
        self.in_slices = False
        #: Most tokens of a row of packed sequences, if the model has such a bound.
        self.longest_row = longest_row(lm)

    def forward(self, packed: PackedBatch) -> TokenStatistics:
        hidden = self.lm.base_model(
            input_ids=packed.input_ids,
            position_ids=packed.position_ids,
            use_cache=False,
            **boundaries(self.lm.config._attn_implementation, packed),
        ).last_hidden_state
        hidden = hidden.flatten(0, 1).index_select(0, packed.predictors)
        hidden = hidden if self.path.before == 1 else hidden * self.path.before
        head, path = self.lm.get_output_embeddings(), self.path
        if path.cap is None and is_plain(head) and (self.in_slices or needs_slices(head, len(hidden))):
            return head_statistics(head, hidden, packed.targets, self.temperature / path.scale)
        logprobs = path.bend(head(hidden).float()).div_(self.temperature).log_softmax(-1)
        with torch.no_grad(), no_autocast(logprobs):  # without a second array of the logits' size
            probabilities = logprobs.exp()
            entropy = -torch.einsum("nv,nv->n", probabilities, logprobs)
            collision = torch.linalg.vector_norm(probabilities, dim=-1).square()
        logprobs = logprobs.gather(-1, packed.targets[:, None]).squeeze(-1)
        return TokenStatistics(logprobs, entropy, collision, hidden.detach())

    def own(self, ids: Tensor) -> Tensor:
        """Log-probabilities of a sequence's tokens [L] but the first, float32 [L − 1], by the model's own forward.

        Nothing of the step's way is in it: no packing, a mask instead of boundaries, and the logits that it returns.
        """
        attention = self.lm.config._attn_implementation
        if attention == VARLEN:
            self.lm.set_attn_implementation(SDPA)
        try:
            logits = self.lm(ids[None], attention_mask=torch.ones_like(ids)[None], use_cache=False).logits[0, :-1]
        finally:
            if attention == VARLEN:
                self.lm.set_attn_implementation(attention)
        return (logits.float() / self.temperature).log_softmax(-1).gather(-1, ids[1:, None]).squeeze(-1)

    def shard(self, mesh: DeviceMesh, compute_dtype: torch.dtype | None = None, cpu_offload: bool = False) -> None:
        """FSDP2: each transformer block a unit of its own, embedding, last norm and head in the root's.

        Args:
            mesh: of one dimension, over which rows are shared; or of two: copies, and ranks that share one out.
            compute_dtype: of the gathered weights, if another one; gradients are reduced in float32.
            cpu_offload: keep shards, gradients and optimizer state in host memory.

        Raises:
            SettingError: the model has no ``layers``.
        """
        unit = functools.partial(
            fully_shard,
            mesh=mesh,
            mp_policy=MixedPrecisionPolicy(compute_dtype, torch.float32) if compute_dtype else MixedPrecisionPolicy(),
            offload_policy=CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if cpu_offload else OffloadPolicy(),
        )
        blocks = getattr(self.lm.base_model, "layers", None)
        if not isinstance(blocks, nn.ModuleList):
            name = type(self.lm).__name__
            raise SettingError("trainer", f"{name} does not say which are its blocks to shard", "use trainer=ddp")
        for block in blocks:
            unit(block)
        unit(self)
        register_fsdp_forward_method(self, "own")
        self.sharded = self.in_slices = True

    def rest(self) -> None:
        """After a forward pass without a backward: of a sharded policy, have none but its shards.

        FSDP2 leaves the root's weights whole, for a backward pass to come: rounded, and not those of the optimizer.
        """
        if self.sharded:
            cast(FSDPModule, self).reshard()

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Whole weights by their checkpoint names, in ``dtype`` if given; a tied head is not repeated.

        Adapters are part of the weights that they change: that sum is rounded, not its terms.
        One at a time: of a sharded policy no process ever holds more than the largest. Collective where sharded.
        """
        for name, p, layer in frozen(self.lm):
            if layer is None:
                yield name, whole(p, dtype or p.dtype)
            else:
                parts = (whole(part, part.dtype) for part in (p, *factors(layer)))
                yield name, merged(layer, *parts).to(dtype or p.dtype)

    def export(self, tokenizer: PreTrainedTokenizerBase, folder: Path, dtype: torch.dtype | None = None) -> None:
        """Write a folder that transformers and vLLM load. Collective where sharded; only rank 0 holds and writes.

        Raises:
            ExportError: it could not be written; an earlier one is as it was.
        """
        first = of_run().rank == 0
        weights = {name: weight.cpu() for name, weight in self.weights(dtype) if first}
        own = {name: whole(p, p.dtype).cpu() for name, p in adapters(self.lm).items()}
        if not first:
            return
        part = folder.with_name(f"{folder.name}.part")
        try:
            write(self.lm, weights, tokenizer, part)
            if own:
                save(self.lm, own, part / "adapter")
        except Exception as error:  # safetensors and tokenizers have errors of their own for a full disk
            shutil.rmtree(part, ignore_errors=True)
            self._rescue(weights, folder, error)
        put(part, folder)

    def _rescue(self, weights: Mapping[str, Tensor], folder: Path, error: Exception) -> NoReturn:
        """Keep the weights beside ``folder`` where they can be written and something else of it cannot."""
        bare = folder.with_name(f"{folder.name}.weights")
        kept = f"its weights are in {bare}; "
        try:
            write_weights(self.lm, weights, bare)
        except Exception:  # what is wrong with the disk is what the first error says
            shutil.rmtree(bare, ignore_errors=True)
            kept = ""
        raise ExportError(
            f"policy {folder} could not be written: {error} ({kept}mend that, then go on with ckpt_path=last)"
        ) from error


def load_sharded(
    path: str,
    dtype: str,
    temperature: float,
    mesh: DeviceMesh,
    compute_dtype: torch.dtype | None = None,
    cpu_offload: bool = False,
    attention: str = SDPA,
    lora: LoRA | None = None,
) -> PolicyModel:
    """The causal LM at ``path`` under FSDP2; a process reads its own rows of each weight and no others.

    Collective.

    Args:
        path, dtype, attention: see :func:`~oblr.policy.loading.load_model`; ``dtype`` is that of the trained shards.
        temperature: see :class:`PolicyModel`.
        mesh, compute_dtype, cpu_offload: see :meth:`PolicyModel.shard`.
        lora: adapters, if they are what is trained.

    Raises:
        SettingError: the weights are not in safetensors files, or under other names than the model's parameters, do not
            fit its configuration, or are no finite numbers.
    """
    config = load_config(path)
    check_weights(path, config, by_name=True)
    with torch.device("meta"):
        lm = without_dropout(
            AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), attn_implementation=attention)
        )
    if mesh.device_type == "cuda":
        fuse(lm)
    if lora is not None:
        lora.attach(lm, mixed=compute_dtype is not None)
    model = PolicyModel(lm, temperature)
    model.shard(mesh, compute_dtype, cpu_offload)
    lm.to_empty(device="cpu" if cpu_offload else mesh.device_type)
    lm.tie_weights()
    for module in lm.modules():
        if next(module.buffers(recurse=False), None) is not None:  # of rotary embeddings: no file has them
            module.to(mesh.device_type)
            lm._init_weights(module)
    parameters = {name: p for name, p, _ in frozen(lm)}
    dcp.load(parameters, storage_reader=reader(path, parameters))
    spoilt = next((name for name, p in parameters.items() if not is_finite(cast(DTensor, p.detach()).to_local())), "")
    if said := max(of_run().objects(spoilt)):  # a rank has its own rows alone; all end together
        raise not_finite(path, said, "policy.path")
    with suppress(OSError):  # there may be none
        lm.generation_config = GenerationConfig.from_pretrained(path)
    if lora is not None:
        lora.initialise(lm)
    return model.train()
