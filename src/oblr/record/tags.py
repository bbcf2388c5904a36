"""The meaning of every logged number, which TensorBoard shows on its tab Scalars, report and docs in their tables."""

from collections.abc import Collection
from fnmatch import fnmatchcase

from oblr.metrics.accuracy import NAMES as HELD_OUT

#: By the tag, in which ``*`` stands for a name: what it is, and its unit. The first that fits counts.
TAGS = {
    "train/reward": "Mean reward of the step's responses, before any penalty.",
    "train/live_groups": "Share of the groups whose rewards differ: only they have a gradient.",
    "train/entropy": "Mean entropy of the distribution that a response token was drawn from, in nats.",
    "train/lr": "η_t, the learning rate of the step.",
    "train/refused": "Steps so far in which something was no number, so that nothing moved.",
    "train/dropped": "Steps so far whose rollouts were too old; see policy.max_noise and policy.beyond.",
    "rollout/length": "Mean length of a response, in tokens.",
    "rollout/truncated": "Share of the responses that the token limit cut.",
    "rollout/age": "Steps since the weights that rollouts are of, mean over tokens; see rollout.ahead.",
    "rollout/ess": "(Σρ)²/(S Σρ²) of the S live responses' ratios ρ: the share that counts as if it were fresh.",
    "rollout/growth": "Σ ρ²n/Σ ρn: what the ratios make of the gradients' second moment; 1/ESS if norms n are unknown.",
    "rollout/refilled": "Prompts of the step that others replaced, since their rewards agreed; see rollout.refill.",
    "rollout/logprob_gap_mean": "Mean |log π − log μ| of tokens between policy and engine after the sync, in nats.",
    "rollout/logprob_gap_p99": "99 % quantile of |log π − log μ| of tokens between policy and engine, in nats.",
    "rollout/logprob_gap_max": "Largest |log π − log μ| of a token between policy and engine, in nats.",
    "reward/timeouts": "Responses since the last step that took too long to score, and so have reward 0.",
    "reward/errors": "Responses since the last step that could not be scored, and so have reward 0.",
    "reward/unpaid": "Problems of the step whose answer no response can be paid for.",
    "eval/greedy_accuracy": "Share of the held-out problems that greedy responses solve.",
    "eval/sampled_accuracy": "Mean share of the sampled responses to a held-out problem that solve it.",
    "eval/greedy_reward": "Mean reward of greedy responses to the held-out problems, where some is neither 0 nor 1.",
    "eval/sampled_reward": "Mean reward of sampled responses to the held-out problems, where some is neither 0 nor 1.",
    "eval/greedy_*": "An end of the 95 % interval of the greedy accuracy, or mean reward.",
    "eval/sampled_*": "An end of the 95 % interval of the sampled accuracy, or mean reward.",
    "eval/best": "Highest sampled accuracy, or mean reward, so far.",
    "eval/*_low": "Lower end of the 95 % interval of the figure of that name.",
    "eval/*_high": "Upper end of the 95 % interval of the figure of that name.",
    "eval/*": "Figure of a benchmark, as src/eval.py prints it.",
    "gradnorm/mean": "Mean of ‖∇log π(o_i|q)‖ over the responses of live groups.",
    "gradnorm/q*": "Quantile of ‖∇log π(o_i|q)‖ over the responses of live groups, in percent.",
    "gradnorm/cv_within_group": "Spread of n_i = ‖∇log π(o_i|q)‖² inside a group over its mean, on average.",
    "gradnorm/correlation_with_length": "Correlation of ‖∇log π(o_i|q)‖ with the length of the response.",
    "baseline/*": "Second moment of a response's gradient that this baseline would have had, over RLOO's.",
    "snr/M1": "‖ĝ‖², squared norm of the step's gradient.",
    "snr/M2": "Mean of ‖g_q‖² over the N groups of the step.",
    "snr/noise": "tr H, the variance of one group's gradient, without bias.",
    "snr/noise_scale": "1/SNR by the debiased estimate: the number of groups with which noise and signal are equal.",
    "snr/n_groups": "N, the groups of a step: above the noise scale a step sees more signal than noise.",
    "snr/factor_*": "N·SNR/(1 + N·SNR) by this estimate: what Theorem 4 leaves of η₀.",
    "snr/*": "Signal-to-noise ratio ‖∇J‖²/tr H of one group's gradient, by this estimate.",
    "monitor/lr_factor": "η_t/η₀ under the SNR and noise schedules, a decay apart; a warning comes where it collapses.",
    "monitor/effective_sample_size*": "(Σw)²/Σw² of a group's weights over G: 1 where all responses weigh alike.",
    "monitor/own_sample_dependence": "How far the baseline of a response moves with its own reward: not 0 is a bias.",
    "monitor/onward": "Cosine of the last update with the next −ĝ: below 0 on the mean, updates go too far.",
    "monitor/entropy_share": "Moving average of the entropy over that of the first step.",
    "time/step": "Seconds of the whole step.",
    "time/ahead_rollout": "Seconds that the engine sampled this batch for, while the policy trained (rollout.ahead).",
    "time/ahead_reward": "Seconds that scoring this batch took after its last response, while the policy trained.",
    "time/*": "Seconds of the step spent in this phase.",
    "throughput/tokens_per_second": "Response tokens a second of the whole step.",
}

