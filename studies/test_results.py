"""What README and findings call ahead, behind or a tie is that in the contest's table; their numbers come by cog.

Late reward and area of what they claim in words: ``recomputed.py`` asks the runs themselves.
"""

import pytest
from contest import Case, Runs
from contest import late as reward
from measured import results
from results import (
    ADAMW,
    CONTEST,
    COSINE,
    DEFAULT,
    FIVE,
    LINEAR_CLIPPED,
    NONE,
    NORMALISED_PRIOR,
    PARTS,
    PENALTY,
    PRIOR,
    RIVAL,
    SHORT,
)
from training import composed

RIVALS = ("the constant rate's", "cosine's")
MEASURES = ("final accuracy", "late reward", "area")
SUMS, AT_25 = "pocket, 100 steps, ", "pocket, 25 steps, "
OURS = "gradient_weighted"


def sign(row, rival, measure="late reward"):
    """ "+" where a row is ahead of a rival's by an interval above zero, "-" where it is behind, "=" where it ties."""
    figure = results("contest")[f"{row}: {measure}, over {rival}"]
    return "+" if figure["low"] > 0 else "-" if figure["high"] < 0 else "="


def signs(row, rival, *measures):
    return "".join(sign(row, rival, measure) for measure in measures)


def value(name):
    return results("contest")[name]["value"]


@pytest.mark.parametrize(("steps", "tasks"), [(100, 3), (300, 3)])
def test_the_default_is_ahead_of_both_rivals_on_three_tasks_and_on_each_seed(steps, tasks):
    row = f"{steps} steps, {OURS}, noise_linear"
    assert value(f"{row}: tasks on which its late reward is ahead of every rival's") == tasks
    for rival in RIVALS:
        assert sign(f"all tasks, {row}", rival) == "+"
        for task in SHORT:
            assert sign(f"{task}, {row}", rival) == "+"
            ahead = results("contest")[f"{task}, {row}: seeds whose late reward is ahead of {rival}"]
            assert (ahead["value"], ahead["unit"]) == (10, "of 10")


def test_on_long_responses_it_ties_with_cosine_and_all_three_are_ahead_of_the_constant_rate():
    start = f"pocket_long, 100 steps, {OURS}"
    assert sign(f"{start}, noise_linear", "cosine's") == "="
    assert [sign(f"{start}, {name}", RIVALS[0]) for name in ("cosine", "noise", "noise_linear")] == ["+"] * 3


def test_in_final_accuracy_it_is_ahead_on_the_same_three_tasks_and_at_300_steps_on_two():
    for steps, where in ((100, SHORT), (300, ("pocket", "pocket_rare"))):
        row = f"{steps} steps, {OURS}, noise_linear"
        assert value(f"{row}: tasks on which its final accuracy is ahead of every rival's") == len(where)
        assert all(sign(f"{task}, {row}", rival, "final accuracy") == "+" for task in where for rival in RIVALS)
        assert sign(f"all tasks, {row}", RIVALS[0], "final accuracy") == "+"
    assert sign(f"pocket_graded, 300 steps, {OURS}, noise_linear", RIVALS[0], "final accuracy") == "="
    assert value(f"300 steps, {OURS}, noise_linear: tasks on which its area is ahead of every rival's") == 3


def test_the_prior_is_ahead_on_four_tasks_and_none_is_not():
    """At equal steps, on all of ten seeds but one; at equal seconds it ties. None depends on the zero of rewards."""
    late, theirs = "late reward", "noise_linear's"
    for task in (*SHORT, PENALTY):
        row = f"{task}, 100 steps, {PRIOR.name}"
        assert sign(row, theirs) == "+"
        assert value(f"{row}: second moment") < value(f"{task}, 100 steps, {DEFAULT.name}: second moment")
    for rival, ahead in ((theirs, 29), ("RLOO's under noise_linear", 30)):
        rows = [f"{task}, 100 steps, {PRIOR.name}" for task in SHORT]
        assert [sign(row, rival) for row in rows] == ["+"] * 3
        assert sum(value(f"{row}: seeds whose {late} is ahead of {rival}") for row in rows) == ahead
    assert [sign(f"{task}, 100 steps, {NONE.name}", theirs) for task in (*SHORT, PENALTY)] == ["=", "=", "+", "-"]


