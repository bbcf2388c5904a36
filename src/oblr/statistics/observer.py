"""Look on while anybody's loop computes its loss and its gradient, and say what each sequence had in it.

A forward hook puts an identity behind each layer that owns trained parameters. In the backward pass the identity is
handed the gradient of the layer's output, of which, with the layer's input, :mod:`oblr.gradnorm` finds norms without
any gradient. What the loop computes stays the same to the bit.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from oblr.errors import UnmeasuredError
from oblr.gradnorm import kinds
from oblr.gradnorm.loaded import is_sharded, loaded
from oblr.gradnorm.precision import no_autocast
from oblr.statistics.gathered import Gathered, Gradient, record
from oblr.statistics.log import StepRecord
from oblr.statistics.passes import Pass

Hand = Callable[[Tensor, Tensor], None]


class _Handed(torch.autograd.Function):
    """A layer's output as it is, whose gradient is handed on together with the layer's input."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, hand: Hand) -> Tensor:
        ctx.save_for_backward(x)  # as the layer itself does; where it is computed again, this one is too
        ctx.hand = hand
        ctx.mark_dirty(y)  # the tensor itself and no view of it, which nobody could change in place
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        with torch.no_grad(), no_autocast(gy):
            ctx.hand(x.detach(), gy)  # whoever kept x itself would keep the graph, and with it itself
        return gy, None, None


