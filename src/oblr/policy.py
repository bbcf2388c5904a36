"""The policy and its one step: arXiv 2511.23310 from rollouts to update."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor
from torch.distributed.tensor import DTensor

from oblr.baselines.base import Baseline, Groups, live_groups
from oblr.checkpoint import on_every_rank
from oblr.errors import SettingError, StaleEngineError
from oblr.gradnorm.measure import GradNorms, SequenceScores
from oblr.losses.base import Loss
from oblr.losses.kl import KLPenalty
from oblr.model import TokenScorer, load_model, load_sharded
from oblr.packing import PackedBatch, cut, pack, plan
from oblr.randomness import random_state, set_random_state
from oblr.reference import Reference
from oblr.schedules.base import Schedule
from oblr.timing import Stopwatch
from oblr.types import Moments, RolloutBatch, StepReport

NAN = float("nan")
#: For baselines that use no weights, and for looking on.
UNIFORM, EXACT = GradNorms("uniform"), GradNorms("exact", "two")


class PolicyModule(L.LightningModule):
    """A causal LM trained by policy gradient with manual optimization; a Lightning epoch is one RL step.

    Args:
        path: Hugging Face model folder or hub id.
        dtype: "float32" or "bfloat16".
        gradnorm: finds the weights of the baseline, and the gradient.
        baseline: turns rewards and those weights into advantages.
        loss: turns advantages into the coefficients of the scores.
        schedule: turns the moments of the gradient into the learning rate.
        optimizer: constructor, given the parameters.
        temperature: of the behaviour policy.
        token_budget: most tokens in a micro-batch of several sequences. A group that has more is spread over several.
        logprob_gap_bound: largest tolerated |log π − log μ| of a token right after a sync, in nats.
        kl: penalty towards the policy as it is before training, if any.
        updates_per_batch: how often a batch is used; from the second time on the rollouts are stale.
        activation_checkpointing: keep what enters each block, and compute the rest again in the backward pass.
        cpu_offload: where sharded, keep weights, gradients and optimizer state in host memory.

    Raises:
        SettingError: no update.
    """

    def __init__(
        self,
        path: str,
        dtype: str,
        gradnorm: GradNorms,
        baseline: Baseline,
        loss: Loss,
        schedule: Schedule,
        optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
        temperature: float,
        token_budget: int,
        logprob_gap_bound: float,
        kl: KLPenalty | None = None,
        updates_per_batch: int = 1,
        activation_checkpointing: bool = False,
        cpu_offload: bool = False,
    ):
        super().__init__()
        self.automatic_optimization = False
        self.path, self.dtype_name = path, dtype
        self.baseline, self.loss, self.schedule, self.make_optimizer = baseline, loss, schedule, optimizer
        self.gradnorm, self.temperature, self.token_budget = gradnorm, temperature, token_budget
        if updates_per_batch < 1:
            raise SettingError("policy.updates_per_batch", f"{updates_per_batch} is not a count", "use at least 1")
        self.kl, self.updates_per_batch, self.logprob_gap_bound = kl, updates_per_batch, logprob_gap_bound
        self.penalises_tokens = kl is not None and not kl.shapes_reward
        self.activation_checkpointing, self.cpu_offload = activation_checkpointing, cpu_offload
        #: whether the tokens of a response have coefficients of their own
        self.per_token = baseline.per_token or (loss.per_token and loss.signed) or self.penalises_tokens
        self.reference: Reference | None = None
        self.clock = Stopwatch()

    def configure_model(self) -> None:
        if not hasattr(self, "scorer"):
            self.scorer = self.load()
            if self.activation_checkpointing:
                self.scorer.lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            if self.kl is not None:
                self.reference = Reference(self.load(), self.kl)

    def load(self) -> TokenScorer:
        """The model at ``path``, on this rank's device, and sharded where the strategy shards."""
        if self.device_mesh is None:
            scorer = TokenScorer(load_model(self.path, self.dtype_name), self.temperature)
            return scorer.to(self.trainer.strategy.root_device)
        mesh = self.device_mesh["data_parallel"]
        return load_sharded(self.path, self.dtype_name, self.temperature, mesh, self.compute_dtype, self.cpu_offload)

    @property
    def compute_dtype(self) -> torch.dtype | None:
        """What weights are rounded to before they are used, if they are."""
        return torch.bfloat16 if self.trainer.precision == "bf16-mixed" else None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.make_optimizer(self.parameters())

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """What an engine needs to become this policy."""
        return self.scorer.weights(self.compute_dtype)

    def transfer_batch_to_device(self, batch: RolloutBatch, device: torch.device, dataloader_idx: int) -> RolloutBatch:
        return batch  # token lists; each micro-batch moves when it is packed

    # --- the step ---------------------------------------------------------------------------------------------------

    def training_step(self, batch: RolloutBatch, _: int) -> dict[str, StepReport]:
        with self.clock.phase("check"):
            gap = self.check_engine(batch)
        with self.clock.phase("update"):
            rewards = self.shaped_rewards(batch)
            reports = [self.update(batch, rewards, gap, fresh=k == 0) for k in range(self.updates_per_batch)]
            self.learn(reports[0])  # after all updates: none may use a baseline that has seen its own batch
        self.log_step(reports[-1])
        return {"report": reports[-1]}

    def update(self, batch: RolloutBatch, rewards: Tensor, gap: float, fresh: bool) -> StepReport:
        group_size = batch.group_size
        norms, weights, ratios = (torch.full(batch.rewards.shape, NAN, dtype=torch.float64) for _ in range(3))
        advantages, group_squares = torch.zeros_like(batch.rewards), torch.zeros(batch.n_groups, dtype=torch.float64)
        entropies: list[Tensor] = []
        step = Groups(rewards, weights, batch.lengths, self.gather(rewards), batch.greedy_rewards)
        live = self.baseline.live(step) | self.penalises_tokens
        optimizer = cast(LightningOptimizer, self.optimizers())
        optimizer.zero_grad()
        self.gradnorm.choose_passes(self.scorer.lm, self.token_budget, self.least)

        tier = self.gradnorm if self.baseline.needs_norms else UNIFORM
        for groups, parts in self.micro_batches(batch, live):
            with self.score(tier, parts, group_size) as scores:
                tokens = scores.tokens
                ratios[groups] = tokens.sequence_logs.exp().view(-1, group_size).cpu()  # ρ_i
                norms[groups] = scores.weights.view(-1, group_size).cpu()  # n_i
                weights[groups] = self.loss.weights(tokens, scores.weights).view(-1, group_size).cpu()  # ρ_i² n_i
                own = step.of(groups, tokens)
                advantage = self.baseline(own).flatten().to(self.device)  # R_i − b_i
                coefficients = self.loss.coefficients(tokens, advantage, self.per_token)  # ρ_i (R_i − b_i) / G
                if self.reference is not None and self.penalises_tokens:
                    coefficients -= self.reference.token_coefficients(parts, tokens) / group_size
                # .grad −= Σ_q g_q, and ‖g_q‖²
                group_squares[groups] = scores.backward(-coefficients).cpu()
                if fresh:
                    self.baseline.study(own)
            advantages[groups] = tokens.means(advantage).view(-1, group_size).to(advantages)
            entropies.append(scores.entropy)

        moments = self.moments(group_squares)
        lr = self.schedule(moments, self.current_epoch)  # η_t
        if moments.square_mean > 0:
            for parameter_group in optimizer.param_groups:
                parameter_group["lr"] = lr
            optimizer.step()
        norms[~live if tier.measures else ...] = NAN
        weights[~live] = ratios[~live] = NAN  # a rank may have filled up with dead groups: nobody is to learn from them
        entropy = torch.cat(entropies).mean().item() if entropies else NAN
        return StepReport(batch, rewards, live, norms, weights, advantages, ratios, entropy, gap, moments, lr)

    # --- its parts --------------------------------------------------------------------------------------------------

    def check_engine(self, batch: RolloutBatch, sequences: int = 8) -> float:
        """Largest |log π − log μ| of a token in the first responses: the engine must have this policy's weights."""
        packed = pack(batch.rollouts[:sequences]).to(self.device)
        with torch.no_grad():
            logprobs = self.scorer(packed).logprobs
        gap = self.reduce((logprobs - packed.behaviour_logprobs).abs().max(), "max").item()
        if not gap <= self.logprob_gap_bound:
            raise StaleEngineError(
                f"the rollout engine is stale: after sync {batch.weight_version} its log-probabilities differ from the "
                f"policy's by up to {gap:.3g}, more than policy.logprob_gap_bound={self.logprob_gap_bound:g}"
            )
        return gap

    def score(self, tier: GradNorms, parts: list[PackedBatch], size: int) -> AbstractContextManager[SequenceScores]:
        """Groups of ``size`` responses, see :meth:`GradNorms.score`."""
        factors = self.loss.factors if self.loss.per_token else None
        return tier.score(self.scorer, self.scorer.lm, parts, size, self.current_epoch, factors, self.per_token)

    def shaped_rewards(self, batch: RolloutBatch) -> Tensor:
        """``R_i``, or ``R_i − β log μ(o_i|q)/ref(o_i|q)``, float32 [N, G]."""
        if self.reference is None or self.penalises_tokens:
            return batch.rewards
        rewards = batch.rewards.clone()
        for groups, parts in self.micro_batches(batch, torch.ones(batch.n_groups, dtype=torch.bool)):
            penalties = self.reference.reward_penalties(parts).view(-1, batch.group_size)
            rewards[groups] = batch.rewards[groups] - penalties.to(rewards)
        return rewards

    def learn(self, report: StepReport) -> None:
        """Let the baseline see a step of all ranks, as far as weights are known."""
        rewards, weights, lengths = map(self.gather, (report.rewards, report.weights, report.batch.lengths))
        everything = Groups(rewards, weights, lengths, rewards)
        known = everything.weights.isfinite().all(1)
        if known.any():
            self.baseline.learn(everything.of(known), self.reduce)

    def micro_batches(self, batch: RolloutBatch, live: Tensor) -> Iterator[tuple[Tensor, list[PackedBatch]]]:
        """The live groups as :func:`oblr.packing.plan` has them: their indices and their packed sequences."""

        def agree(counts: list[int]) -> list[int]:
            return self.reduce(torch.tensor(counts, device=self.device), "max").tolist()

        sizes = [[rollout.n_tokens for rollout in batch.group(q)] for q in range(batch.n_groups)]
        for groups, n_parts in plan(sizes, live.tolist(), self.token_budget, agree):
            rollouts = [rollout for q in groups for rollout in batch.group(q)]
            yield torch.tensor(groups), [pack(part).to(self.device) for part in cut(rollouts, n_parts)]

    def live_square_norms(self, batch: RolloutBatch) -> Tensor:
        """``n_i`` of the live groups, float64 [N, G], NaN elsewhere; for baselines that do without them."""
        norms = torch.full(batch.rewards.shape, NAN, dtype=torch.float64)
        for groups, parts in self.micro_batches(batch, live_groups(batch.rewards)):
            with EXACT.score(self.scorer, self.scorer.lm, parts, batch.group_size) as scores:
                norms[groups] = scores.weights.view(-1, batch.group_size).cpu()
        return norms

    def moments(self, group_squares: Tensor) -> Moments:
        """Turn ``.grad`` from ``Σ_q g_q`` into ``ĝ = (1/N) Σ_q g_q``, over all ranks, and measure M1 and M2."""
        n_groups = len(group_squares) * self.trainer.world_size
        mean_square = torch.zeros((), dtype=torch.float64, device=self.device)
        for p in self.parameters():
            if p.grad is None:
                continue
            if isinstance(p.grad, DTensor):  # FSDP2 has averaged over the ranks
                p.grad.mul_(self.trainer.world_size / n_groups)
                mean_square += self.reduce(_square_norm(p.grad.to_local()).to(self.device))
            else:
                p.grad.copy_(self.reduce(p.grad) / n_groups)
                mean_square += _square_norm(p.grad)
        square_mean = self.reduce(group_squares.sum().to(self.device)) / n_groups
        return Moments(n_groups, mean_square.item(), square_mean.item())

    def reduce(self, tensor: Tensor, operation: str = "sum") -> Tensor:
        """``tensor`` summed (or maximised) over the ranks."""
        return self.trainer.strategy.reduce(tensor, reduce_op=operation)

    def greatest(self, number: float) -> float:
        """The largest ``number`` of all ranks."""
        return self.reduce(torch.tensor(number, dtype=torch.float64, device=self.device), "max").item()

    def least(self, number: float) -> float:
        """The smallest ``number`` of all ranks."""
        return -self.greatest(-number)

    def gather(self, tensor: Tensor) -> Tensor:
        """Rows of all ranks, rank after rank, on the CPU."""
        if self.trainer.world_size == 1:
            return tensor
        return cast(Tensor, self.all_gather(tensor.to(self.device))).flatten(0, 1).cpu()

    def log_step(self, report: StepReport) -> None:
        self.log_dict(
            {
                "train/reward": report.batch.rewards.mean(),
                "train/live_groups": report.live.float().mean(),
                "train/entropy": report.entropy,
                "train/lr": report.lr,
                "rollout/logprob_gap_max": report.logprob_gap,
                "rollout/length": report.batch.lengths.float().mean(),
            },
            sync_dist=True,
        )

    # --- what a checkpoint keeps besides the weights ----------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["oblr"] = {
            "schedule": self.schedule.state_dict(),
            "baseline": self.baseline.state_dict(),
            "random": on_every_rank(random_state),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.schedule.load_state_dict(checkpoint["oblr"]["schedule"])
        self.baseline.load_state_dict(checkpoint["oblr"]["baseline"])
        states = checkpoint["oblr"]["random"]
        if self.global_rank < len(states):  # a rank that was not there goes on as it was seeded
            set_random_state(states[self.global_rank])


def _square_norm(x: Tensor) -> Tensor:
    """Float64 [], without a float64 copy of ``x``: rows are summed in float32."""
    return torch.linalg.vector_norm(x, dim=-1).double().square().sum()