#: The first screen: charts of tags that belong together, what matters most first.
FIRST = {
    "reward": ["train/reward"],
    HELD_OUT["accuracy"]: ["eval/sampled_accuracy", "eval/sampled_low", "eval/sampled_high"],
    "signal-to-noise ratio": ["snr/debiased"],
    "learning rate": ["train/lr"],
    "gradient norm of a response": ["gradnorm/q50", "gradnorm/q10", "gradnorm/q90"],
    "squared norm of the gradient": ["snr/M1"],
    "Theorem 4's factor by estimate of the SNR": ["snr/factor_plug_in", "snr/factor_debiased", "snr/factor_ema"],
    "noise scale against groups of a step": ["snr/noise_scale", "snr/n_groups"],
    "second moment by baseline, over RLOO's": ["baseline/.*"],
    "live groups and truncation": ["train/live_groups", "rollout/truncated"],
    "entropy": ["train/entropy"],
    "engine against policy": ["rollout/logprob_gap_mean", "rollout/logprob_gap_p99", "rollout/logprob_gap_max"],
    "seconds by phase": ["time/.*"],
    "tokens a second": ["throughput/tokens_per_second"],
}

#: A value → the ends of the band that is drawn with it.
BANDS = {
    "eval/sampled_accuracy": ["eval/sampled_low", "eval/sampled_high"],
    "eval/sampled_reward": ["eval/sampled_low", "eval/sampled_high"],
    "gradnorm/q50": ["gradnorm/q10", "gradnorm/q90"],
}
#: The chart that says what governs the rate, and the hyper-parameter that does.
RATE, GOVERNED = "learning rate", "learning_rate"

#: Categories of TensorBoard's tab Custom Scalars, first ones first: charts of a single line. It puts those with a band
#: below the others of their category. Other charts of one line come last, others again are categories of their own.
CATEGORIES = {
    "does it learn": ["reward", *HELD_OUT.values()],
    "what moves it": ["signal-to-noise ratio", RATE, "gradient norm of a response", "squared norm of the gradient"],
}

#: What legends call a tag, where its last part alone would not do.
NAMES = {
    "train/reward": "training reward",
    "train/live_groups": "share of groups with a gradient",
    "train/lr": RATE,
    "train/refused": "refused steps",
    "train/dropped": "dropped steps",
    "rollout/length": "tokens of a response",
    "rollout/truncated": "share cut at the limit",
    "rollout/age": "age of rollouts, in steps",
    "rollout/ess": "effective sample size, share",
    "rollout/logprob_gap_mean": "gap engine to policy, mean",
    "rollout/logprob_gap_p99": "gap engine to policy, 99 % quantile",
    "rollout/logprob_gap_max": "gap engine to policy, largest",
    "eval/greedy_accuracy": "held-out accuracy, greedy",
    "eval/greedy_low": "lower end, greedy",
    "eval/greedy_high": "upper end, greedy",
    "eval/sampled_accuracy": "held-out accuracy, sampled",
    "eval/greedy_reward": "held-out mean reward, greedy",
    "eval/sampled_reward": "held-out mean reward, sampled",
    "eval/sampled_low": "lower end of its 95 % interval",
    "eval/sampled_high": "upper end of its 95 % interval",
    "eval/best": "best held-out figure",
    "gradnorm/mean": "gradient norm, mean",
    "gradnorm/q10": "10 % quantile",
    "gradnorm/q50": "median gradient norm",
    "gradnorm/q90": "90 % quantile",
    "snr/M1": "squared norm of the gradient",
    "snr/M2": "mean squared norm of a group's gradient",
    "snr/noise": "variance of a group's gradient",
    "snr/noise_scale": "noise scale, in groups",
    "snr/n_groups": "groups of a step",
    "snr/plug_in": "SNR of each batch as it is",
    "snr/debiased": "SNR of each batch without bias",
    "snr/ema": "SNR of a moving average",
    "snr/factor_plug_in": "factor by each batch as it is (plug-in)",
    "snr/factor_debiased": "factor by each batch without bias (debiased)",
    "snr/factor_ema": "factor by a moving average (ema)",
    "time/step": "whole step",
    "throughput/tokens_per_second": "response tokens a second",
}


def name(tag: str) -> str:
    """The words by which a legend names a tag."""
    return NAMES.get(tag, tag.rpartition("/")[2].replace("_", " "))


def first(tags: Collection[str]) -> dict[str, list[str]]:
    """The first charts of runs with these tags: of mean reward in place of accuracy, where the runs have that."""
    if "eval/sampled_reward" not in tags:
        return FIRST
    accuracy, reward = HELD_OUT["accuracy"], ["eval/sampled_reward", "eval/sampled_low", "eval/sampled_high"]
    return dict((HELD_OUT["reward"], reward) if title == accuracy else (title, of) for title, of in FIRST.items())


def meaning(tag: str) -> str | None:
    """What a tag means; None where nobody has said."""
    return next((text for pattern, text in TAGS.items() if fnmatchcase(tag, pattern)), None)


def table() -> str:
    """As Markdown, for docs/tags.md."""
    return "\n".join(["| tag | what it is |", "|---|---|", *(f"| `{tag}` | {text} |" for tag, text in TAGS.items())])