def test_its_area_is_lower_on_graded_rewards_at_100_steps():
    assert sign(f"pocket_graded, 100 steps, {OURS}, noise_linear", RIVALS[0], "area") == "-"


def test_the_decay_alone_is_ahead_of_the_constant_rate_and_behind_the_default():
    rows = [f"{task}, 100 steps, {OURS}, linear" for task in (*SHORT, "all tasks")]
    for row in rows:
        assert (sign(row, RIVALS[0]), sign(row, "noise_linear's")) == ("+", "-")
    assert [sign(row, "noise_linear's", "area") for row in rows[:3]] == ["-", "=", "-"]


def test_shortening_alone_is_ahead_where_right_answers_are_rare():
    rows = [f"{task}, 100 steps, {OURS}, noise" for task in SHORT]
    assert [(sign(row, RIVALS[0]), sign(row, RIVALS[1])) for row in rows] == [("=", "="), ("=", "-"), ("+", "+")]


def test_clipping_under_the_same_decay_ties():
    row = f"100 steps, {OURS}, noise_linear, schedule.power=0.5"
    for task in ("pocket", "pocket_rare"):
        assert signs(f"{task}, {row}", "noise_linear's", "late reward", "final accuracy") == "=="
    assert sign(f"all tasks, {row}", "noise_linear's", "area") == "-"


def test_rates_that_fall_tie_with_it_when_they_clip_and_no_other_that_clips_does():
    for task in (*SHORT, "all tasks"):
        for name in ("linear_clipped", "cosine_clipped"):
            assert sign(f"{task}, 100 steps, {OURS}, {name}", "noise_linear's") == "="
    others = [case.row.name for case in next(part for part in PARTS if part.name == "clips").cases()]
    assert len(others) == 5
    assert all(sign(f"{SUMS}{name}", "noise_linear's") == "-" for name in others)


def test_the_prior_is_ahead_under_every_rate_and_rloo_under_none():
    rivals = {"constant": RIVALS[0], "linear": "linear's", "linear_clipped": "linear_clipped's"}
    rivals |= {"noise_linear": "noise_linear's", "normalised": "normalised SGD's"}
    assert [sign(f"{SUMS}{OURS}, {rate}, baseline.prior=past", rival) for rate, rival in rivals.items()] == ["+"] * 5
    assert [sign(f"{SUMS}rloo, {rate}", rival) for rate, rival in rivals.items()] == ["=", "=", "-", "-", "-"]
    worst, best = f"{SUMS}rloo, linear_clipped", f"{SUMS}{OURS}, constant, baseline.prior=past"
    assert value(f"{worst}: late reward") < value(f"{best}: late reward")


def test_steps_of_one_length_are_ahead_on_sums_and_with_a_prior_of_all_rows():
    row = f"{SUMS}{OURS}, normalised"
    assert [sign(row, rival) for rival in ("noise_linear's", "linear_clipped's")] == ["+", "+"]
    best = f"{row}, baseline.prior=past"
    rivals = ("normalised SGD's", "the prior's", "noise_linear's", "linear_clipped's")
    assert [sign(best, rival) for rival in rivals] == ["+"] * 4
    assert {value(f"{best}: seeds whose late reward is ahead of {rival}") for rival in rivals} == {10}
    assert sign(f"{SUMS}{OURS}, linear_clipped, baseline.prior=past", "normalised SGD's with the prior") == "-"
    rare = f"pocket_rare, 100 steps, {OURS}, normalised"
    assert [sign(rare, rival) for rival in ("noise_linear's", "linear_clipped's")] == ["+", "="]
    assert sign(best, "normalised SGD's of 146 steps") == "="


