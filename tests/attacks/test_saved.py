"""Attacks by what is saved: checkpoints, policies' folders, folders of evaluations and of runs, clocks and second runs.

What is planted makes the folder ``marker`` where it runs.
"""

import hashlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
import warm
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

ROOT = Path(__file__).resolve().parents[2]
POCKET = ROOT / "models" / "pocket"
#: A run of seconds.
SMALL = (
    *("experiment=pocket", "rollout.engine=hf", "rollout.prompts_per_step=4", "rollout.max_new_tokens=24"),
    *("data.held_out.size=8", "~callbacks.summary"),
)
TWO = (*SMALL, "steps=2", "callbacks.checkpoints.every=1", "callbacks.checkpoints.keep=9")


def run_script(script, *overrides):
    """As it is typed, in a process that has imported already."""
    return warm.run([f"src/{script}", *overrides], ROOT, {**os.environ, "PYTHONWARNINGS": "ignore"}, timeout=500)


class Evil:
    """A pickle of it makes a folder when it is read."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two steps, with a checkpoint of each."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    done = run_script("train.py", *TWO, f"paths.output_dir={folder}")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it, as somebody else may hand it on."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "it-ran"


def newest(run):
    return run / "checkpoints" / "step-00002.ckpt"


def sealed(checkpoint, **names):
    """Give a checkpoint a manifest that fits what lies there; ``names`` are further entries."""
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    files = manifest.get("files", manifest)
    for name in [*files, *names]:
        content = (checkpoint / name).read_bytes()
        files[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    path.write_text(json.dumps(manifest))


def resume(run, *typed, how="last"):
    return run_script("train.py", f"paths.output_dir={run}", f"ckpt_path={how}", "steps=3", *typed)


def refused(done, marker=None):
    """The one line that has ended a command."""
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert marker is None or not marker.exists()
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_pickle_in_the_description_of_tensors(run, marker, stopped):
    """A checkpoint whose .metadata is a pickle that runs a command, with digests that fit."""
    (newest(run) / ".metadata").write_bytes(pickle.dumps(Evil(marker)))
    sealed(newest(run))
    line = refused(resume(run), marker)
    assert "asks for posix.mkdir" in line
    stopped(line)


def test_pickle_in_place_of_a_tensor(run, marker, stopped):
    """A .metadata by which a weight is no tensor but an object, which torch unpickles without restriction."""
    checkpoint = newest(run)
    metadata = pickle.loads((checkpoint / ".metadata").read_bytes())
    name = next(iter(metadata.state_dict_metadata))
    payload = checkpoint / "__0_0.distcp"
    torch_file = checkpoint / "__9_0.distcp"
    torch.save(Evil(marker), torch_file)
    index = dcp.metadata.MetadataIndex(name)
    metadata.state_dict_metadata[name] = BytesStorageMetadata()
    metadata.storage_data[index] = _StorageInfo(torch_file.name, 0, torch_file.stat().st_size)
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))
    sealed(checkpoint, **{torch_file.name: 0})
    assert payload.exists()
    line = refused(resume(run), marker)
    assert "BytesStorageMetadata" in line
    stopped(line)


def test_tensor_from_another_file(run, tmp_path, stopped):
    """A .metadata by which a weight lies in a file elsewhere on the machine."""
    checkpoint = newest(run)
    shutil.copy(checkpoint / "__0_0.distcp", tmp_path / "elsewhere")
    metadata = pickle.loads((checkpoint / ".metadata").read_bytes())
    for place in metadata.storage_data.values():
        place.relative_path = "../../../elsewhere"
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))
    sealed(checkpoint)
    line = refused(resume(run))
    assert "none of the checkpoint's files" in line
    stopped(line)


def test_pickle_beside_the_tensors(run, marker, stopped):
    """A checkpoint whose meta.pt runs a command when it is unpickled, with digests that fit."""
    torch.save({"oblr": Evil(marker)}, newest(run) / "meta.pt")
    sealed(newest(run))
    line = refused(resume(run), marker)
    assert "meta.pt that no run writes" in line
    stopped(line)


@pytest.mark.parametrize("kind", ["a name that leads out", "a link", "a name of a folder", "numbers that are none"])
def test_manifest(run, tmp_path, stopped, kind):
    """A manifest that leads the reader elsewhere."""
    checkpoint = newest(run)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    files = manifest.get("files", manifest)
    shutil.copy(checkpoint / "meta.pt", tmp_path / "meta.pt")
    if kind == "a name that leads out":
        files["../../../meta.pt"] = files["meta.pt"]
    elif kind == "a link":
        (checkpoint / "meta.pt").unlink()
        (checkpoint / "meta.pt").symlink_to(tmp_path / "meta.pt")
    elif kind == "a name of a folder":
        files["."] = files["meta.pt"]
    else:
        files["meta.pt"]["size"] = str(files["meta.pt"]["size"])
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    line = refused(resume(run))
    assert "is not a complete checkpoint" in line
    assert f"ckpt_path={run / 'checkpoints' / 'step-00001.ckpt'}" in line
    stopped(line)


def planted(run, change):
    """Change what the newest checkpoint says that its run was told, and seal it."""
    path = newest(run) / "meta.pt"
    kept = torch.load(path, weights_only=True)
    change(kept["oblr"]["run"])
    torch.save(kept, path)
    sealed(newest(run))


def section(marker):
    """What, instantiated, makes the marker; by ways that lead there."""
    make = {"_target_": "os.mkdir", "path": str(marker)}
    return {
        "a function": make,
        "Hydra's own": {"_target_": "hydra.utils.instantiate", "config": make},
        "deep inside": {"_target_": "oblr.rewards.weighted_sum.WeightedSum", "parts": {"a": {"b": [{"c": make}]}}},
        "eval": {"_target_": "builtins.eval", "_args_": [f"__import__('os').mkdir({str(marker)!r})"]},
        "a shell": {"_target_": "subprocess.call", "args": ["mkdir", str(marker)]},
        "a function of ours": {"_target_": "oblr.commands.snapshot.take_snapshot", "folder": str(marker)},
    }


WAYS = list(section(""))


@pytest.mark.parametrize("way", WAYS)
def test_settings_of_a_checkpoint(run, marker, stopped, way):
    """A checkpoint whose settings name something to run as a callback."""

    def change(kept):
        kept["overrides"].append(f"+callbacks.mine={{_target_: {section(marker)[way]['_target_']}}}")
        for name in ("told", "config"):
            kept[name]["callbacks"]["mine"] = section(marker)[way]

    planted(run, change)
    line = refused(resume(run), marker)
    assert "which neither the command line nor a file of yours names" in line
    stopped(line)


@pytest.mark.parametrize("argument", ["path", "_args_"])
def test_reward_of_a_checkpoint(run, marker, stopped, argument):
    """A checkpoint whose reward is a function that is found by its path."""

    def change(kept):
        for name in ("told", "config"):
            value = "os.system" if argument == "path" else ["os.system"]
            kept[name]["reward"] = {"_target_": "hydra.utils.get_method", argument: value}

    planted(run, change)
    line = refused(resume(run), marker)
    assert "os.system" in line
    stopped(line)


def test_what_is_typed_may_run(run, marker):
    """A checkpoint's class of the user's own, which the user names again: the other side of the attacks before."""

    def change(kept):
        for name in ("told", "config"):
            kept[name]["callbacks"]["mine"] = {"_target_": "lightning.pytorch.callbacks.DeviceStatsMonitor"}
        kept["overrides"].append("+callbacks.mine={_target_: lightning.pytorch.callbacks.DeviceStatsMonitor}")

    planted(run, change)
    typed = refused(resume(run)).rpartition("or ")[2].partition(")")[0]
    assert typed == "callbacks.mine._target_=lightning.pytorch.callbacks.DeviceStatsMonitor"
    done = resume(run, typed)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "written", ["${oc.env:OBLR_SECRET}", "${${name}:OBLR_SECRET}", "${oc.decode:${oc.env:OBLR_SECRET}}"]
)
def test_secrets_by_a_checkpoint(run, stopped, monkeypatch, written):
    """A checkpoint whose settings read a secret from the environment, into the folder that is handed on."""
    monkeypatch.setenv("OBLR_SECRET", "f00f-c7c8")

    def change(kept):
        kept["overrides"].append(f"experiment='{written}'" if "name" not in written else "seed=1")
        kept["told"]["experiment"] = written
        kept["told"]["name"] = "oc.env"

    planted(run, change)
    done = resume(run)
    assert not any("f00f-c7c8" in path.read_text(errors="replace") for path in run.rglob("*.yaml"))
    line = refused(done)
    assert "f00f-c7c8" not in line
    stopped(line)


# --- evaluations and reports ------------------------------------------------------------------------------------------


@pytest.fixture
def evaluated(tmp_path):
    """A finished evaluation as somebody else may hand it on; its configuration is still to be written."""
    folder = tmp_path / "evaluated"
    folder.mkdir()
    row = {
        **{"id": "0", "prompt": "1 + 1 =", "answer": "2", "responses": ["2"], "answers": ["2"], "rewards": [1.0]},
        **{"lengths": [1], "finished": [True], "outcomes": ["scored"], "parts": [{}]},
    }
    (folder / "sums.jsonl").write_text(json.dumps(row) + "\n")
    settings = {"model": "m", "problems": 1, "chunk": 1, "digest": "0", "samples": 1, "temperature": 1.0}
    summary = {"figures": {"mean": {"mean": 1.0, "low": 1.0, "high": 1.0}}, "k": [1], "settings": settings}
    (folder / "sums.json").write_text(json.dumps(summary))
    return folder


def rescored(evaluated, benchmark):
    (evaluated / "config.yaml").write_text(json.dumps({"benchmarks": {"sums": benchmark}}))
    return run_script("eval.py", f"rescore={evaluated}", "reward=exact", f"paths.output_dir={evaluated.parent / 'out'}")


@pytest.mark.parametrize("way", WAYS)
def test_settings_of_an_evaluation(evaluated, marker, stopped, way):
    """eval.py rescore= of a folder whose configuration names something to run."""
    own = {"_target_": "oblr.evaluation.attempts.Benchmark", "problems": section(marker)[way], "max_new_tokens": 1}
    line = refused(rescored(evaluated, own), marker)
    assert "which neither the command line nor a file of yours names" in line
    stopped(line)


def test_objects_in_the_yaml_of_an_evaluation(evaluated, marker, stopped):
    """eval.py rescore= of a folder whose YAML makes objects when it is read."""
    (evaluated / "config.yaml").write_text(f"benchmarks: !!python/object/apply:os.mkdir ['{marker}']\n")
    done = run_script("eval.py", f"rescore={evaluated}", f"paths.output_dir={evaluated.parent / 'out'}")
    line = refused(done, marker)
    stopped(line)


def test_report_on_a_hostile_folder(run, marker, stopped):
    """report.py of a run whose YAML makes objects when it is read."""
    (run / "config.yaml").write_text(f"name: !!python/object/apply:os.mkdir ['{marker}']\n")
    line = refused(run_script("report.py", str(run)), marker)
    assert "no plain YAML" in line
    stopped(line)


def test_model_from_a_hostile_run(run, marker, stopped):
    """eval.py model= of a run's exported policy, beside a configuration of that run which names something to run."""
    (run / "config.yaml").write_text(json.dumps({"benchmarks": section(marker)["a function"]}))
    shutil.move(run / "policy" / "model.safetensors", run / "elsewhere")
    torch.save({"a": Evil(marker)}, run / "policy" / "pytorch_model.bin")
    line = refused(run_script("eval.py", f"model={run / 'policy'}", f"paths.output_dir={run.parent / 'out'}"), marker)
    assert "pickled" in line
    stopped(line)


