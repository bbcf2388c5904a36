"""A vLLM server beside the run: what it is asked for, and what happens when it, the run or a transfer fails."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from cases import wide
from conftest import POCKET, ROOT
from lending import lent
from safetensors.torch import load_file
from test_engines import largest_gap, problems, sampling, seeds_of  # noqa: F401

import oblr.rollout.deadline
from oblr.errors import EngineDiedError, SettingError, StaleEngineError, SyncTimeoutError
from oblr.policy.loading import load_model, load_tokenizer
from oblr.policy.model import PolicyModel
from oblr.record.curves import read_curves
from oblr.rollout.client import Refused
from oblr.rollout.deadline import deadline
from oblr.rollout.process import ServerProcess
from oblr.rollout.readback import NotedWeights
from oblr.rollout.senders import pieces
from oblr.rollout.server import ServerEngine
from oblr.run.manifest import by_age

RUN = ("rollout.engine=server", "~callbacks.evaluation")


@pytest.fixture
def engine(pocket_server):
    return pocket_server


@pytest.fixture
def model(engine):
    """The pocket policy, which the engine has."""
    model = PolicyModel(load_model(str(POCKET), "float32"), 1.0)
    engine.sync(model.weights(), 1)
    return model


@pytest.fixture
def tokenizer():
    return load_tokenizer(str(POCKET))


def changed(model):
    torch.manual_seed(1)
    for p in model.parameters():
        p.data += 0.03 * torch.randn_like(p)
    return model


def test_order_and_company_of_requests_do_not_matter(engine, model, problems, tokenizer):  # noqa: F811
    prompts = [tokenizer.encode(p.prompt) for p in problems]
    seeds = seeds_of(prompts, 1)
    together = engine.generate(prompts, sampling(tokenizer), seeds)
    assert engine.generate(prompts[:5], sampling(tokenizer), seeds[:5]) == together[:5]
    assert engine.generate(prompts[:1], sampling(tokenizer), seeds[:1]) == together[:1]
    assert engine.generate([prompts[0]] * 2, sampling(tokenizer), seeds[:2])[1] != together[0]


def test_weights_of_another_version_are_found_out(engine, model, problems, tokenizer):  # noqa: F811
    engine.server.post("/update_weight_version", new_version="77")
    with pytest.raises(EngineDiedError, match="version 77, not 1"):
        largest_gap(model, engine, problems, tokenizer, 1.0)


def test_altered_weights_are_found_out(engine, model, problems, tokenizer):  # noqa: F811
    def altered(value):
        for name, weight in model.weights():
            if name == "model.layers.2.mlp.down_proj.weight":
                weight = weight.clone()
                weight[0, 0] = value
            yield name, weight

    engine.sync(altered(3.0), 2)
    assert largest_gap(model, engine, problems, tokenizer, 1.0) > 0.1
    with pytest.raises(Refused, match=r"/update_weights: 500 .*down_proj.weight is not finite"):
        engine.sync(altered(float("nan")), 3)


def test_what_it_computes_with_is_read_back(engine, model):
    """Another run, say, may have given it weights of its own."""
    weights = NotedWeights(model.weights(), "float32", 1, 2)
    engine.sync(weights, 2)
    weights.compare(engine.read(weights.blocks))
    with torch.no_grad():
        model.lm.model.layers[1].mlp.up_proj.weight *= 1 + 1e-6
    engine.sync(model.weights(), 2)
    with pytest.raises(StaleEngineError, match=r"has other numbers .* model\.layers\.1\.mlp\.up_proj\.weight$"):
        weights.compare(engine.read(weights.blocks))


def test_an_update_that_was_left_open_does_not_spoil_the_next(engine, model, problems, tokenizer):  # noqa: F811
    other = changed(PolicyModel(load_model(str(POCKET), "float32"), 1.0))
    engine.server.post("/start_weight_update")
    some = pieces(other.weights(), 300_001)
    for _ in range(3):
        engine.server.post("/update_weights", update_info=next(some))
    engine.sync(model.weights(), 2)  # as the next run would do
    assert largest_gap(model, engine, problems, tokenizer, 1.0) < 1e-3


def test_a_cache_of_old_weights_is_dropped_or_refused(engine, model, monkeypatch):
    asked, post = [], engine.server.post

    def busy(path, **given):
        asked.append(path)
        return {"success": False} if path == "/reset_prefix_cache" else post(path, **given)

    with monkeypatch.context() as patch:
        patch.setattr(engine.server, "post", busy)
        with pytest.raises(EngineDiedError, match="keeps a cache of its old weights"):
            engine.sync(model.weights(), 2)
    assert asked[-2:] == ["/finish_weight_update", "/reset_prefix_cache"]
    assert post("/reset_prefix_cache") == {"success": True}


def test_half_an_update_is_refused(engine, model):
    names = dict(model.weights())
    del names["model.norm.weight"]
    engine.server.post("/start_weight_update")
    engine.server.post("/update_weights", update_info=next(pieces(names.items(), 300_001)))
    with pytest.raises(Refused, match="/finish_weight_update"):
        engine.server.post("/finish_weight_update", weight_version="9")


def test_a_sync_with_a_server_that_hangs_ends_in_time(engine, model, problems, tokenizer, monkeypatch):  # noqa: F811
    monkeypatch.setattr(oblr.rollout.deadline, "GRACE", 600)  # it is interrupted, however busy the machine is
    group = engine.process.process.pid
    os.killpg(group, signal.SIGSTOP)
    start, error = time.monotonic(), SyncTimeoutError("too late")
    with pytest.raises(SyncTimeoutError, match="too late"), deadline(1.0, error):
        engine.sync(model.weights(), 2)
    assert time.monotonic() - start >= 1.0
    os.killpg(group, signal.SIGCONT)
    assert engine.weight_version is None
    engine.sync(changed(model).weights(), 3)
    assert largest_gap(model, engine, problems, tokenizer, 1.0) < 1e-3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "other"}, r"policy\.path: .*has model .*pocket, not .*other"),
        ({"dtype": "bfloat16"}, r"policy\.dtype: .*has dtype torch\.float32, not torch\.bfloat16"),
        ({"max_model_len": 64}, r"rollout\.max_model_len: .*has max_model_len 128, not 64"),
        ({"transfer": "nccl"}, r"rollout\.engines\.server\.transfer: there is no GPU here"),
        ({"transfer": "pigeon"}, r"rollout\.engines\.server\.transfer: 'pigeon'"),
        ({"url": "localhost:8000"}, r"rollout\.engines\.server\.url: localhost:8000 is no address"),
        (
            {"url": "http://127.0.0.1:9"},
            r"rollout\.engines\.server\.url: no vLLM .*OBLR_SERVER_TOKEN_FILE=.* VLLM_SERVER_DEV_MODE=1 .*python",
        ),
    ],
)
def test_servers_that_cannot_be_used(engine, settings, message):
    given = {"model": str(POCKET), "dtype": "float32", "max_model_len": 128, "log": "log", "url": engine.server.url}
    given["token_file"] = str(engine.process.token)
    with pytest.raises(SettingError, match=f"^{message}"):
        ServerEngine(**given | settings)


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="two copies of the policy need two GPUs, or none")
@pytest.mark.servers
def test_all_copies_of_the_policy_get_new_weights(tmp_path, model, problems, tokenizer, monkeypatch):  # noqa: F811
    """A server with two GPUs has two, which are processes here; requests are shared out to them."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "helpers"), prepend=":")
    settings = {"gpus": "0,1", "gpu_memory_utilization": 0.4, "transfer": "http"}
    copies = ServerEngine(str(POCKET), "float32", 128, str(tmp_path / "log"), **settings)
    copies.arguments += ["--worker-extension-cls", "stale_copy.SpoiledTransfer"]
    copies.start()
    try:
        other = changed(PolicyModel(load_model(str(POCKET), "float32"), 1.0))
        copies.sync(other.weights(), 1)
        assert largest_gap(other, copies, problems, tokenizer, 1.0) < 1e-3
        metrics = copies.server.text("/metrics")
        tokens = re.findall(r'^vllm:generation_tokens_total{engine="(\d)".* (\S+)$', metrics, re.M)
        assert [engine for engine, count in tokens if float(count) > 0] == ["0", "1"]
        weights = NotedWeights(model.weights(), "float32", 1, 2)
        copies.sync(weights, 2)
        weights.compare(copies.read(weights.blocks))
        copies.server.post("/collective_rpc", method="spoil_second_copy")
        with pytest.raises(StaleEngineError, match=r"2 copies differ: .* has other numbers than the first"):
            copies.read(weights.blocks)
    finally:
        copies.close()


