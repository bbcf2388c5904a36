"""Whole runs whose rollouts are ahead, with a real vLLM server."""

import pytest
import torch
from cases import wide
from conftest import ROOT, SMALL, run_script, same, weights
from kept_responses import read_rollouts
from lending import lent
from safetensors.torch import load_file

from oblr.record.curves import read_curves

RUN = ("rollout.engine=server", "callbacks.evaluation.every=2", "callbacks.checkpoints.every=1")


def problems(folder, steps):
    """Of each step, in order."""
    rows = [read_rollouts(folder / "rollouts", step) for step in range(1, steps + 1)]
    return [list(dict.fromkeys(row["problem"] for row in of_step)) for of_step in rows]


@pytest.fixture(scope="module")
def now(pocket_server, tmp_path_factory):
    """The problems of a run without it."""

    folder = tmp_path_factory.mktemp("now") / "run"
    with lent(pocket_server) as url:
        result = run_script("train.py", *SMALL, f"paths.output_dir={folder}", "steps=5", *RUN, *url)
    assert result.returncode == 0, result.stderr
    return problems(folder, 5)


@pytest.mark.parametrize("ahead", wide(1, 2))
def test_runs_are_as_old_as_was_asked_for_and_can_be_repeated(train, tmp_path, pocket_server, now, ahead):
    for folder in ("run", "again"):
        with lent(pocket_server) as url:
            result = train("steps=5", *RUN, *url, f"rollout.ahead={ahead}", folder=folder)
        assert result.returncode == 0, result.stderr
    curves, ages = read_curves(tmp_path / "run"), [min(t, ahead) for t in range(5)]
    assert curves["rollout/age"][1] == ages
    assert max(curves["rollout/logprob_gap_max"][1]) < 1e-3
    assert curves["rollout/ess"][1][0] == pytest.approx(1, abs=1e-4)
    assert max(curves["rollout/ess"][1][1:]) < 1
    for step, age in enumerate(ages, 1):
        assert {row["weight_version"] for row in read_rollouts(tmp_path / "run" / "rollouts", step)} == {step - age}
    assert problems(tmp_path / "run", 5) == now
    assert curves["eval/best"][0] == [0, 2, 4, 5]
    one, other = (load_file(tmp_path / run / "policy" / "model.safetensors") for run in ("run", "again"))
    assert all(torch.equal(other[name], weight) for name, weight in one.items())


@pytest.mark.wide
def test_a_killed_run_goes_on_and_trains_on_every_prompt_once(train, tmp_path, pocket_server, now, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "helpers"), prepend=":")
    with lent(pocket_server) as url:
        killed = train("steps=5", *RUN, *url, "rollout.ahead=2", "rollout.engines.server._target_=mortal.LastServer")
    assert killed.returncode not in (0, 2)
    done = len([*(tmp_path / "run" / "rollouts").iterdir()])
    assert 1 < done < 5
    own = "rollout.engines.server._target_=oblr.rollout.server.ServerEngine"
    with lent(pocket_server) as url:
        result = train("steps=5", *RUN, "rollout.ahead=2", "ckpt_path=last", *url, own)
    assert result.returncode == 0, result.stderr
    assert problems(tmp_path / "run", 5) == now
    assert read_curves(tmp_path / "run")["rollout/age"][0] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("target", "said"),
    wide(("CorruptingServer", ""), ("OffServer", "the mean of its tokens'")),
)
def test_a_stale_engine_is_found_out_at_the_sync_that_it_missed(train, pocket_server, monkeypatch, target, said):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "helpers"), prepend=":")
    with lent(pocket_server) as url:
        result = train("steps=3", *RUN, *url, f"rollout.engines.server._target_=stale.{target}", "rollout.ahead=1")
    assert result.returncode == 2, result.stderr
    (line,) = result.stderr.strip().splitlines()
    assert f"rollout engine is stale: after sync 2 {said}" in line  # by what is read back, or by the probe


