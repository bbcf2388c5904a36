"""What every logged number means: TensorBoard shows it beside the chart, the report and the docs in their tables."""

from fnmatch import fnmatchcase

#: By the tag, in which ``*`` stands for a name: what it is, and its unit. The first that fits counts.
TAGS = {
    "train/reward": "Mean reward of the step's responses, before any penalty.",
    "train/live_groups": "Share of the groups whose rewards differ: only they have a gradient.",
    "train/entropy": "Mean entropy of the distribution that a response token was drawn from, in nats.",
    "train/lr": "η_t, the learning rate of the step.",
    "train/refused": "Steps so far in which something was no number, so that nothing moved.",
    "rollout/length": "Mean length of a response, in tokens.",
    "rollout/truncated": "Share of the responses that the token limit cut.",
    "rollout/logprob_gap_mean": "Mean |log π − log μ| of tokens between policy and engine after the sync, in nats.",
    "rollout/logprob_gap_p99": "99 % quantile of |log π − log μ| of tokens between policy and engine, in nats.",
    "rollout/logprob_gap_max": "Largest |log π − log μ| of a token between policy and engine, in nats.",
    "reward/timeouts": "Responses since the last step that took too long to score, and so have reward 0.",
    "reward/errors": "Responses since the last step that could not be scored, and so have reward 0.",
    "reward/unpaid": "Problems of the step whose answer no response can be paid for.",
    "eval/greedy_accuracy": "Share of the held-out problems that greedy responses solve.",
    "eval/sampled_accuracy": "Mean share of the sampled responses to a held-out problem that solve it.",
    "eval/greedy_*": "An end of the 95 % interval of the greedy accuracy.",
    "eval/sampled_*": "An end of the 95 % interval of the sampled accuracy.",
    "eval/best": "Highest sampled accuracy so far.",
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
    "monitor/entropy_share": "Moving average of the entropy over that of the first step.",
    "time/step": "Seconds of the whole step.",
    "time/*": "Seconds of the step spent in this phase.",
    "throughput/tokens_per_second": "Response tokens a second of the whole step.",
}

#: The first screen: charts of tags that belong together. A value and its bounds are drawn with a band.
FIRST = {
    "reward": ["train/reward"],
    "held-out accuracy": ["eval/sampled_accuracy", "eval/sampled_low", "eval/sampled_high"],
    "factor of η₀": ["snr/factor_plug_in", "snr/factor_debiased", "snr/factor_ema"],
    "learning rate η": ["train/lr"],
    "noise scale against N": ["snr/noise_scale", "snr/n_groups"],
    "second moment by baseline, over RLOO's": ["baseline/.*"],
    "gradient norm of a response": ["gradnorm/q10", "gradnorm/q50", "gradnorm/q90"],
    "live groups and truncation": ["train/live_groups", "rollout/truncated"],
    "entropy": ["train/entropy"],
    "engine against policy": ["rollout/logprob_gap_mean", "rollout/logprob_gap_p99", "rollout/logprob_gap_max"],
    "seconds by phase": ["time/.*"],
    "tokens a second": ["throughput/tokens_per_second"],
}


def meaning(tag: str) -> str | None:
    """What a tag means; None where nobody has said."""
    return next((text for pattern, text in TAGS.items() if fnmatchcase(tag, pattern)), None)


def table() -> str:
    """As Markdown, for docs/tags.md."""
    return "\n".join(["| tag | what it is |", "|---|---|", *(f"| `{tag}` | {text} |" for tag, text in TAGS.items())])