# --- policies ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def policy(tmp_path):
    return Path(shutil.copytree(POCKET, tmp_path / "policy"))


ROUTES = {
    "policy": ("train.py", "policy.path={}"),
    "server": ("train.py", "rollout.engine=server", "rollout.engines.server.model={}"),
    "vllm": ("train.py", "rollout.engine=vllm", "rollout.engines.vllm.model={}"),
    "reference": ("train.py", "policy.path={}", "kl=k3"),
    "lora": ("train.py", "policy.path={}", "policy.adapter=lora"),
    "evaluation": ("eval.py", "model={}"),
}


def by_route(route, policy, out):
    script, *typed = ROUTES[route]
    small = SMALL if script == "train.py" else ()
    return run_script(script, *small, *(own.format(policy) for own in typed), f"paths.output_dir={out}")


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.pt"])
@pytest.mark.parametrize("route", ROUTES)
def test_pickled_weights(policy, marker, tmp_path, stopped, route, file):
    """A policy whose only weights are a pickle that runs a command."""
    (policy / "model.safetensors").unlink()
    (policy / file).write_bytes(pickle.dumps(Evil(marker)))
    line = refused(by_route(route, policy, tmp_path / "run"), marker)
    assert "pickled" in line
    stopped(line)


def with_code(policy, file, marker, **classes):
    """Name a Python file in a policy's folder as its class."""
    (policy / "mine.py").write_text(f"import os\nos.mkdir({str(marker)!r})\nclass Mine: ...\n")
    content = json.loads((policy / file).read_text())
    (policy / file).write_text(json.dumps(content | {"auto_map": classes}))


