"""The benchmarks of ``src/eval.py`` during training, with the run's own engine."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from lightning import LightningModule, Trainer

from callbacks.evaluation import Evaluation
from callbacks.observer import log_now, rollout_data
from oblr.evaluation.attempts import Attempts, Benchmark, attempt, check_tries, longest, new_tokens
from oblr.evaluation.measures import measure
from oblr.kinds import Count, Few, Seed, checked
from oblr.rollout.datamodule import RolloutDataModule
from oblr.run.ranks import of_run
from oblr.run.terminal import say


@checked("callbacks.benchmarks")
class BenchmarkEvaluation(Evaluation):
    """Logs each benchmark's figures and the ends of their 95 % intervals: ``eval/<benchmark>/avg@4``, ``…_low``, ….

    The ranks share the problems. A problem's responses are those of ``src/eval.py`` with the same seed, so that the
    exported policy has the figures of the last evaluation, but for rounding.

    Args:
        benchmarks: by name.
        every: steps between evaluations.
        samples: responses to each problem, at the training temperature.
        k: tries of pass@k and maj@k.
        limit: the first so many problems of each; None: all.
        seed: of the sampling, the same at every evaluation.
    """

    def __init__(
        self,
        benchmarks: Mapping[str, Benchmark],
        every: Count,
        samples: Few,
        k: Sequence[Few],
        limit: Count | None = None,
        seed: Seed = 0,
    ):
        super().__init__(every)
        check_tries(samples, k)
        self.benchmarks, self.samples, self.k, self.seed = dict(benchmarks), samples, list(k), seed
        self.problems = {name: benchmark.first(limit) for name, benchmark in self.benchmarks.items()}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        data = rollout_data(trainer)
        for name, benchmark in self.benchmarks.items():
            for note in benchmark.try_out(self.problems[name], name, data.tokenizer.encode):
                if trainer.is_global_zero:
                    say(note)
            longest(name, self.problems[name], data.tokenizer, self.limit_of(name, data), data.max_model_len)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for benchmark in self.benchmarks.values():
            benchmark.pool.close()

    def limit_of(self, name: str, data: RolloutDataModule) -> int:
        """The most tokens that a response to the benchmark ``name`` may have."""
        return new_tokens(self.benchmarks[name], self.problems[name], data.tokenizer, data.max_model_len)

    def evaluate(self, trainer: Trainer) -> None:
        data = rollout_data(trainer)
        figures: dict[str, float] = {}
        for name, benchmark in self.benchmarks.items():
            sampling = replace(data.sampling, n=self.samples, max_new_tokens=self.limit_of(name, data))
            share = self.problems[name][trainer.global_rank :: trainer.world_size]
            attempts = attempt(benchmark, share, data.generate, data.tokenizer, sampling, self.seed)
            for figure, interval in measure(together(attempts), self.k).items():
                figures |= {
                    f"eval/{name}/{figure}": interval.mean,
                    f"eval/{name}/{figure}_low": interval.low,
                    f"eval/{name}/{figure}_high": interval.high,
                }
        data.engine.sleep()
        log_now(trainer, figures)


def together(attempts: list[Attempts]) -> list[Attempts]:
    """Those of all ranks, in the order of the problems."""
    shares = of_run().objects(attempts)
    ordered = [one for turn in zip_longest(*shares) for one in turn]
    return ordered[: sum(map(len, shares))]  # the last turn may not reach every rank
