"""Every configuration file composes, and every ``_target_`` exists and takes the arguments that it is given."""

import inspect
import re

import pytest
from composing import composed
from conftest import ROOT
from hydra.core.hydra_config import HydraConfig
from hydra.errors import MissingConfigException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, ListConfig, OmegaConf
from test_composition import GROUPS as RUN

from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.commands.checks import check_engine
from oblr.errors import SettingError
from oblr.policy.loading import load_config
from oblr.schedules.snr import SNRSchedule
from oblr.settings.check import check_settings

CONF = ROOT / "conf"
#: test_composition.py runs every choice of the others.
GROUPS = sorted(
    f"{path.parent.name}={path.stem}"
    for path in CONF.glob("*/*.yaml")
    if path.parent.name not in ("experiment", *RUN) and path.stem != "base"
)
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
#: given by train.py
SUPPLIED = {"oblr.rollout.datamodule.RolloutDataModule": {"tokenizer", "end_ids", "vocabulary"}}


def check_targets(node: object, supplied: frozenset[str] = frozenset()) -> int:
    """Bind the arguments of every ``_target_`` below ``node``; returns how many there were."""
    if isinstance(node, list):
        return sum(check_targets(child) for child in node)
    if not isinstance(node, dict):
        return 0
    count = sum(check_targets(child) for child in node.values())
    if "_target_" in node:
        arguments = {key: value for key, value in node.items() if not (key.startswith("_") and key.endswith("_"))}
        signature = inspect.signature(get_object(node["_target_"]))
        bind = signature.bind_partial if node.get("_partial_") else signature.bind
        bind(**arguments, **dict.fromkeys(SUPPLIED.get(node["_target_"], ())))
        count += 1
    return count


def plain(cfg: DictConfig | ListConfig) -> object:
    return OmegaConf.to_container(cfg, resolve=True)


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_of_every_group(group):
    required = {
        "benchmarks=local": ["benchmarks.local.path=a.jsonl"],
        "data=local": ["data.path=a.jsonl", "data.held_out_path=b.jsonl"],
        **{f"benchmarks={name}": [f"benchmarks.{name}.path=a.jsonl"] for name in ("verl", "trl")},
        **{f"data={name}": ["data.path=a.jsonl", "data.held_out_path=b.jsonl"] for name in ("verl", "trl")},
        "reward=python": ["reward.path=math.sqrt"],
    }
    few = group.startswith("benchmarks=")
    cfg = composed(group, *required.get(group, []), *(["model=mine"] if few else []))
    check_settings(cfg, "eval" if few else "train")
    assert check_targets(plain(cfg)) > (5 if few else 10)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment(experiment):
    cfg = composed(f"experiment={experiment}")
    check_settings(cfg, "pretrain" if experiment.endswith("_base") else "train")
    assert check_targets(plain(cfg)) > 3
    text = (CONF / "experiment" / f"{experiment}.yaml").read_text().splitlines()
    assert text[0] == "# @package _global_"
    assert text[1].startswith("# python src/")
    assert text[1].endswith(f"experiment={experiment}")


SIZES = {
    "pocket": str(ROOT / "models" / "pocket"),
    "qwen3_4b": "Qwen/Qwen3-4B-Base",
    "qwen3_8b": "Qwen/Qwen3-8B-Base",
}


SOMEWHERE = "paths.output_dir=run"  # in place of a folder that is named after the time


@pytest.mark.parametrize("size", SIZES)
def test_the_papers_name_is_the_papers_method(size):
    """Theorem 7's baseline, leave-one-out by exact norms, and Theorem 4's rate from the current batch."""
    cfg = plain(composed(f"experiment=oblr_{size}", SOMEWHERE))
    assert (cfg["rollout"]["prompts_per_step"], cfg["rollout"]["group_size"]) == (128, 8)
    schedule = instantiate(cfg["schedule"])
    assert type(schedule) is SNRSchedule
    assert (schedule.eta0, schedule.estimator, schedule.floor, schedule.warm_up) == (1e-2, "plug_in", 0, 0)
    assert instantiate(cfg["baseline"]).__class__ is GradientWeightedBaseline
    assert cfg["baseline"]["form"] == "leave_one_out"
    assert cfg["gradnorm"]["tier"] == "exact"
    assert cfg["optimizer"]["_target_"] == "torch.optim.SGD"
    assert cfg["policy"]["path"] == SIZES[size]
    assert plain(composed(f"experiment=paper_{size}", SOMEWHERE)) == cfg