@pytest.mark.parametrize("route", ["policy", "server", "evaluation"])
def test_code_in_a_policys_folder(policy, marker, tmp_path, stopped, route):
    """A policy whose folder names a Python file of its own as its class."""
    with_code(policy, "config.json", marker, AutoConfig="mine.Mine", AutoModelForCausalLM="mine.Mine")
    content = json.loads((policy / "config.json").read_text())
    (policy / "config.json").write_text(json.dumps(content | {"model_type": "mine"}))
    line = refused(by_route(route, policy, tmp_path / "run"), marker)
    stopped(line)


def test_code_of_a_tokenizer(policy, marker, tmp_path, stopped):
    """A policy whose folder names a Python file of its own as its tokenizer's class."""
    with_code(policy, "tokenizer_config.json", marker, AutoTokenizer=["mine.Mine", "mine.Mine"])
    done = run_script("train.py", *SMALL, f"policy.path={policy}", "steps=1", f"paths.output_dir={tmp_path / 'run'}")
    assert done.returncode in (0, 2), done.stderr
    assert not marker.exists()
    stopped("trust_remote_code=False: tokenizer.json is read, and the file is not")


def test_what_lies_beside_whole_weights(policy, marker, tmp_path, stopped):
    """Pickles and code beside whole safetensors: optimizer.pt, training_args.bin, adapter_model.bin, generate.py."""
    for name in ("optimizer.pt", "training_args.bin", "adapter_model.bin", "pytorch_model.bin", "scheduler.pt"):
        (policy / name).write_bytes(pickle.dumps(Evil(marker)))
    (policy / "custom_generate").mkdir()
    (policy / "custom_generate" / "generate.py").write_text(f"import os\nos.mkdir({str(marker)!r})\n")
    done = run_script("train.py", *SMALL, f"policy.path={policy}", "steps=1", f"paths.output_dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert not marker.exists()
    stopped("nothing reads them: the run took model.safetensors alone")


@pytest.mark.parametrize("kind", ["a script", "a pickle"])
def test_code_in_a_data_sets_folder(tmp_path, marker, stopped, kind):
    """A data set's folder with code to load it."""
    folder = tmp_path / "problems"
    folder.mkdir()
    if kind == "a script":
        (folder / "problems.py").write_text(f"import os\nos.mkdir({str(marker)!r})\n")
    else:
        (folder / "train.pkl").write_bytes(pickle.dumps(Evil(marker)))
    typed = ("data=local", f"data.path={folder}", f"data.held_out_path={folder}")
    line = refused(run_script("train.py", *SMALL, *typed, f"paths.output_dir={tmp_path / 'run'}"), marker)
    stopped(line)


# --- clocks, damage, and a second run ---------------------------------------------------------------------------------


def later(folder, hours=1):
    """As a clock that is set back leaves a folder."""
    for path in [folder, *folder.rglob("*")]:
        found = path.stat()
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + int(hours * 3600e9)))


