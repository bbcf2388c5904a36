"""New weights in the midst of responses of a real vLLM server, and whole runs that have them so."""

# ruff: noqa: F811 (fixtures of other tests)

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cases import wide
from conftest import POCKET, ROOT, same, weights
from kept_responses import read_rollouts
from lending import lent
from test_ahead_server import RUN, now, problems  # noqa: F401 (a fixture)

from oblr.batch.types import Sampling
from oblr.policy.loading import load_model
from oblr.policy.model import PolicyModel
from oblr.record.curves import read_curves
from oblr.rollout.server import ServerEngine

#: Responses that take a while.
LONG = ("rollout.max_new_tokens=80", "rollout.group_size=16", "rollout.temperature=1.5")
PROMPTS = [[5 + q % 7, 6, 7, 8 + q] for q in range(16)]


@pytest.fixture
def slow_server(pocket_server):
    """100 tokens take two seconds and more."""
    pocket_server.server.post("/collective_rpc", method="take_time", args=[0.02])
    yield pocket_server
    pocket_server.server.post("/collective_rpc", method="take_time", args=[0.0])


@pytest.fixture
def engine(slow_server):
    slow_server.in_flight = True
    yield slow_server
    slow_server.in_flight = False


@pytest.fixture(scope="module")
def policies():
    """Two that are far apart."""
    old, new = (PolicyModel(load_model(str(POCKET), "float32"), 1.0) for _ in range(2))
    generator = torch.Generator().manual_seed(1)
    for p in new.parameters():
        p.data += 0.03 * torch.randn(p.shape, generator=generator)
    return {1: old, 2: new}


def sampled_so_far(engine):
    """Tokens of all responses, as the server counts them."""
    return float(re.search(r"generation_tokens_total(?:{.*})? ([\d.e+]+)", engine._sampled())[1])


def crossed(groups):
    """Pairs of prompt and response into whose midst new weights came."""
    return [(PROMPTS[q], one) for q, group in enumerate(groups) for one in group if len(one.versions) == 2]


def sampled_across(engine, policies, sampling, least):
    """Responses, ``least`` of them with the second policy's weights in their midst.

    They are asked for again where a machine stands still for seconds and is too late with the weights.
    """
    for _ in range(3):
        engine.sync(policies[1].weights(), 1)
        enough = sampled_so_far(engine) + 10 * len(PROMPTS) * sampling.n
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(engine.generate, PROMPTS, sampling, range(0, 1600, 100))
            while not asked.done() and sampled_so_far(engine) < enough:
                pass
            engine.sync(policies[2].weights(), 2)
        if len(crossed(groups := asked.result())) >= least:
            return groups
    pytest.fail("new weights came into the midst of too few responses, three times")


def gaps(policy, prompt, completion):
    """|log π − log μ| of the tokens, nats [T]; the policy reads the whole prefix."""
    ids = torch.tensor(prompt + completion.token_ids)
    with torch.no_grad():
        logprobs = policy.lm(ids[None]).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    own = logprobs.gather(1, ids[len(prompt) :, None])[:, 0]
    return (own - torch.tensor(completion.logprobs)).abs()


def test_each_token_is_of_the_weights_that_it_says_whatever_came_before_it(engine, policies):
    """Also what stands before the switch is read by the new policy: nothing of the old one's is left in a cache."""
    groups = sampled_across(engine, policies, Sampling(4, 1.0, 100, ()), least=len(PROMPTS))
    assert [len(group) for group in groups] == [4] * len(PROMPTS)
    found = {(own, policy): [torch.zeros(1)] for own in (1, 2) for policy in (1, 2)}
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for one in group:
            assert len(one.token_ids) == sum(tokens for _, tokens in one.versions) == 100
            for policy, model in policies.items():
                parts = gaps(model, prompt, one).split([tokens for _, tokens in one.versions])
                for (own, _), part in zip(one.versions, parts, strict=True):
                    found[own, policy].append(part)
    for (own, policy), parts in found.items():
        gap = torch.cat(parts)
        assert gap.max() < 1e-3 if own == policy else gap.mean() > 0.1


def test_a_cache_of_the_old_policy_would_be_seen(engine, policies, monkeypatch):
    """If what was computed before the switch stayed, the tokens after it would be of neither policy."""
    post = engine.server.post

    def keeping(path, *given, **told):
        return {"success": True} if path.startswith("/reset_prefix_cache") else post(path, *given, **told)

    with monkeypatch.context() as patch:
        patch.setattr(engine.server, "post", keeping)
        groups = sampled_across(engine, policies, Sampling(1, 1.0, 100, ()), least=1)
    engine.sync(policies[1].weights(), 3)
    prompt, one = crossed(groups)[0]
    before = one.versions[0][1]
    assert gaps(policies[1], prompt, one)[:before].max() < 1e-3
    assert gaps(policies[2], prompt, one)[before:].max() > 0.05