@pytest.mark.parametrize(
    ("task", "row"), [("pocket", NORMALISED_PRIOR), *((task, PRIOR) for task in (*SHORT[1:], PENALTY))]
)
def test_an_experiment_is_the_row_that_ended_best_on_its_task(task, row):
    start = f"{task}, 100 steps, "
    rows = [name for name in results("contest") if name.startswith(start) and name.endswith(": late reward")]
    assert max(rows, key=value) == f"{start}{row.name}: late reward"
    own, named = (composed(["paths.output_dir=unused", *more], task) for more in ((), row.overrides))
    assert (own.baseline, own.schedule) == (named.baseline, named.schedule)
    assert own.eta0 == value(f"{start}{row.name}: η₀")


def test_opo_ties_with_the_default_and_is_ahead_of_rloo_under_its_rate():
    row = f"{SUMS}opo, noise_linear"
    assert [sign(row, rival) for rival in ("noise_linear's", "RLOO's under noise_linear")] == ["=", "+"]


def test_norms_of_logits_do_as_well_as_exact_ones():
    start = f"{SUMS}{OURS}, noise_linear, gradnorm=logit"
    assert (sign(start, "noise_linear's"), sign(f"{start}, baseline.prior=past", "the prior's")) == ("=", "=")


def test_on_words_no_claim_is_seen_and_a_clipped_linear_rate_is_ahead():
    start = f"backward, 100 steps, {OURS}"
    assert [sign(f"{start}, noise_linear", rival) for rival in RIVALS] == ["=", "="]
    assert sign(f"backward, 100 steps, {PRIOR.name}", "noise_linear's") == "="
    assert [sign(f"{start}, linear_clipped", rival) for rival in ("noise_linear's", "cosine's")] == ["+", "+"]
    runs = Runs(CONTEST, makes=False)
    assert reward(runs(Case("backward", PRIOR, 100), 0.06, 5)) < 0.1


def test_matrices_break_runs_down_that_neither_clip_nor_have_a_prior():
    """At the rates that the tuning found best; no row is ahead of the default, which ties with the constant rate."""
    runs = Runs(CONTEST, makes=False)
    rows = {RIVAL: 1, DEFAULT: 1, LINEAR_CLIPPED: 0, PRIOR: 0}
    for row, broken in rows.items():
        assert sum(reward(run) < 0.01 for run in runs.of(Case("rotated", row, 100), FIVE)) == broken
    others = [row for row in rows if row != DEFAULT]
    assert {sign(f"rotated, 100 steps, {row.name}", "noise_linear's") for row in others[1:]} == {"="}
    assert sign(f"rotated, 100 steps, {DEFAULT.name}", RIVALS[0]) == "="
    assert sign(f"rotated, 100 steps, {LINEAR_CLIPPED.name}", RIVALS[1]) == "+"


def test_over_146_steps_the_default_ties_with_the_prior_and_takes_as_long_or_longer():
    found = [name for name in results("contest") if name.endswith("over noise_linear's of 146 steps")]
    assert len(found) == 4
    assert all(results("contest")[name]["low"] < 0 < results("contest")[name]["high"] for name in found)
    alike = [name for name in results("contest") if name.endswith("steps that take as long as 100 with the prior")]
    assert all(100 < value(name) < 147 for name in alike)


def test_adamw_with_cosine_ties_by_late_reward_and_the_schedule_helps_under_it():
    constant, cosine, ours = (
        f"{SUMS}{OURS}, {name}, optimizer=adamw" for name in ("constant", "cosine", "noise_linear")
    )
    assert signs(cosine, "noise_linear's", "late reward", "final accuracy", "area") == "=--"
    assert (sign(ours, "AdamW's"), sign(cosine, "AdamW's")) == ("+", "+")
    assert signs(ours, "noise_linear's", "late reward", "final accuracy", "area") == "==="
    assert sign(constant, "noise_linear's") == "-"


def test_with_rloo_the_default_is_behind_and_at_a_constant_rate_rloo_ties():
    assert signs(f"{SUMS}rloo, noise_linear", "noise_linear's", "late reward", "area", "final accuracy") == "--="
    assert sign(f"{SUMS}rloo, constant", RIVALS[0]) == "="


