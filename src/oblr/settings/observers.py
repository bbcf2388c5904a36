"""What shows a run and keeps it: callbacks and loggers."""

from typing import Annotated

from annotated_types import Ge, Le

from oblr.settings.kinds import (
    Count,
    Decay,
    Few,
    Natural,
    Part,
    Parts,
    Positive,
    Section,
    Seed,
    Text,
    section,
)

EVERY = (Count, "steps between two of them")
SAMPLES = (Few, "responses to a problem")
BETWEEN = {
    "bound": (Positive, "between healthy and failing"),
    "patience": (Count, "readings in a row that begin or end a failure"),
}
CLASSES: dict[str, Section] = {
    "callbacks.benchmarks.BenchmarkEvaluation": section(
        benchmarks=(Parts(Part("oblr.evaluation")), "by name"),
        every=EVERY,
        samples=SAMPLES,
        k=(list[Few], "tries of pass@k and maj@k"),
        limit=(Count | None, "the first so many problems of each; null: all"),
        seed=(Seed, "of the sampling, the same at every evaluation"),
    ),
    "callbacks.checkpoints.Checkpoints": section(
        dirpath=(str, "folder"), every=EVERY, keep=(Count, "how many, the newest")
    ),
    "callbacks.evaluation.HeldOutEvaluation": section(
        every=EVERY, samples=SAMPLES, seed=(Seed, "of the sampling, the same at every evaluation")
    ),
    "callbacks.graceful_stop.GracefulStop": section(),
    "callbacks.grad_stats.GradStats": section(every=EVERY),
    "callbacks.monitors.BaselineBlowUp": section(
        bound=(Positive, "least effective number of responses in a group"), patience=BETWEEN["patience"]
    ),
    "callbacks.monitors.EntropyCollapse": section(
        bound=(Positive, "least entropy, over the first step's"),
        patience=BETWEEN["patience"],
        decay=(Decay, "what the average of the entropy keeps at a step"),
    ),
    "callbacks.monitors.LearningRateCollapse": section(
        bound=(Positive, "least learning rate, over eta0"), patience=BETWEEN["patience"]
    ),
    "callbacks.monitors.Monitors": {"*": section(one=(Part("callbacks.monitors"), "a monitor"))["one"]},
    "callbacks.monitors.OwnSampleDependence": section(every=EVERY),
    "callbacks.progress.LiveProgress": section(every=(Count, "steps between two samples")),
    "callbacks.samples.SampleTable": section(
        every=EVERY, rows=(Annotated[int, Ge(1), Le(10_000)], "responses of each kind that are shown")
    ),
    "callbacks.scoring.ScoringFailures": section(),
    "callbacks.second_moments.SecondMoments": section(
        baselines=(Parts(Part("oblr.baselines")), "by name; the first is what the others are compared with")
    ),
    "callbacks.snr.SNRMonitor": section(decay=(Decay, "what the averages of the moments keep at a step")),
    "callbacks.summary.Summary": section(),
    "callbacks.throughput.Throughput": section(),
    "callbacks.rollouts.RolloutLog": section(
        dirpath=(str, "folder"), limit_mib=(Positive, "largest size of all that is kept, MiB")
    ),
    "callbacks.tensorboard.TensorBoard": section(save_dir=(str, "folder"), version=(str, "folder in it")),
    "lightning.pytorch.loggers.CSVLogger": section(
        save_dir=(str, "folder"),
        name=(Text, "folder in it"),
        version=(Natural | Text, "folder in that"),
        prefix=(str, "before all names"),
        flush_logs_every_n_steps=(Count, "steps between two writes"),
    ),
}