def check(folder, steps, ahead, now):
    """That no response is lost and none too old, and ages are what the rows say; how many versions a response has."""
    assert [sorted(one) for one in problems(folder, steps)] == [sorted(one) for one in now[:steps]]
    curves, most = read_curves(folder), 0
    assert curves["rollout/age"][0] == [*range(1, steps + 1)]
    assert max(curves["rollout/logprob_gap_max"][1]) < 1e-3
    for step, age in enumerate(curves["rollout/age"][1], 1):
        rows = read_rollouts(folder / "rollouts", step)
        size = len(rows) // 4
        assert [(row["group"], row["response"]) for row in rows] == [(q, j) for q in range(4) for j in range(size)]
        spans = [row["weight_versions"] for row in rows]
        assert [sum(tokens for _, tokens in of_row) for of_row in spans] == [row["tokens"] for row in rows]
        ages = [(step - version, tokens) for of_row in spans for version, tokens in of_row]
        assert 0 <= min(ages)[0] <= max(ages)[0] <= step - rows[0]["weight_version"] <= min(ahead, step - 1)
        assert age == sum(one * tokens for one, tokens in ages) / sum(tokens for _, tokens in ages)
        most = max(most, *map(len, spans))
    return most


@pytest.mark.wide
def test_new_weights_come_into_the_midst_of_all_batches_and_none_is_lost(
    train, tmp_path, slow_server, now, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "helpers"), prepend=":")
    target = "rollout.engines.server._target_=meeting.MeetingServer"
    settings = "steps=4", "~callbacks.evaluation", *LONG
    own = (target, "rollout.ahead=1", "rollout.in_flight=true", "rollout.recording.write=true")
    with lent(slow_server) as url:
        result = train(*settings, *RUN[:1], *url, *own)
    assert result.returncode == 0, result.stderr
    assert "warning" not in result.stdout
    assert check(tmp_path / "run", 4, 1, now) == 2
    first, *ages = read_curves(tmp_path / "run")["rollout/age"][1]
    assert first == 0
    assert all(0 < age < 1 for age in ages)
    replayed = train(*settings, f"rollout.recording.replay={tmp_path / 'run'}", folder="again")
    assert replayed.returncode == 0, replayed.stderr
    assert same(weights(tmp_path / "run"), weights(tmp_path / "again"))
    assert read_curves(tmp_path / "again")["rollout/age"][1] == [first, *ages]


@pytest.mark.parametrize("ahead", wide(1, 2))
def test_runs_evaluate_as_ever(train, tmp_path, pocket_server, now, ahead):
    with lent(pocket_server) as url:
        result = train("steps=5", *RUN, *url, f"rollout.ahead={ahead}", "rollout.in_flight=true", *LONG)
    assert result.returncode == 0, result.stderr
    check(tmp_path / "run", 5, ahead, now)
    assert read_curves(tmp_path / "run")["eval/best"][0] == [0, 2, 4, 5]


@pytest.mark.wide
def test_a_run_that_is_killed_while_the_server_is_paused_goes_on(train, tmp_path, pocket_server, now, monkeypatch):
    """Nobody else resumes it; any run can, one without rollouts ahead too."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "helpers"), prepend=":")
    settings = ("rollout.ahead=1", "rollout.in_flight=true")
    with lent(pocket_server) as url:
        killed = train("steps=5", *RUN, *url, *settings, "rollout.engines.server._target_=mortal.LastPaused")
    assert killed.returncode not in (0, 2)
    assert pocket_server.server.get("/is_paused") == {"is_paused": True}
    own = "rollout.engines.server._target_=oblr.rollout.server.ServerEngine"
    with lent(pocket_server) as url:
        result = train("steps=5", *RUN, *settings, "ckpt_path=last", *url, own)
    assert result.returncode == 0, result.stderr
    check(tmp_path / "run", 5, 1, now)


def test_a_server_that_was_left_paused_is_resumed_by_whoever_claims_it(pocket_server, tmp_path):
    pocket_server.server.post("/pause?mode=keep&clear_cache=false")
    settings = {"token_file": str(pocket_server.process.token), "log": str(tmp_path / "log"), "max_model_len": 128}
    with lent(pocket_server) as (url, _):
        engine = ServerEngine(str(POCKET), "float32", url=url.partition("=")[2], **settings)
        engine.start()
        engine.sync(PolicyModel(load_model(str(POCKET), "float32"), 1.0).weights(), 1)
        assert len(engine.generate([[5, 6, 7]], Sampling(1, 1.0, 4, ()), [1])[0][0].token_ids) == 4
        engine.close()


@pytest.mark.wide
def test_two_ranks_share_a_server(train, tmp_path, pocket_server, now):
    ranks = ("trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=2")
    settings = ("rollout.ahead=1", "rollout.in_flight=true", *LONG)
    with lent(pocket_server) as url:
        result = train("steps=4", *RUN, *ranks, *url, *settings)
    assert result.returncode == 0, result.stderr
    check(tmp_path / "run", 4, 1, now)


@pytest.mark.servers
def test_a_server_that_is_killed_while_it_is_paused_costs_no_prompt(train, tmp_path, monkeypatch, now):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "helpers"), prepend=":")
    target = "rollout.engines.server._target_=mortal.PausedServer"
    result = train("steps=4", *RUN, target, "rollout.ahead=1", "rollout.in_flight=true", *LONG)
    assert result.returncode == 0, result.stderr
    (warning,) = [line for line in result.stdout.splitlines() if line.startswith("warning")]
    assert "step 3 is repeated" in warning
    check(tmp_path / "run", 4, 1, now)