def test_the_snr_schedule_ties_at_100_steps_but_by_final_accuracy():
    row = f"{SUMS}{OURS}, snr, estimator=ema"
    assert signs(row, RIVALS[0], "late reward", "area", "final accuracy") == "==="
    assert signs(row, "noise_linear's", "late reward", "area", "final accuracy") == "==-"
    tuned = f"{row}, η₀ = 0.06"
    assert 0 < results("along")[f"{tuned}: late reward on the tuning seeds, over that of 0.03"]["value"] < 1
    assert results("along")[f"{tuned}: least reward after step 10, tuning seeds"]["value"] < 30


def test_a_history_is_ahead_by_area_alone_and_with_uniform_weights_not():
    kinds = {"history, constant": "=+=", "history, constant, baseline.weighted=false": "==="}
    for name, found in kinds.items():
        row = f"{SUMS}{name}, data.train.size=64"
        assert signs(row, "gradient_weighted's", "late reward", "area", "final accuracy") == found
        assert value(f"{row}: η₀") == 0.01


def test_baselines_over_25_steps():
    start = f"{AT_25}{{}}, constant: second moment".format
    found = {name: value(start(name)) for name in ("none", "adaptive", OURS, "batch_mean", "opo", "rloo", "shrinkage")}
    small, near = [name for name, m in found.items() if m < 0.5], [name for name, m in found.items() if 0.9 < m < 1.1]
    assert small == ["none", "adaptive", OURS]
    assert near == ["batch_mean", "opo", "rloo", "shrinkage"]
    moments = [
        name for name in results("contest") if name.startswith(AT_25) and name.endswith("constant: second moment")
    ]
    assert len(moments) == len(found) + 1
    assert 1.9 < value(start("remax")) < 2.1
    for name in small[:2]:
        assert signs(f"{AT_25}{name}, constant", RIVALS[0], "late reward", "area") == "=="
        assert sign(f"{AT_25}{name}, constant", "RLOO's", "area") == "+"
    for name in (*near, "remax"):
        assert sign(f"{AT_25}{name}, constant", RIVALS[0], "area") == ("=" if name == "rloo" else "-")
    assert signs(f"{AT_25}{OURS}, constant", "RLOO's", *MEASURES) == "==="


def test_other_baselines_and_sizes_over_25_steps():
    assert signs(f"{AT_25}group_mean_std, constant", "RLOO's", "late reward", "area") == "=-"
    assert value(f"{AT_25}group_mean_std, constant: η₀") == value(f"{AT_25}rloo, constant: η₀") / 2
    assert signs(f"{AT_25}opo, constant", "RLOO's", "late reward", "area") == "=="
    assert sign(f"{AT_25}group_mean, constant, loss=gepo", "RLOO's", "area") == "+"
    for size in ("N = 32, G = 4", "N = 8, G = 16"):
        assert signs(f"{AT_25}{OURS}, constant, {size}", RIVALS[0], "late reward", "area") == "=="
    assert sign(f"{AT_25}{OURS}, noise_linear, N = 4, G = 8", "noise_linear's", "area") == "+"


def test_schedules_and_optimizers_over_25_steps():
    others = [
        name.removesuffix(": η₀")
        for name in results("contest")
        if name.startswith(f"{AT_25}{OURS}") and name.endswith(": η₀") and "optimizer" not in name and "N =" not in name
    ]
    default = f"{AT_25}{OURS}, noise_linear"
    assert max(others, key=lambda row: value(f"{row}: late reward")) == default
    assert sign(f"{AT_25}{OURS}, noise", "noise_linear's") == "="
    assert all(sign(f"{AT_25}{OURS}, snr, estimator={name}", RIVALS[0]) == "+" for name in ("ema", "plug_in"))
    adamw, *falling = (
        f"{AT_25}{OURS}, {name}, optimizer=adamw" for name in ("constant", "snr, estimator=ema", "noise")
    )
    assert sign(adamw, "noise_linear's") == "="
    for row in falling:
        assert value(f"{row}: area") > value(f"{adamw}: area")
        assert value(f"{row}: late reward") < value(f"{adamw}: late reward")
    runs = Runs(CONTEST, makes=False)
    assert all(reward(runs(Case("pocket", ADAMW, 25), 5e-4, seed)) < 0.6 for seed in runs.tuning_seeds)