@pytest.mark.parametrize("size", ["qwen3_4b", "qwen3_8b", "qwen3_8b_lora"])
def test_what_is_recommended_differs_from_the_papers_in_the_schedule_alone(size):
    changed = composed(f"experiment=oblr_{size}", "schedule=linear_clipped", f"name=best_{size}", SOMEWHERE)
    assert plain(changed) == plain(composed(f"experiment=best_{size}", SOMEWHERE))


@pytest.mark.parametrize("name", ["seed_baseline", "seed_schedule", "seed_weights"])
def test_seed_experiments_run_at_the_papers_scale_by_one_override(name):
    cfg = composed(f"experiment=[oblr_qwen3_4b,{name}]")
    assert (cfg.name, cfg.policy.path, cfg.rollout.prompts_per_step) == (name, "Qwen/Qwen3-4B-Base", 128)
    assert check_targets(plain(cfg)) > 10
    assert OmegaConf.to_container(HydraConfig.get().sweeper.params) == OmegaConf.to_container(
        OmegaConf.load(CONF / "experiment" / f"{name}.yaml").hydra.sweeper.params
    )


def test_the_benchmark_chain_sum_is_what_the_demo_holds_out():
    benchmark = plain(composed("benchmarks=chain_sum"))["benchmarks"]["chain_sum"]
    held_out = plain(composed("data=chain_sum"))["data"]["held_out"]
    assert held_out.pop("prompt") == plain(composed("prompt=plain"))["prompt"]  # as none at all
    assert benchmark["problems"] == held_out
    assert benchmark["reward"] == plain(composed("reward=reasoning_gym"))["reward"]


SERVE = (ROOT / "slurm" / "serve.sbatch").read_text()


@pytest.mark.parametrize(
    "example",
    re.findall(r"sbatch (.*slurm/serve\.sbatch [^#\n]*)", SERVE + (ROOT / "docs" / "machines.md").read_text()),
)
def test_examples_of_serve_sbatch_ask_for_what_vllm_can_start(example):
    """A node's GPUs that do not train serve, and the policy's heads divide as the server wants them to."""
    options, _, words = example.partition("slurm/serve.sbatch")
    nodes, tasks, gpus = (
        int((re.search(rf"--{option}=(\d+)", options) or re.search(rf"#SBATCH --{option}=(\d+)", SERVE))[1])
        for option in ("nodes", "ntasks-per-node", "gpus-per-node")
    )
    overrides = [word for word in words.split() if not word.startswith("serving=")]
    serving = [*map(str, range(tasks if nodes == 1 else 0, gpus))]
    cfg = composed(*overrides, f"rollout.engines.server.gpus='{','.join(serving)}'")
    check_engine(load_config(str(CONF / "architecture" / cfg.policy.path)), "server", cfg.rollout.engines)
    engine = plain(cfg)["rollout"]["engines"]["server"]
    arguments = instantiate(engine)().arguments
    assert arguments[-2:] == ["--data-parallel-size", str(len(serving))]
    assert cfg.requires.gpus <= tasks
    assert nodes == 1 or tasks == gpus


@pytest.mark.parametrize(
    ("size", "fits"), [(1, True), (2, True), (3, False), (6, False), (8, True), (16, True), (64, False)]
)
def test_heads_are_shared_out_whole(size, fits):
    config = load_config(str(CONF / "architecture" / "Qwen" / "Qwen3-4B-Base"))
    engines = {"vllm": {"tensor_parallel_size": size}}
    if fits:
        return check_engine(config, "vllm", engines)
    setting = r"^rollout\.engines\.vllm\.tensor_parallel_size: "
    with pytest.raises(
        SettingError, match=setting + rf"{size} GPUs cannot share .* 32 .* 8 .*use 1, 2, 4, 8, 16, 32\)"
    ):
        check_engine(config, "vllm", engines)


def test_an_unknown_experiment_is_an_error():
    with pytest.raises(MissingConfigException, match="experiment/typo"):
        composed("experiment=typo")
