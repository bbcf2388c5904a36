"""Real parts in small sizes: tiny Qwen models, rollouts with random tokens, and runs of the real command line."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as many test processes run as there are cores
os.environ.setdefault(
    "TORCHDYNAMO_DISABLE", "1"
)  # vLLM compiles one function of its sampler, for seconds in each process

import torch
import warm
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from xdist.scheduler import LoadFileScheduling

from oblr.batch.packing import pack
from oblr.batch.types import Rollout
from oblr.commands.launch import launch
from oblr.policy.adapter import LoRA, adapters
from oblr.policy.model import PolicyModel
from oblr.problem import Completion, Problem
from oblr.rollout.server import ServerEngine

pytest_plugins = ("attacked", "doctored")
pytest.register_assert_rewrite("refusals")  # a failure there shows what was compared, as in a test

# What a shell has started in the background ignores Ctrl-C, and so would all that is started here.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Files in which most of the seconds are: they come first, so that no process is left with one of them in the end.
LONGEST = (
    *("test_engines.py", "test_server.py", "test_train.py", "test_ranks.py", "test_plan.py", "test_faults.py"),
    *("test_composition.py", "test_roofline.py", "test_eval.py", "test_collectives.py", "test_bad_input.py"),
    *("test_benchmarks.py", "test_selfcheck.py", "test_terminal.py", "test_deadline.py", "test_report.py"),
    *("test_two_ends.py", "test_settings.py", "test_readback.py", "test_seeds.py", "test_policy_losses.py"),
    *("test_monitors.py", "test_warm.py", "test_install.py", "test_judgement.py", "test_checkpoint.py"),
    *("test_sweep.py", "test_passes.py", "test_text.py"),
)


#: What shares a server stays in one process.
TOGETHER = dict.fromkeys(
    (f"tests/rollout/test_{name}.py" for name in ("server", "ahead_server", "in_flight_server")),
    "tests/rollout/test_engines.py",
)


class ByFile(LoadFileScheduling):
    """A file's tests go to one process, and those of files that stay together."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return TOGETHER.get(file, file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile | None:
    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


#: A test whose module has one of these, or which takes one of the fixtures, starts a program, an engine or processes.
STARTERS = {"subprocess", "multiprocessing", "warm", "launch", "RewardPool", "VLLMEngine", "ServerEngine", "mp"}
STARTED = {"train", "refused", "pocket_server"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only tests that start nothing, of short files")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rank = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))
    if config.getoption("fast"):
        slow = [item for item in items if item.path.name in rank or starts(item)]
        config.hook.pytest_deselected(items=slow)
        left = set(items).difference(slow)
        items[:] = [item for item in items if item in left]


def starts(item: pytest.Item) -> bool:
    module = vars(item.module)  # type: ignore[attr-defined]
    return not (STARTERS.isdisjoint(module) and STARTED.isdisjoint(item.fixturenames))  # type: ignore[attr-defined]


def pytest_xdist_auto_num_workers() -> int:
    """One where there is a GPU: an engine takes a share of it, and measures what is free while it starts."""
    return 1 if torch.cuda.is_available() else 2


ROOT = Path(__file__).resolve().parent.parent
#: What is written for users.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
POCKET = ROOT / "models" / "pocket"
#: A run of seconds.
SMALL = (
    *("experiment=pocket", "rollout.engine=hf", "rollout.prompts_per_step=4", "rollout.max_new_tokens=24"),
    *("data.held_out.size=8", "reward=exact"),  # the processes of reasoning_gym's rewards take a second to import it
    "~callbacks.summary",  # a picture, which takes a second to draw
)
VOCAB = 97
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
}


#: Qwen2 has biases, Qwen3 norms of q and k, Llama neither.
FAMILIES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}


def tiny_model(tied: bool, family: str = "qwen3", seed: int = 0, **shape: int) -> PreTrainedModel:
    """A random model; all its parameters, biases and norms included, are away from their initial values."""
    torch.manual_seed(seed)
    config, model = FAMILIES[family]
    lm = model(config(tie_word_embeddings=tied, **SHAPE | shape)).train()
    for p in lm.parameters():
        p.data += 0.05 * torch.randn_like(p)
    return lm


def adapt(lm: PreTrainedModel, rank: int = 4, targets: str | Sequence[str] = "all-linear", mixed: bool = False) -> LoRA:
    """Give ``lm`` adapters, all of which are away from their initial values."""
    lora = LoRA(rank, 8.0, targets, seed=0)
    lora.attach(lm, mixed)
    generator = torch.Generator().manual_seed(0)
    for p in adapters(lm).values():
        p.data += 0.1 * torch.randn(p.shape, generator=generator)
    return lora