def test_a_clock_that_is_set_back(run, stopped):
    """The clock goes back an hour before a run goes on, and again before it goes on once more."""
    for steps in (4, 6):
        later(run)
        done = run_script("train.py", f"paths.output_dir={run}", "ckpt_path=last", f"steps={steps}", *KEEP)
        assert done.returncode == 0, done.stderr
        assert f"step-{steps - 2:05d}.ckpt" in done.stdout
        saved = sorted(path.name for path in (run / "checkpoints").glob("*.ckpt"))
        assert saved == [f"step-{step:05d}.ckpt" for step in (steps - 1, steps)]
    stopped("checkpoints go by the run's number and their step: step 6 is the newest, step 5 the one before it")


KEEP = ("callbacks.checkpoints.keep=2",)


@pytest.mark.parametrize("kind", ["a bit", "the end", "the manifest"])
def test_a_damaged_checkpoint(run, stopped, kind):
    """The newest checkpoint is damaged, and the run is told to go on by itself."""
    checkpoint = newest(run)
    file = checkpoint / ("manifest.json" if kind == "the manifest" else "__0_0.distcp")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content) if kind == "a bit" else bytes(content)[:-100])
    before = run / "checkpoints" / "step-00001.ckpt"
    line = refused(resume(run))
    assert f"ckpt_path={before}" in line
    done = resume(run, how="auto")
    assert done.returncode == 0, done.stderr
    (said,) = [line for line in done.stderr.splitlines() if "going on from the one before" in line]
    assert f"resuming    {before}" in done.stdout
    stopped(said)