@pytest.mark.wide
def test_a_corrupted_transfer_ends_the_run(train, tmp_path, engine, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "helpers"), prepend=":")
    target = "rollout.engines.server._target_=stale.CorruptingServer"
    with lent(engine) as url:
        result = train("steps=3", *RUN, *url, target, "callbacks.checkpoints.every=1")
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.strip().splitlines()
    assert "rollout engine is stale: after sync 2" in line
    (kept,) = by_age(tmp_path / "run" / "checkpoints")
    assert kept.name == "step-00001.ckpt"


@pytest.mark.wide
def test_two_ranks_share_a_server(train, tmp_path, engine):
    ranks = ("trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=2")
    with lent(engine) as url:
        result = train("steps=2", *RUN, *ranks, *url)
    assert result.returncode == 0, result.stderr
    assert max(read_curves(tmp_path / "run")["rollout/logprob_gap_max"][1]) < 1e-3


@pytest.mark.servers
def test_a_killed_worker_changes_nothing(train, tmp_path, engine, monkeypatch):
    """It is killed in the midst of a generation, and takes the server with it; the soak kills servers, too."""
    with lent(engine) as url:
        undisturbed = train("steps=3", *RUN, *url, folder="undisturbed")
    assert undisturbed.returncode == 0, undisturbed.stderr
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "helpers"), prepend=":")
    result = train("steps=3", *RUN, "rollout.engines.server._target_=mortal.MortalServer")
    assert result.returncode == 0, result.stderr
    warnings = [line for line in result.stdout.splitlines() if line.startswith("warning")]
    assert len(warnings) == 1
    for words in ("step 2 is repeated", "/inference/v1/generate: 500", "server.log"):
        assert words in warnings[0]
    same, found = (load_file(tmp_path / run / "policy" / "model.safetensors") for run in ("undisturbed", "run"))
    assert all(torch.equal(found[name], weight) for name, weight in same.items())
    with pytest.raises(ProcessLookupError):
        os.killpg(int((tmp_path / "run" / "group").read_text()), 0)