class GradientStatistics:
    """Statistics of the gradient that a loop makes with ``loss.backward()``, sequence by sequence.

    ::

        statistics = GradientStatistics(model)
        ...
        loss.backward()
        found = statistics.step(groups=prompts, reward=rewards)
        optimizer.step()

    The loss is any sum of losses of sequences; a sequence's part ``g_i`` in the gradient is that of its own loss.
    ``‖g_i‖²`` is exact. That of a prompt's responses together is exact with ``group_size``; else it and alignments are
    estimated without bias from random projections, however a prompt's responses are spread over forward passes and
    ranks.

    At each step the projections of what lies in ``.grad`` are compared with the sums of those of all sequences. Where
    they differ, something has gone by unseen, and nothing is said at all.

    Args:
        model: of transformers, bare or in the wrapper of peft or DDP.
        group_size: G, where each forward pass has complete groups of so many consecutive sequences, and norms of
            groups are to be exact. It costs about as much as computing all weight gradients once more.
        sketch: rows and columns that projections of a gradient have; their relative error is ``√(4/sketch)`` of two
            gradients' lengths for one parameter, and less for many.
        seed: of the projections.

    Raises:
        UnmeasuredError: the model is compiled or sharded, or trained parameters are in a layer that cannot be measured.
    """

    def __init__(self, model: nn.Module, group_size: int | None = None, sketch: int = 16, seed: int = 0):
        if any(hasattr(one, "_orig_mod") or one._compiled_call_impl is not None for one in model.modules()):
            raise UnmeasuredError("a compiled model does not call its layers", "do not compile it")
        if any(map(is_sharded, model.parameters())):
            raise UnmeasuredError("the parameters are shards, as FSDP2 has them", "share the model out by DDP")
        self.model, self.group_size, self.sketch, self.seed = model, group_size, sketch, seed
        of_transformers = loaded("transformers.modeling_utils", "PreTrainedModel")
        lm = next((one for one in model.modules() if isinstance(one, of_transformers)), None)
        if lm is None or lm.get_output_embeddings() is None:
            raise UnmeasuredError(f"{type(model).__name__} is no causal language model of transformers", "give one")
        self.lm, self.head, self.embedding = lm, lm.get_output_embeddings(), lm.get_input_embeddings()
        self.tied = self.head.weight is self.embedding.weight
        self.names: dict[Tensor, str] = {p: name.removeprefix("module.") for name, p in model.named_parameters()}
        self.steps = 0
        self.passes: list[Pass] = []
        self.ids: Tensor | None = None
        self.last: Gradient | None = None
        seen = [(module, partial(self._see, hand)) for module, hand in self._layers()]  # before anything is hooked
        self.hooks = [self.embedding.register_forward_pre_hook(self._begin)]
        self.hooks += [module.register_forward_hook(see, with_kwargs=True) for module, see in seen]

    def fused_head(self, temperature: float = 1.0) -> None:
        """The model's output has ``log_probs`` of ``labels``, computed of the head's weight, in place of logits.

        So have TRL's; the hidden states are ``last_hidden_state`` of its base model.

        Args:
            temperature: that logits are divided by.
        """
        hidden: list[Tensor] = []

        def remember(module: nn.Module, args: Any, output: Any) -> None:
            hidden[:] = [output.last_hidden_state]

        def see(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            log_probs, trained = getattr(output, "log_probs", None), self.head.weight.requires_grad
            if trained and log_probs is not None and log_probs.requires_grad:
                name = next(name for name, one in self.lm.named_modules() if one is self.head)
                told = kwargs["labels"][:, 1:], log_probs.detach(), temperature
                hand = partial(self.passes[-1].fused_head, name, self.head, *told)
                output.log_probs = _Handed.apply(log_probs, hidden[0].detach(), hand)
            hidden.clear()

        self.hooks += [
            self.lm.base_model.register_forward_hook(remember),
            self.lm.register_forward_hook(see, with_kwargs=True),
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Look no longer."""
        for hook in self.hooks:
            hook.remove()

    def sequences(self, ids: Tensor | None) -> None:
        """Say which sequence each token of the forward passes from now on is of; until then each row is one.

        Args:
            ids: int64 [R, L], from 0; −1 for tokens of none. Attention must not cross sequences. None: rows again.
        """
        self.ids = ids if ids is None else ids.cpu()

    def step(
        self, groups: Sequence[int] | None = None, learning_rate: float | None = None, **columns: Sequence[Any]
    ) -> StepRecord:
        """What the gradient in ``.grad`` is made of; call it before ``optimizer.step()``, on all ranks.

        Args:
            groups: which prompt each sequence of this rank answers [S], in the order of the forward passes; all ranks
                number prompts alike. None: by ``group_size``, or each sequence is alone.
            learning_rate: of the update, for the record.
            columns: further numbers of each sequence [S], by their names in :class:`~oblr.statistics.log.Response`;
                with ``coefficients`` ``c_i`` of ``g_i = c_i ∇θ log π(o_i|q)``, ``square_norm`` is found of them.

        Raises:
            UnmeasuredError: there was no backward pass, columns are of another number of sequences, or the gradient is
                not the sum of what was seen; on all ranks, where it is so on one.
        """
        passes, self.passes = [one for one in self.passes if one.sketches], []
        if groups is not None and self.group_size is not None:
            raise UnmeasuredError("groups are named, and there is a group_size", "give one of the two")
        gathered = Gathered.of(passes, groups, columns)
        gradient = Gradient.of(self.names, self.sketch, [self._seed(self.steps), self._seed(self.steps + 1)])
        found = record(self.steps + 1, gathered, gradient, self.last, learning_rate)
        self.steps, self.last = self.steps + 1, gradient
        return found

    def _seed(self, step: int) -> str:
        return f"{self.seed} {step}"

    def _begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if torch.is_grad_enabled():
            seed = self._seed(self.steps)
            self.passes.append(Pass(args[0], self.ids, self.group_size, self.names, self.sketch, seed))

    def _see(self, hand: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], y: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and y.requires_grad):
            return y
        if not self.passes:
            raise UnmeasuredError("the model is given embeddings in place of tokens", "give it input_ids")
        if y.dtype == torch.float16:
            raise UnmeasuredError("gradients in float16 are scaled by whoever scales the loss", "use bfloat16")
        inputs = [*args, *kwargs.values()]
        if len(inputs) > 1:
            name = next(name for name, one in self.model.named_modules() if one is module)
            problem = f"layer {name!r} is given {len(inputs)} inputs: whose gradient its own is of, is not known"
            raise UnmeasuredError(problem, "freeze it, or use another model")
        return _Handed.apply(y, *inputs, partial(hand, self.passes[-1]))

    def _layers(self) -> Iterator[tuple[nn.Module, Callable[[Pass, Tensor, Tensor], None]]]:
        """Those that own trained parameters, and what is done with their inputs and their outputs' gradients."""
        owners: dict[Tensor, str] = {}
        for name, module in self.model.named_modules():
            trained = [p for p in module.parameters(recurse=False) if p.requires_grad]
            for p in trained:
                first = owners.setdefault(p, name)
                if first != name and not (self.tied and module in (self.head, self.embedding)):
                    problem = f"layers {first!r} and {name!r} share a parameter: the norm of its gradient is not known"
                    raise UnmeasuredError(problem, "freeze it, or use a model whose layers have their own")
            if trained:
                yield module, self._hand_of(name.removeprefix("module."), module)

    def _hand_of(self, name: str, module: nn.Module) -> Callable[[Pass, Tensor, Tensor], None]:
        head = module is self.head
        if kinds.is_linear(module) or kinds.is_transposed(module):
            return lambda seen, x, gy: seen.linear(name, module, x, gy, head, head and self.tied)
        if isinstance(module, nn.Embedding) and kinds.lookup_scale(module, module.forward) is not None:
            return lambda seen, x, gy: seen.embedding(name, module, x, gy, module is self.embedding)
        if kinds.rms_norm_epsilon(module) is not None or kinds.is_scale(module, module.forward):
            return lambda seen, x, gy: seen.scale(name, module, x, gy)
        problem = f"layer {name!r} ({type(module).__name__}) owns trained parameters whose gradient norm is not known"
        raise UnmeasuredError(problem, "freeze it, or use layers of transformers without fused kernels")
