"""The policy and what its step is made of."""

from typing import Annotated, Literal

from annotated_types import Ge, Le

from oblr.settings.kinds import (
    Count,
    Decay,
    Few,
    Natural,
    NonNegative,
    Part,
    Positive,
    PositiveShare,
    Precision,
    Rate,
    Section,
    Seed,
    Share,
    Temperature,
    section,
)

NORMALISE = (
    Literal["none", "response", "group"],
    "length a response's gradient is divided by: none, its own, its group's",
)
LOW, HIGH = ((NonNegative, f"how far {side} 1 a ratio is clipped") for side in ("below", "above"))
POOLED = (bool, "whether the mean contains the own sample, as published; biased")
DECAY = (Decay, "what a moving average keeps at a step")
WARM_UP = (Natural, "steps over which the rate first rises linearly")
STEPS = (Count, "length of the run that the rate falls over, steps")
RATE = (Rate, "learning rate")
EPSILON = (Positive, "what keeps a division by the standard deviation finite, in units of reward")
POWER = (PositiveShare, "exponent of the factor: 1 is Theorem 4's")

CLASSES: dict[str, Section] = {
    "oblr.policy.step.PolicyModule": section(
        path=(str, "Hugging Face model folder or hub id"),
        dtype=(Precision, "precision of the weights that are trained"),
        gradnorm=(Part("oblr.gradnorm"), "how squared score norms are found"),
        baseline=(Part("oblr.baselines"), "what advantages are taken against"),
        loss=(Part("oblr.losses"), "what becomes of importance ratios"),
        kl=(Part("oblr.losses", optional=True), "penalty towards the policy before training"),
        schedule=(Part("oblr.schedules"), "what gives the learning rate"),
        optimizer=(Part(), "a torch.optim class, with `_partial_: true`"),
        temperature=(Temperature, "of the behaviour policy"),
        token_budget=(
            Count | Literal["auto"],
            "most tokens in a micro-batch of several sequences; auto: as many as memory allows",
        ),
        logprob_gap_mean=(Positive, "largest tolerated mean of |log π − log μ| of fresh weights, nats"),
        logprob_gap_p99=(Positive, "largest tolerated 99 % quantile of it, nats"),
        updates_per_batch=(Annotated[int, Ge(1), Le(10_000)], "how often a batch is used"),
        activation_checkpointing=(
            bool | Annotated[int, Ge(1), Le(2**20)],
            "whether blocks are computed again in the backward pass, to save memory; n: every n-th block is",
        ),
        cpu_offload=(bool, "whether shards lie in host memory; with trainer=fsdp"),
        attention=(Literal["auto", "varlen", "sdpa"], "flash attention without a mask, torch's, or what fits"),
        adapter=(Literal["none", "lora"], "lora: train low-rank adapters alone"),
        lora=(Part("oblr.policy", optional=True), "those adapters"),
    ),
    "oblr.policy.adapter.LoRA": section(
        rank=(Few, "r, of the product that is added to a layer's weights"),
        alpha=(Positive, "α: the product is multiplied by α/r"),
        targets=(Literal["all-linear"] | list[str], "names of the layers, as they end; all-linear: all but the head"),
        seed=(Seed, "of the adapters' first values"),
    ),
    "oblr.gradnorm.measure.GradNorms": section(
        tier=(Literal["exact", "sketch", "logit", "length", "uniform"], "what weights are made of"),
        passes=(Literal["auto", "one", "two"], "one keeps output gradients, two computes forward and backward again"),
        probes=(Count, "random projections of a sketch"),
        seed=(Seed, "of the projections"),
    ),
    "oblr.baselines.adaptive.AdaptiveBaseline": section(
        pseudo_counts=(list[NonNegative], "how many responses' worth of the other groups' mean may be mixed in"),
        decay=DECAY,
    ),
    "oblr.baselines.batch_mean.BatchMeanBaseline": section(
        normalise=(bool, "whether advantages are divided by their standard deviation: REINFORCE++, biased"),
        epsilon=EPSILON,
    ),
    "oblr.baselines.gradient_weighted.GradientWeightedBaseline": section(
        form=(Literal["leave_one_out", "cross_fitted", "pooled"], "which responses the mean is over"),
    ),
    "oblr.baselines.group_mean.GroupMeanBaseline": section(),
    "oblr.baselines.group_mean_std.GroupMeanStdBaseline": section(epsilon=EPSILON),
    "oblr.baselines.history.HistoryBaseline": section(
        discount=(Share, "of what earlier visits to a prompt count, with each one since"),
        weighted=(bool, "whether responses are weighted by squared score norms"),
    ),
    "oblr.baselines.none.NoBaseline": section(),
    "oblr.baselines.opo.OPOBaseline": section(pooled=POOLED),
    "oblr.baselines.otb.OTBBaseline": section(pooled=POOLED),
    "oblr.baselines.remax.ReMaxBaseline": section(),
    "oblr.baselines.rloo.RLOOBaseline": section(),
    "oblr.baselines.shrinkage.ShrinkageBaseline": section(
        weighted=(bool, "whether the mean that is shrunk is weighted by squared score norms"),
    ),
    "oblr.baselines.value.ValueBaseline": section(
        trace=(Share, "λ of GAE; below 1 biased"),
        decay=DECAY,
        ridge=(Positive, "penalty on the value's weights, over the mean square of a hidden unit"),
    ),
    "oblr.losses.capo.CAPOLoss": section(
        step=(Positive, "learning rate times squared norm of the head's inputs over squared temperature"),
        policy_shift=(Positive, "largest shift of the policy that a token may make alone, nats"),
        objective_shift=(Positive, "largest shift of the objective that a token may make alone"),
        clip_low=LOW,
        clip_high=HIGH,
        normalise=NORMALISE,
    ),
    "oblr.losses.cispo.CISPOLoss": section(clip_low=LOW, clip_high=HIGH, normalise=NORMALISE),
    "oblr.losses.gepo.GEPOLoss": section(
        clip=(NonNegative | None, "how far from 1 a response is dropped; null: none is"), normalise=NORMALISE
    ),
    "oblr.losses.gspo.GSPOLoss": section(clip_low=LOW, clip_high=HIGH, normalise=NORMALISE),
    "oblr.losses.policy_gradient.PolicyGradientLoss": section(
        ratio=(Literal["sequence", "token", "none"], "importance ratio: of responses, of single tokens, or none"),
        truncate=(Annotated[float, Ge(1), Le(1e9)] | None, "largest ratio; null: unbounded"),
        normalise=NORMALISE,
    ),
    "oblr.losses.ppo_clip.PPOClipLoss": section(clip_low=LOW, clip_high=HIGH, normalise=NORMALISE),
    "oblr.losses.kl.KLPenalty": section(
        estimator=(Literal["k1", "k2", "k3"], "of the divergence: k1 shapes rewards, the others the gradient"),
        coefficient=(NonNegative, "β, reward per nat"),
    ),
    "oblr.schedules.annealed.AnnealedSchedule": section(
        schedule=(Part("oblr.schedules"), "the schedule that is brought down to zero"), steps=STEPS
    ),
    "oblr.schedules.constant.ConstantSchedule": section(lr=RATE),
    "oblr.schedules.decay.CosineSchedule": section(lr=RATE, steps=STEPS, warm_up=WARM_UP),
    "oblr.schedules.decay.InverseSquareRootSchedule": section(lr=RATE, steps=STEPS, warm_up=WARM_UP),
    "oblr.schedules.decay.LinearSchedule": section(lr=RATE, steps=STEPS, warm_up=WARM_UP),
    "oblr.schedules.noise.NoiseSchedule": section(
        eta0=RATE, level_steps=(Count, "first steps, which say how much noise the start has"), power=POWER
    ),
    "oblr.schedules.snr.SNRSchedule": section(
        eta0=RATE,
        estimator=(Literal["plug_in", "debiased", "ema"], "of the signal-to-noise ratio"),
        decay=DECAY,
        floor=(Share, "least share of the rate"),
        warm_up=WARM_UP,
        power=POWER,
    ),
    "torch.optim.SGD": section(
        lr=(Annotated[float, Ge(0), Le(1e3)], "learning rate until the schedule sets it"),
        momentum=(Decay, "what the velocity keeps at a step"),
        dampening=(Share, "what of a gradient the velocity leaves out"),
        weight_decay=(NonNegative, "pull of the weights to zero, per unit of the rate"),
        nesterov=(bool, "whether the velocity looks ahead; needs momentum"),
        maximize=(Literal[False], "the step minimises"),
        foreach=(bool | None, "whether all weights are updated at once; null: torch chooses"),
        differentiable=(Literal[False], "nothing is differentiated through the step"),
        fused=(bool | None, "whether one kernel updates; null: torch chooses"),
    ),
    "torch.optim.AdamW": section(
        lr=(Annotated[float, Ge(0), Le(1e3)], "learning rate until the schedule sets it"),
        betas=(list[Decay], "what the averages of gradients and of their squares keep at a step"),
        eps=(Positive, "what keeps the division by the root of the squares finite"),
        weight_decay=(NonNegative, "pull of the weights to zero, per unit of the rate"),
        amsgrad=(bool, "whether the largest average of squares is used"),
        maximize=(Literal[False], "the step minimises"),
        foreach=(bool | None, "whether all weights are updated at once; null: torch chooses"),
        capturable=(bool, "whether the step can be part of a CUDA graph"),
        differentiable=(Literal[False], "nothing is differentiated through the step"),
        fused=(bool | None, "whether one kernel updates; null: torch chooses"),
    ),
}