def lingering(log: Path) -> list[int]:
    """The processes of ``lingering.py``."""
    while not log.exists() or not log.read_text().endswith("\n"):
        time.sleep(0.05)
    return [int(pid) for pid in log.read_text().split()]


def wait_for_death(processes: list[int]) -> None:
    for _ in range(200):
        for pid in list(processes):
            with suppress(FileNotFoundError):
                if " Z " not in Path(f"/proc/{pid}/stat").read_text():
                    break
            processes.remove(pid)
        if not processes:
            return
        time.sleep(0.05)
    raise AssertionError(f"{processes} live on")


@pytest.mark.parametrize("dies", ["run", *wide("server", "stopped")])
def test_nothing_of_a_server_is_left_behind(tmp_path, dies):
    log, environment = tmp_path / "log", {"PYTHONPATH": str(ROOT / "tests" / "helpers")}
    if dies == "run":
        start = f"ServerProcess(['lingering'], {environment}, Path({str(log)!r})); time.sleep(1000)"
        code = f"import time; from pathlib import Path; from oblr.rollout.process import ServerProcess; p = {start}"
        run = subprocess.Popen([sys.executable, "-c", code])
        processes = lingering(log)
        run.kill()
        run.wait()
    else:
        process = ServerProcess(["lingering"], environment, log)
        processes = lingering(log)
        process.stop() if dies == "stopped" else os.kill(processes[0], signal.SIGKILL)
    wait_for_death(processes)


def test_a_server_that_ends_while_it_starts(tmp_path):
    process = ServerProcess(["no_such_module"], {}, tmp_path / "log")
    with pytest.raises(EngineDiedError, match=f"ended while it started; see {tmp_path / 'log'}"):
        process.wait(300)
    assert "no_such_module" in (tmp_path / "log").read_text()