@pytest.mark.wide
def test_places_of_prompts_that_teach_nothing_are_filled_and_no_prompt_comes_twice(train, tmp_path, pocket_server):
    """What fills them is of newer weights than the rest, and each token's probability is that under its own."""
    filled = ("baseline=rloo", "rollout.ahead=2", "rollout.refill=1", "callbacks.evaluation.every=5")
    for folder in ("run", "again"):
        with lent(pocket_server) as url:
            result = train("steps=5", *RUN, *url, *filled, folder=folder)
        assert result.returncode == 0, result.stderr
    rows = [read_rollouts(tmp_path / "run" / "rollouts", step) for step in range(1, 6)]
    of_steps = problems(tmp_path / "run", 5)
    trained = [name for names in of_steps for name in names]
    assert len({*trained}) == len(trained) == sum(map(len, of_steps))
    curves = read_curves(tmp_path / "run")
    assert sum(curves["rollout/refilled"][1]) > 0
    several = 0
    for step, (of_step, mean) in enumerate(zip(rows, curves["rollout/age"][1], strict=True), 1):
        ages = {step - row.get("weight_versions", [[row["weight_version"]]])[0][0] for row in of_step}
        assert min(ages) <= mean <= max(ages) == min(step - 1, 2)
        several += len(ages) > 1
    assert several > 0
    assert max(curves["rollout/logprob_gap_max"][1]) < 1e-3
    assert same(weights(tmp_path / "run"), weights(tmp_path / "again"))


@pytest.mark.wide
def test_prompts_of_a_batch_beyond_the_bound_are_sampled_again(train, tmp_path, pocket_server, now):
    """Whatever is of older weights is: every second step learns nothing, and its prompts come in the next one."""
    moving = ("baseline=gradient_weighted", "schedule=noise_linear", "eta0=0.03")  # further than the bound each time
    settings = (
        *moving,
        "rollout.ahead=1",
        "policy.max_noise=1.000001",
        "policy.beyond=again",
        "callbacks.evaluation.every=9",
    )
    with lent(pocket_server) as url:
        result = train("steps=5", *RUN, *url, *settings)
    assert result.returncode == 0, result.stderr
    curves = read_curves(tmp_path / "run")
    assert curves["rollout/age"][1] == [0, 1, 0, 1, 0]
    assert curves["train/dropped"][1] == [0, 1, 1, 2, 2]
    of_steps = problems(tmp_path / "run", 5)
    assert of_steps == [now[0], now[1], now[1], now[2], now[2]]


@pytest.mark.wide
@pytest.mark.parametrize("refill", [0, 1])
def test_two_ranks_share_a_server(train, tmp_path, pocket_server, now, refill):
    ranks = ("trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=2")
    ahead = ("baseline=rloo", "rollout.ahead=2", "rollout.refill=1") if refill else ("rollout.ahead=1",)
    with lent(pocket_server) as url:
        result = train("steps=4", *RUN, *ranks, *url, *ahead)
    assert result.returncode == 0, result.stderr
    curves, of_steps = read_curves(tmp_path / "run"), problems(tmp_path / "run", 4)
    assert max(curves["rollout/logprob_gap_max"][1]) < 1e-3
    if refill:
        assert sum(curves["rollout/refilled"][1]) > 0
        assert len({name for names in of_steps for name in names}) == sum(map(len, of_steps))
    else:
        assert curves["rollout/age"][1] == [0, 1, 1, 1]
        assert [sorted(of_step) for of_step in of_steps] == [sorted(of_step) for of_step in now[:4]]


@pytest.mark.servers
def test_a_worker_that_is_killed_under_way_costs_no_prompt(train, tmp_path, monkeypatch):
    """In the midst of the batch that is ahead; the server goes with it."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "helpers"), prepend=":")
    settings = ("~callbacks.evaluation", "rollout.engines.server._target_=mortal.MortalServer", "rollout.ahead=1")
    result = train("steps=3", *RUN[:1], *settings)
    assert result.returncode == 0, result.stderr
    (warning,) = [line for line in result.stdout.splitlines() if line.startswith("warning")]
    assert "step 2 is repeated" in warning
    assert read_curves(tmp_path / "run")["rollout/age"][1] == [0, 0, 1]
