"""The policy and its one step: arXiv 2511.23310 from rollouts to update."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any, Literal, cast

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor
from torch.distributed.tensor import DTensor

from oblr import kernels
from oblr.baselines.base import Baseline, Groups, all_groups
from oblr.batch.packing import PackedBatch, pack, partition
from oblr.batch.segments import cut
from oblr.batch.types import LogprobGap, Moments, RolloutBatch, StepStatistics
from oblr.errors import SettingError, StaleEngineError
from oblr.gradnorm.measure import GradNorms, Measured
from oblr.gradnorm.precision import rounded_once
from oblr.kinds import Count, Few, Ge, Le, Positive, Precision, Temperature, checked
from oblr.losses.base import Surrogate
from oblr.losses.kl import KLPenalty
from oblr.policy.adapter import LoRA
from oblr.policy.attention import choose_attention
from oblr.policy.fused import fuse
from oblr.policy.judgement import Drops, Refusals
from oblr.policy.loading import checkpoint_blocks, load_config, load_model, weights_digest
from oblr.policy.logged import LogsOnce
from oblr.policy.model import PolicyModel, copies, load_sharded
from oblr.policy.reference import Reference
from oblr.policy.selfcheck import check
from oblr.policy.settled import settle_here
from oblr.policy.statistics import Found, tags
from oblr.run.randomness import random_state, set_random_state
from oblr.run.ranks import of_run, on_every_rank
from oblr.run.timing import Stopwatch
from oblr.schedules.base import Schedule

NAN = float("nan")
#: For baselines that use no norms.
UNIFORM = GradNorms("uniform")
#: Responses of a rank that are compared with the engine's log-probabilities after a sync: at most so many, of together
#: at most so many tokens, but one.
CHECKED, CHECKED_TOKENS = 8, 16_384


@checked("policy")
class PolicyModule(LogsOnce):
    """A causal LM trained by policy gradient with manual optimization; a Lightning epoch is one RL step.

    Args:
        path: Hugging Face model folder or hub id.
        dtype: precision of the weights that are trained.
        gradnorm: finds the norms that the baseline weighs rewards with, and the gradient.
        baseline: what advantages are taken against: turns rewards and those norms into advantages.
        loss: what becomes of importance ratios: turns advantages into the coefficients of the responses'
            gradients.
        schedule: turns the moments of the gradient into the learning rate.
        optimizer: constructor of a torch.optim class, given the parameters, with ``_partial_: true``.
        temperature: of the behaviour policy.
        token_budget: most tokens in a micro-batch of several sequences. A group that has more is spread over several.
            ``auto``: as many as memory allows, in one pass where ``gradnorm.passes`` leaves the choice.
        logprob_gap_mean: largest tolerated mean of |log π − log μ| over the tokens that a rank checks right after a
            sync, in nats.
        logprob_gap_p99: largest tolerated 99 % quantile of the same, in nats.
        max_noise: most that old rollouts may multiply the second moment of the gradients by; with ``rollout.ahead``.
        beyond: what becomes of those that do more: see :class:`~oblr.policy.judgement.Drops`.
        kl: penalty towards the policy as it is before training, if any.
        updates_per_batch: how often a batch is used; from the second time on the rollouts are stale.
        activation_checkpointing: whether what enters a block is kept, and the rest computed again in the backward pass,
            to save memory: of every block; of every n-th from the first on, if n; of none.
        cpu_offload: whether shards of weights, gradients and optimizer state lie in host memory; with trainer=fsdp.
        attention: ``varlen``, flash attention without a mask; ``sdpa``; ``auto``: the former on a GPU in bfloat16.
        adapter: ``lora``: train low-rank adapters alone; ``dtype`` is then that of the frozen weights.
        lora: those adapters.
    """

    def __init__(
        self,
        path: str,
        dtype: Precision,
        gradnorm: GradNorms,
        baseline: Baseline,
        loss: Surrogate,
        schedule: Schedule,
        optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
        temperature: Temperature,
        token_budget: Count | Literal["auto"],
        logprob_gap_mean: Positive,
        logprob_gap_p99: Positive,
        max_noise: Annotated[float, Ge(1), Le(1e9)] | None = None,
        beyond: Literal["drop", "again", "shorten"] = "drop",
        kl: KLPenalty | None = None,
        updates_per_batch: Annotated[int, Ge(1), Le(10_000)] = 1,
        activation_checkpointing: bool | Few = False,
        cpu_offload: bool = False,
        attention: Literal["auto", "varlen", "sdpa"] = "auto",
        adapter: Literal["none", "lora"] = "none",
        lora: LoRA | None = None,
    ):
        super().__init__()
        self.automatic_optimization = False
        self.path, self.dtype_name = path, dtype
        self.baseline, self.loss, self.schedule, self.make_optimizer = baseline, loss, schedule, optimizer
        self.gradnorm, self.temperature = gradnorm, temperature
        if baseline.needs_step_weights:  # of all groups, before any gradient
            if gradnorm.passes == "one":
                problem = "one pass has no weights of the whole step, which this baseline needs before any gradient"
                raise SettingError("gradnorm.passes", problem, "use auto or two")
            gradnorm.passes = "two"
        self.token_budget = cast(int, token_budget)  # once it is settled
        self.attention, self.lora = attention, lora if adapter == "lora" else None
        self.kl, self.updates_per_batch = kl, updates_per_batch
        self.logprob_gap_bounds = {"mean": logprob_gap_mean, "p99": logprob_gap_p99}
        self.penalises_tokens = kl is not None and not kl.shapes_reward
        self.activation_checkpointing, self.cpu_offload = activation_checkpointing, cpu_offload
        #: bytes that an engine has of this rank's device while the policy trains; whoever starts a run says so
        self.beside = 0.0
        #: whether the tokens of a response have coefficients of their own
        self.per_token = baseline.per_token or (loss.per_token and loss.signed) or self.penalises_tokens
        self.reference: Reference | None = None
        self.clock, self.refusals, self.drops = Stopwatch(), Refusals(), Drops(max_noise, beyond)
        #: whoever starts a run says what its checkpoints keep: what tells the policy apart, and the run's configuration
        self.identity, self.run = dict[str, Any](), dict[str, Any]()

    def configure_model(self) -> None:
        if of_run().count != self.trainer.world_size:
            name = type(self.trainer.strategy).__name__
            raise SettingError("trainer.strategy", f"{name} does not say who its ranks are", "use oblr.run.strategies")
        if not hasattr(self, "scorer"):
            self.scorer = self.load(self.lora)  # checkpoints know its parameters by this name
            checkpoint_blocks(self.scorer.lm, int(self.activation_checkpointing))
            if self.kl is not None:
                self.reference = Reference(self.load(), self.kl)

    def load(self, lora: LoRA | None = None) -> PolicyModel:
        """The model at ``path``, on this rank's device, and sharded where the strategy shards; with these adapters."""
        device = self.trainer.strategy.root_device
        chosen = choose_attention(load_config(self.path), device.type == "cuda", self.computed_in)
        attention = chosen if self.attention == "auto" else self.attention
        if self.device_mesh is None:
            lm = load_model(self.path, self.dtype_name, attention)
            if device.type == "cuda":
                fuse(lm)
            if lora is not None:
                lora.attach(lm, mixed=self.compute_dtype is not None)
            return PolicyModel(lm, self.temperature).to(device)
        return load_sharded(
            *(self.path, self.dtype_name, self.temperature, self.device_mesh),
            *(self.compute_dtype, self.cpu_offload, attention, lora),
        )

    @property
    def compute_dtype(self) -> torch.dtype | None:
        """What weights are rounded to before they are used, if they are."""
        return torch.bfloat16 if self.trainer.precision == "bf16-mixed" else None

    @property
    def computed_in(self) -> torch.dtype:
        """Precision of the layers' products."""
        return self.compute_dtype or getattr(torch, self.dtype_name)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.make_optimizer(p for p in self.parameters() if p.requires_grad)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """What an engine needs to become this policy."""
        return self.scorer.weights(self.compute_dtype)

    def transfer_batch_to_device(self, batch: RolloutBatch, device: torch.device, dataloader_idx: int) -> RolloutBatch:
        return batch  # token lists; each micro-batch moves when it is packed

    def on_train_start(self) -> None:
        """A policy that the step would get wrong ends the run here, before an engine has started."""
        with self.clock.phase("self-check"), self.trainer.precision_plugin.train_step_context():
            longest = getattr(getattr(self.trainer, "datamodule", None), "max_model_len", None)
            check(self.scorer, self.computed_in, longest, self.scorer.longest_row)

    # --- the step ---------------------------------------------------------------------------------------------------

    def training_step(self, batch: RolloutBatch, _: int) -> dict[str, StepStatistics]:
        with self.clock.phase("check"):
            gap = self.check_engine(batch)
        with self.clock.phase("update"):
            rewards = self.shaped_rewards(batch)
            updates = [self.update(batch, rewards, gap, fresh=True)]
            while len(updates) < self.updates_per_batch and not updates[-1].refused:
                updates.append(self.update(batch, rewards, gap, fresh=False))
            self.scorer.rest()  # where no group is live, the check was all
            self.learn(updates[0])  # after all updates: none may use a baseline that has seen its own batch
        counts = {"train/refused": self.refusals.count, "train/dropped": self.drops.count}
        self.log_dict(tags(updates[-1]) | {tag: float(count) for tag, count in counts.items()})
        self.trainer.should_stop |= self.refusals.hopeless  # after a checkpoint
        return {"statistics": updates[-1]}

    def on_train_end(self) -> None:
        self.refusals.give_up(self.current_epoch)

    def update(self, batch: RolloutBatch, rewards: Tensor, gap: LogprobGap, fresh: bool) -> StepStatistics:
        ranks, group_size, found = of_run(), batch.group_size, Found(batch)
        greedy = batch.greedy_rewards
        step = Groups(
            rewards, found["reward_weights"], batch.lengths, ranks.gather(rewards), greedy, problems=batch.problems
        )
        live = self.baseline.live(step) | self.penalises_tokens
        found.put(scores=batch.rewards, rewards=rewards, lengths=batch.lengths, finished=batch.finished)
        found.put(live=live, problems=batch.problems)
        taken: list[Tensor] = []
        later: list[tuple[Tensor, ...]] = []
        optimizer = cast(LightningOptimizer, self.optimizers())

        tier = self.gradnorm if self.baseline.needs_norms else UNIFORM
        has_norms, weighed = tier.has_norms, self.baseline.needs_step_weights
        if weighed:
            self.weigh(batch, live, found)
            step, tier = replace(step, step_weights=ranks.gather(found["reward_weights"])), UNIFORM
        for groups, parts in self.micro_batches(batch, live):
            with self.measure(tier, parts, group_size) as measured:
                tokens = measured.tokens
                found.put(  # a micro-batch's one wait for the device
                    groups,
                    log_ratios=tokens.sequence_logs,
                    entropies=tokens.sums(measured.entropy),
                    **({} if weighed else self.weights_of(measured)),
                )
                own = step.of(groups, tokens)
                advantage = kernels.upload(self.baseline(own).flatten(), self.device)  # R_i − b_i
                coefficients = self.loss.coefficients(tokens, advantage, self.per_token)  # ρ_i (R_i − b_i) / G
                if self.reference is not None and self.penalises_tokens:
                    coefficients -= self.reference.token_coefficients(parts, tokens) / group_size
                squares = measured.backward(-coefficients)  # .grad −= Σ_q g_q, and ‖g_q‖²
                if fresh:
                    self.baseline.study(own)
            taken.append(groups)
            later.append((squares, tokens.means(advantage), tokens.means(coefficients.abs())))
        if taken:
            squares, advantages, sizes = map(torch.cat, zip(*later, strict=True))
            found.put(torch.cat(taken), group_squares=squares, advantages=advantages, coefficients=sizes)
        found["square_norms"][~live if has_norms else ...] = NAN
        # A rank may have filled up with dead groups: nobody is to learn it.
        found["reward_weights"][~live] = found["log_ratios"][~live] = NAN

        moments = self.moments(found["group_squares"][:, 0])
        everybodys = None if greedy is None else ranks.gather(greedy)
        first = ranks.rank * batch.n_groups
        stats = StepStatistics(batch, first, gap, moments, **found.of_all_ranks(), greedy_rewards=everybodys)
        stats.refused = self.refusals.judge(stats, self.current_epoch)
        if fresh:
            stats.refused |= self.drops.judge(stats, self.current_epoch)
        if not stats.refused:
            fresh_share = stats.effective_sample_size if stats.live.any() else 1.0
            eta = self.schedule(replace(moments, fresh=fresh_share), self.current_epoch)
            stats.lr = eta * self.drops.factor  # η_t
        if not stats.refused and moments.square_mean > 0:
            for parameter_group in optimizer.param_groups:
                parameter_group["lr"] = stats.lr
            optimizer.step()
        optimizer.zero_grad()  # rollouts need the room
        return stats

    # --- its parts --------------------------------------------------------------------------------------------------

    def check_engine(self, batch: RolloutBatch) -> LogprobGap:
        """How far log μ is from log π in each rank's first fresh responses, by the worst rank: each must sample from π.

        That an engine has the very weights is seen where they are sent; this sees whether it computes the same with
        them. Kernels round apart, in bfloat16 now and then by several nats: the largest gap says little.
        """
        together = accumulate(rollout.n_tokens for rollout in batch.fresh[:CHECKED])
        count = max(1, sum(tokens <= CHECKED_TOKENS for tokens in together))
        packed = pack(batch.fresh[:count], self.scorer.longest_row).to(self.device)
        with torch.no_grad():
            gaps = (self.scorer(packed).logprobs - packed.behaviour_logprobs).abs()
        gaps = gaps.masked_fill(gaps.isnan(), math.inf)  # of a number and NaN, ranks may find either the larger
        known = gaps[gaps.isfinite()] if gaps.isfinite().any() else gaps  # a response without one is judged by itself
        worst = torch.stack([known.mean(), known.quantile(0.99), gaps.max()])
        gap = LogprobGap(*of_run().reduce(worst, "max").tolist())
        for name, bound in self.logprob_gap_bounds.items():
            if not (found := getattr(gap, name)) <= bound:
                raise StaleEngineError(
                    f"the rollout engine is stale: after sync {batch.weight_version + batch.age} the {name} of its "
                    f"tokens' |log π − log μ| is {found:.3g} nats, more than policy.logprob_gap_{name}={bound:g}"
                )
        return gap

    def measure(self, tier: GradNorms, parts: list[PackedBatch], size: int) -> AbstractContextManager[Measured]:
        """Groups of ``size`` responses, see :meth:`GradNorms.measure`."""
        factors = self.loss.factors if self.loss.per_token else None
        return tier.measure(self.scorer, self.scorer.lm, parts, size, self.current_epoch, factors, self.per_token)

    def weights_of(self, measured: Measured) -> dict[str, Tensor]:
        """``n_i`` and ``ρ_i² n_i`` as columns of a step's statistics, [S]."""
        norms = measured.square_norms
        return {"square_norms": norms, "reward_weights": self.loss.reward_weights(measured.tokens, norms)}

    def weigh(self, batch: RolloutBatch, live: Tensor, found: Found) -> None:
        """Find the weights of all live groups ahead of any gradient."""
        for groups, parts in self.micro_batches(batch, live):
            with self.measure(self.gradnorm, parts, batch.group_size) as measured:
                found.put(groups, **self.weights_of(measured))

    def shaped_rewards(self, batch: RolloutBatch) -> Tensor:
        """``R_i``, or ``R_i − β log μ(o_i|q)/ref(o_i|q)``, float32 [N, G]."""
        if self.reference is None or self.penalises_tokens:
            return batch.rewards
        rewards = batch.rewards.clone()
        for groups, parts in self.micro_batches(batch, torch.ones(batch.n_groups, dtype=torch.bool)):
            penalties = self.reference.reward_penalties(parts).view(-1, batch.group_size)
            rewards[groups] = batch.rewards[groups] - penalties.to(rewards)
        return rewards

    def learn(self, stats: StepStatistics) -> None:
        """Let the baseline see the step, as far as norms are known; of one that was refused it keeps nothing."""
        if stats.refused:
            return self.baseline.forget()
        everything = all_groups(stats)
        known = everything.reward_weights.isfinite().all(1)
        if known.any():
            self.baseline.learn(everything.of(known), of_run().reduce)

    def micro_batches(self, batch: RolloutBatch, live: Tensor) -> Iterator[tuple[Tensor, list[PackedBatch]]]:
        """The live groups as :func:`~oblr.batch.packing.partition` has them: their indices, their packed sequences."""

        def agree(counts: list[int]) -> list[int]:
            return of_run().reduce(torch.tensor(counts), "max").tolist()

        settle_here(self, batch.group_size)
        sizes = [[rollout.n_tokens for rollout in batch.group(q)] for q in range(batch.n_groups)]
        with rounded_once():  # no weight changes between the micro-batches of a batch
            for groups, n_parts in partition(sizes, live.tolist(), self.token_budget, agree):
                rollouts = [rollout for q in groups for rollout in batch.group(q)]
                parts = [pack(part, self.scorer.longest_row) for part in cut(rollouts, n_parts)]
                yield torch.tensor(groups), [packed.to(self.device) for packed in parts]

    def moments(self, group_squares: Tensor) -> Moments:
        """Turn ``.grad`` from ``Σ_q g_q`` into ``ĝ = (1/N) Σ_q g_q``, over all ranks, and measure M1 and M2."""
        ranks = of_run()
        n_groups = len(group_squares) * ranks.count
        mean_square, of_shards = (torch.zeros((), dtype=torch.float64, device=self.device) for _ in range(2))
        for p in self.parameters():
            if p.grad is None:
                continue
            if isinstance(p.grad, DTensor):  # FSDP2 has averaged over the ranks
                p.grad.mul_(ranks.count / n_groups)
                of_shards += (_square_norm(p.grad.to_local()) / copies(p.grad)).to(self.device)
            else:
                p.grad.copy_(ranks.reduce(p.grad)).div_(n_groups)
                mean_square += _square_norm(p.grad)
        of_shards, of_groups = ranks.reduce(torch.stack([of_shards, group_squares.sum().to(self.device)]))
        mean_square += of_shards
        square_mean = of_groups / n_groups
        return Moments(n_groups, mean_square.item(), square_mean.item())

    # --- what a checkpoint keeps besides the weights ----------------------------------------------------------------

    @cached_property
    def base(self) -> dict[str, Any]:
        """What a checkpoint's weights are worth nothing without, adapters above all, and what a penalty refers to."""
        found = self.identity | {"policy.dtype": self.dtype_name, "policy.adapter": "none"}
        if self.lora is not None:
            targets = self.lora.targets if isinstance(self.lora.targets, str) else list(self.lora.targets)
            own = {"rank": self.lora.rank, "alpha": float(self.lora.alpha), "targets": targets}
            found |= {"policy.adapter": "lora"} | {f"policy.lora.{name}": value for name, value in own.items()}
        if self.lora is not None or self.kl is not None:
            found["weights"] = weights_digest(self.path, load_config(self.path))
        return found

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["oblr"] = {
            "schedule": self.schedule.state_dict(),
            "baseline": self.baseline.state_dict(),
            "refused": self.refusals.count,
            "dropped": self.drops.count,
            "random": on_every_rank(random_state),
            "base": self.base,
            "run": self.run,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.schedule.load_state_dict(checkpoint["oblr"]["schedule"])
        self.baseline.load_state_dict(checkpoint["oblr"]["baseline"])
        self.refusals.count = checkpoint["oblr"].get("refused", 0)  # which older ones do not have
        self.drops.count = checkpoint["oblr"].get("dropped", 0)
        states = checkpoint["oblr"]["random"]
        if self.global_rank < len(states):  # a rank that was not there goes on as it was seeded
            set_random_state(states[self.global_rank])


def _square_norm(x: Tensor) -> Tensor:
    """Float64 [], without a float64 copy of ``x``: rows are summed in float32."""
    return torch.linalg.vector_norm(x, dim=-1).double().square().sum()