def test_a_run_that_has_gone_back(run, stopped):
    """A run goes on from an earlier checkpoint than its newest, which is neither deleted nor taken for newer."""
    first = run / "checkpoints" / "step-00001.ckpt"
    shutil.copytree(newest(run), run / "checkpoints" / "step-00009.ckpt")
    manifest = json.loads((run / "checkpoints" / "step-00009.ckpt" / "manifest.json").read_text())
    (run / "checkpoints" / "step-00009.ckpt" / "manifest.json").write_text(json.dumps(manifest | {"step": 9}))
    done = run_script("train.py", f"paths.output_dir={run}", f"ckpt_path={first}", "steps=4", *KEEP)
    assert done.returncode == 0, done.stderr
    saved = sorted(path.name for path in (run / "checkpoints").glob("*.ckpt"))
    assert saved == [f"step-{step:05d}.ckpt" for step in (3, 4, 9)]
    later(run / "checkpoints" / "step-00009.ckpt")
    done = run_script("train.py", f"paths.output_dir={run}", "ckpt_path=last", "steps=5", *KEEP)
    assert "step-00004.ckpt" in done.stdout
    stopped("the later step stays, and ckpt_path=last takes the latest step of the latest attempt")


def test_a_second_training_in_a_folder(run, tmp_path, stopped):
    """A second training in the folder of one that runs, and in one whose checkpoints it shares; then kill -9."""
    saving = run / "checkpoints"
    command = [sys.executable, "src/train.py", f"paths.output_dir={run}", "ckpt_path=last", "steps=500", *KEEP]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    first = warm.popen()(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    try:
        while first.poll() is None and not (saving / "step-00004.ckpt").exists():
            time.sleep(0.01)
        before = sorted(path.name for path in run.iterdir())
        line = refused(resume(run))
        assert f"process {first.pid} on {os.uname().nodename} (since " in line
        assert sorted(path.name for path in run.iterdir()) == before
        other = tmp_path / "other"
        shared = f"callbacks.checkpoints.dirpath={saving}"
        elsewhere = refused(run_script("train.py", *SMALL, "steps=1", f"paths.output_dir={other}", shared))
        assert f"callbacks.checkpoints.dirpath: process {first.pid} on " in elsewhere
        assert not other.exists() or not (other / "run.json").exists()
        assert first.poll() is None
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    done_before = max(int(path.stem.rpartition("-")[2]) for path in saving.glob("*.ckpt"))
    done = run_script("train.py", f"paths.output_dir={run}", "ckpt_path=last", f"steps={done_before + 1}", *KEEP)
    assert done.returncode == 0, done.stderr
    stopped(line)