def make_rollouts(lengths: Sequence[int], rewards: Sequence[float] | None = None, seed: int = 0) -> list[Rollout]:
    """Random token sequences with responses of the given lengths; every prompt has 1 to 9 tokens."""
    rng = random.Random(seed)
    rewards = rewards or [0.0] * len(lengths)
    return [
        Rollout(
            Problem(str(i), "?", "!"),
            [rng.randrange(VOCAB) for _ in range(rng.randint(1, 9))],
            Completion([rng.randrange(VOCAB) for _ in range(n)], [-rng.random() for _ in range(n)], True),
            "",
            reward,
        )
        for i, (n, reward) in enumerate(zip(lengths, rewards, strict=True))
    ]


def drawn_by(lm: PreTrainedModel, rollouts: Sequence[Rollout], temperature: float, drift: float) -> list[Rollout]:
    """The rollouts as if ``lm`` had drawn them, up to ``drift`` nats a token."""
    generator, drawn = torch.Generator().manual_seed(1), []
    for rollout in rollouts:
        with torch.no_grad():
            logprobs = PolicyModel(lm, temperature)(pack([rollout]))[0]
        logprobs = logprobs + drift * torch.randn(len(logprobs), generator=generator)
        completion = replace(rollout.completion, logprobs=logprobs.tolist())
        drawn.append(replace(rollout, completion=completion))
    return drawn


def log_gradients(lm: PreTrainedModel, rollouts: Sequence[Rollout], temperature: float) -> list[dict[str, Tensor]]:
    """The oracle: one sequence, one plain backward, all parameters' gradients of its log-probability."""
    model, gradients = PolicyModel(lm, temperature), []
    for rollout in rollouts:
        lm.zero_grad()
        model(pack([rollout]))[0].sum().backward()
        gradients.append({name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None})
    lm.zero_grad()
    return gradients


def square_norm(gradient: dict[str, Tensor]) -> float:
    return sum(g.double().square().sum().item() for g in gradient.values())


def combine(gradients: Sequence[dict[str, Tensor]], coefficients: Sequence[float]) -> dict[str, Tensor]:
    return {
        name: sum(c * g[name].double() for g, c in zip(gradients, coefficients, strict=True)) for name in gradients[0]
    }


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The policy's in a finished run's folder."""
    return load_file(folder / "policy" / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def run_script(script: str, *overrides: str, cold: bool = False) -> subprocess.CompletedProcess[str]:
    """``python src/<script>`` with overrides, from the repository's root, as a user types it.

    Its process has imported already what all scripts import, unless it is to be ``cold``.
    """
    command, environment = [f"src/{script}", *overrides], {**os.environ, "PYTHONWARNINGS": "ignore"}
    if not cold:
        return warm.run(command, ROOT, environment, timeout=500)
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500
    )


@pytest.fixture(scope="session")
def pocket_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerEngine]:
    """A vLLM server with the pocket policy, which takes weights in small pieces; it takes long to start."""
    engine = ServerEngine(str(POCKET), "float32", 128, str(tmp_path_factory.mktemp("server") / "log"), piece_mib=0.1)
    engine.arguments += ["--worker-extension-cls", "slow_worker.SlowTransfer"]
    engine.environment["PYTHONPATH"] += os.pathsep + str(ROOT / "tests" / "helpers")
    engine.start()
    yield engine
    engine.close()


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``src/train.py experiment=pocket`` in a folder of its own; small and on the transformers engine."""

    def run(*overrides: str, folder: str = "run", cold: bool = False) -> subprocess.CompletedProcess[str]:
        return run_script("train.py", *SMALL, f"paths.output_dir={tmp_path / folder}", *overrides, cold=cold)

    return run


@pytest.fixture
def refused(tmp_path: Path, capfd, monkeypatch) -> Callable[..., subprocess.CompletedProcess[str]]:
    """As `train`, but in this process: for what ends before anything is loaded."""

    def run(*overrides: str) -> subprocess.CompletedProcess[str]:
        command = ["src/train.py", *SMALL, f"paths.output_dir={tmp_path / 'run'}", *overrides]
        with monkeypatch.context() as patch:
            patch.chdir(ROOT)
            patch.setattr(sys, "argv", command)
            patch.setenv("HYDRA_FULL_ERROR", "1")
            with pytest.raises(SystemExit) as end:
                launch("train", "oblr.commands.train")
        return subprocess.CompletedProcess(command, end.value.code, *capfd.readouterr())

    return run