def test_rivals_from_elsewhere_and_penalties_are_not_ahead_over_25_steps():
    adamw = [f"{rate}, optimizer=clipped_adamw" for rate in ("constant", "linear", "linear, warm_up=3", "cosine")]
    assert signs(f"{AT_25}{OURS}, timed", "noise_linear's", "late reward", "area") == "=-"
    for name in adamw:
        assert signs(f"{AT_25}{OURS}, {name}", "noise_linear's", "late reward", "area") == "=-"
    penalised = [f"noise_linear, kl=k3, kl.coefficient={beta}" for beta in (0.01, 0.1)]
    for name in ("linear, optimizer=gated_sgd", "noise_linear, loss=vl_norm", *penalised):
        assert signs(f"{AT_25}{OURS}, {name}", "noise_linear's", "late reward", "area") == "--"
    assert signs(f"{AT_25}group_mean_std, noise_linear", "noise_linear's", "late reward", "area") == "-="


def test_under_the_snr_at_one_rate_rloo_is_behind_and_usual_rates_are_too_small():
    assert signs(f"{AT_25}rloo, snr, estimator=ema, eta0=0.03", "snr's", "late reward", "area") == "--"
    assert value(f"{AT_25}{OURS}, snr, estimator=ema: η₀") == 0.03
    assert value(f"{AT_25}rloo, snr, estimator=ema: late reward") < 70
    dropped = [
        value(f"{AT_25}{OURS}, constant, lr={rate}: dropped, behind the constant rate by") for rate in (0.005, 0.001)
    ]
    assert 5 < dropped[0] < dropped[1]


def test_what_broke_down_over_300_steps():
    """Of cosine's two runs at its rate for 100 steps one; of the default's none, and one of two at twice its rate."""
    runs = Runs(CONTEST, makes=False)
    broken, held = sorted(reward(runs(Case("pocket", COSINE, 300), 0.02, seed)) for seed in runs.tuning_seeds)
    assert broken < 0.1 < 0.9 < held
    assert reward(runs(Case("pocket_rare", DEFAULT, 300), 0.06, 101)) < 0.1
    assert {value(f"{task}, 300 steps, {OURS}, noise_linear: η₀") for task in SHORT} == {0.03}
    assert value(f"pocket, 300 steps, {OURS}, cosine: η₀") == value(f"pocket, 100 steps, {OURS}, cosine: η₀") / 2


def test_capo_was_dropped():
    dropped = f"{AT_25}group_mean_std, constant, loss=capo: dropped, behind the constant rate by"
    assert value(dropped) > 5


def test_snr_linear_was_behind_where_it_was_dropped():
    late = results("along")
    ends = {
        name: [late[f"{SUMS}{OURS}, {name}, seed {seed}: late reward"]["value"] for seed in (1, 2, 101, 102)]
        for name in ("snr_linear, η₀ = 0.04", "noise_linear, η₀ = 0.03")
    }
    dropped, ours = ends.values()
    assert max(dropped) < min(ours)


def test_on_published_weights_late_rewards_tie_and_a_prior_is_ahead_by_area():
    figures = results("pretrained")
    prior, papers = (f"smollm2_cpu, 15 steps, {OURS}{more}" for more in (", prior=past", ""))
    for row, rival in ((prior, "RLOO's"), (prior, "the paper's"), (papers, "RLOO's")):
        gap = figures[f"{row}: late reward, over {rival}"]
        assert gap["low"] < 0 < gap["value"]
        assert row == papers or figures[f"{row}: area, over {rival}"]["low"] > 0
