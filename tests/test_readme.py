"""The numbers of README and pages stand in the results, and the table of equations points at functions."""

import json
import re
from importlib import import_module
from operator import attrgetter

import pytest
from again import LOADED, Run, series
from conftest import PAGES, ROOT
from measured import CHANGED, PAGE, digest, results, revisions, row, today

README = "".join(path.read_text() for path in PAGES)  # and all pages


def test_equations_point_at_functions_that_are_there():
    rows = re.findall(r"^\| .* \| \[`([\w.]+)`\]\(\.\./src/([\w./]+)\.py\) \|$", README, flags=re.MULTILINE)
    assert len(rows) >= 12
    for name, path in rows:
        module = import_module(path.replace("/", "."))
        assert callable(getter := attrgetter(name)(module)) or isinstance(getter, property), (name, path)


def test_demo_figures_are_the_measured_ones():
    result = json.loads((ROOT / "benchmarks" / "results" / "demo.json").read_text())
    figures = {figure["name"]: figure for figure in result["figures"]}
    for seed in (1, 2, 3):
        before, after, rise, gap = (
            figures[f"seed {seed}: {name}"]["value"]
            for name in (
                "held-out sampled accuracy before",
                "held-out sampled accuracy after",
                "rise",
                "largest log-prob gap",
            )
        )
        line = f"| {seed} | {before:.1f} % | {after:.1f} % | +{rise:.1f} points | {gap:.0e} |"
        assert line in page("README.md")
        assert line in page("docs/index.md")
    assert all(figure.get("holds") is not False for figure in figures.values())


def test_every_result_says_which_code_it_is_of():
    found = re.findall(r"^(\| \[.* \|) \d{4}-\d\d-\d\d \| (\w{8})(.*) \|$", PAGE.read_text(), flags=re.MULTILINE)
    kept = list(revisions())
    assert [start for start, *_ in found] == [row(path, revision) for path, revision in kept]
    for (path, _), (_, then, changed) in zip(kept, found, strict=True):
        stale = then != digest(today(path).read_bytes())
        assert changed == (f", {CHANGED}" if stale else ""), (
            f"python benchmarks/measured.py: {path.stem} is of another script"
        )


@pytest.mark.parametrize(
    "kind",
    ["loop + update", "Opacus, ghost clipping", "logit", "length"]
    + [f"{passes}, {tier}" for passes in ("one pass", "two passes") for tier in ("exact", "sketch")],
)
def test_cost_figures_are_the_measured_ones(kind):
    figures = results("gradnorm")
    names = [f"T={length}: time, {kind}" for length in (128, 512, 1024, 2048)]
    names += [f"T={length}: peak memory, {kind}" for length in (128, 512)]
    found = [f"{figures[name]['value']:.2f}" if name in figures else "" for name in names]
    assert f"| {kind} | " + " | ".join(found) + " |" in README


@pytest.mark.parametrize("kind", ["exact, one pass", "sketch, one pass", "logit", "exact, two passes"])
def test_predicted_figures_are_the_counted_ones(kind):
    figures, cells = {name: figure["value"] for name, figure in results("roofline").items()}, []
    for case in ("4B, T=512", "4B, T=2048"):
        predicted, mfu = (figures[f"{case}: {kind}: {what}"] for what in ("predicted", "MFU on H100"))
        cells += [f"{predicted:.2f}", f"{100 * mfu:.0f} %"]
    assert f"| {kind} | " + " | ".join(cells) + " |" in README
    plain = [100 * figures[f"4B, T={n}: plain: MFU on H100"] for n in (512, 2048)]
    launches = [figures[f"4B, T={n}: exact, one pass: launches over plain"] for n in (512, 2048)]
    assert "launches {:.1f} and {:.1f} times as many kernels".format(*launches) in README
    assert f"it takes {figures['4B, T=2048: exact, one pass: predicted on H100']:.1f} ms" in README
    assert "predicted to reach {:.0f} % and {:.0f} % of the peak".format(*plain) in README


def test_counts_are_trusted_as_far_as_measured():
    figures = {name: figure["value"] for name, figure in results("roofline-calibration").items()}
    updates = sum(name.endswith(": predicted / measured") for name in figures)
    assert f"rank {updates} real updates right" in README
    assert f"(rank correlation {figures['CPU: rank correlation of predicted and measured']:.2f})" in README
    assert f"\n{figures['CPU: median of predicted / measured']:.2f} times too long" in README
    assert f"{100 * figures['CPU: median relative error but for that']:.0f} % off in the median" in README


def test_the_predicted_step_is_as_far_off_as_measured():
    figures = results("step_time")
    ratio, worst = (
        figures[f"pocket: {name}"]
        for name in ("predicted / measured time of a step", "|predicted / measured − 1|, largest")
    )
    interval = f"{ratio['value']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
    assert f"the prediction is {interval} of the measured step" in README
    assert f"never off by more than {100 * worst['value']:.0f} %" in README
    assert worst["holds"]


def test_the_step_beside_trl_is_the_measured_one():
    ratio = results("step")["TRL's step over ours with vLLM"]["value"]
    assert f"TRL's takes {ratio:.2f} times as long as ours with vLLM" in README


def test_the_suite_takes_and_passes_what_its_runs_say():
    lines = (ROOT / "benchmarks" / "results" / "suite.jsonl").read_text().splitlines()
    runs = [Run(**json.loads(line)) for line in lines]
    alone = [run.seconds / 60 for run in runs if run.idle]
    passed = [run for run in runs if run.passed]
    loaded = [run for run in passed if run.load >= LOADED]
    in_a_row = results("suite")["runs in a row that passed"]["value"]
    assert in_a_row == series(runs)[0].value
    text = " ".join(page("docs/testing.md").split())
    assert f"takes {min(alone):.0f} to {max(alone):.0f} minutes on two cores that nobody else uses." in text
    assert f"Of {len(runs)} runs that are kept, {len(passed)} passed, {len(loaded)} of them at a mean load of" in text
    assert f"mean load of {LOADED} or more; the last {in_a_row} passed in a row" in text


def test_what_rewards_do_is_as_measured():
    found = results("rewards")
    missed = [
        100 - found[f"{name}: {label}: math-verify agrees"]["value"]
        for name in ("math500", "olympiadbench")
        for label in ("sentence", "plain")
    ]
    assert f"misses {min(missed):.0f} to {max(missed):.0f} % of MATH-500's" in README
    assert found["hostile: score above 0"]["value"] == found["hostile: timeouts"]["value"] == 0
    assert f"a worker holds {found['hostile: largest memory of a worker']['value']:.3f} GiB" in README
    everything, expressions = (
        found[f"throughput, {kind}, 2 workers"]["value"] for kind in ("rows of all files", "answers that are no number")
    )
    assert f"score {everything:,.0f} responses a\nsecond, half of them wrong; {expressions:,.0f} of those" in README


def test_what_labelled_responses_say_is_as_measured():
    found = results("judged")

    def counted(kind, grader, title):
        figure = found[f"{kind}: {grader}: {title}, counted"]
        return figure["value"], int(figure["unit"].removeprefix("of "))

    kinds = {
        "Omni-MATH, frontier models": "omni-math",
        "GSM8K, from its authors": "gsm8k-openai",
        "GSM8K, ToRA": "gsm8k-tora",
        "MATH, Qwen2.5-Math": "math-qwen",
    }
    for title, kind in kinds.items():
        cells = [title]
        for mistakes in ("right ones that do not score", "wrong ones that score"):
            ours, of = counted(kind, "ours", mistakes)
            cells += [f"{ours} of {of:,}", str(counted(kind, "math-verify", mistakes)[0])]
        assert "| " + " | ".join(cells) + " |" in page("docs/rewards.md")
    text = " ".join(page("docs/rewards.md").split())
    (paid,) = (name for name in found if name.startswith("paid of "))
    of = int(paid.split()[2])
    assert f"Of {of:,} responses that give two answers {found[paid]['value']} are paid" in text
    theirs, ours = (found[f"omni-math: {grader}, a verdict"]["value"] for grader in ("math-verify", "ours"))
    assert f"math-verify takes {theirs / ours:.0f} times as long as ours" in text


def test_what_watching_costs_is_as_measured():
    found = results("observers")
    pocket, real = (found[f"{name}: all observers and loggers, of a step"] for name in ("pocket", "smollm2_cpu"))
    ends = f"[{100 * pocket['low']:.1f}, {100 * pocket['high']:.1f}]"
    assert f"take {100 * pocket['value']:.1f} % {ends} of the demo's step" in README
    assert pocket["holds"]
    assert real["holds"]
    assert f"and {100 * real['value']:.2f} % of a step of SmolLM2-135M" in README


def test_what_adapters_do_is_as_measured():
    found = results("lora")
    error = max(f["value"] for name, f in found.items() if "error of n_i" in name)
    assert f"off by {error:.1e} of autograd's at most".replace("e-0", "e-") in README
    before, adapters, whole = (
        found[f"pocket, {name}, seed 1, 40 steps: accuracy {when}"]["value"]
        for name, when in (("adapters", "before"), ("adapters", "after"), ("all weights", "after"))
    )
    assert f"accuracy from {before:.0f} % to {adapters:.0f} % with adapters, and to {whole:.0f} % with" in README
    gap = "pocket in bfloat16, adapters: mean |log π − log μ| right after a sync, "
    first, last = (found[f"{gap}{when}"]["value"] for when in ("first step", "last quarter of 20 steps"))
    assert f"grew from {first:.1e} to {last:.1e} nats with adapters".replace("e-0", "e-") in README
    cost = found["T=128: exact norms: time of a step with adapters"]
    assert f"takes {cost['value']:.2f} [{cost['low']:.2f}, {cost['high']:.2f}] of one of all weights" in README


def test_what_becomes_of_models_is_as_measured():
    found, checked = results("models"), results("selfcheck")
    right, refused, wrong = (found[f"types of transformers: {kind}"]["value"] for kind in ("right", "refused", "wrong"))
    assert f"{right:.0f} are trained right, {refused:.0f} are refused by name and\n{wrong:.0f} wrong" in README
    assert f"All {checked['caught']['value']:.0f} planted" in README
    assert f"takes {checked['pocket policy: check over update']['value']:.2f} of an update" in README
    assert checked["caught"]["value"] == checked["planted faults"]["value"]
    assert wrong == 0


def test_the_cost_in_short_is_as_measured():
    values = {name: figure["value"] for name, figure in results("gradnorm").items()}
    names = ("T=128", "T=512", "T=1024", "T=24 to 120")
    times = [f"{values[f'{name}: time, one pass, exact']:.2f}" for name in names]
    memory = [f"{values[f'T={length}: peak memory, one pass, exact']:.2f}" for length in (128, 512)]
    said, short = (
        "one exact update takes {} of a plain one at 128 tokens a response, {} at 512 and {} at 1,024;",
        "where lengths differ, {}.",
    )
    text = " ".join(page("docs/cost.md").split())
    assert f"{said} {short}".format(*times) in text
    assert "Memory is {} to {} of it.".format(*memory) in text
    step = {name: figure["value"] for name, figure in results("step").items()}
    assert f"The update is about {step['vllm: time, update']:.0f} % of a step" in text
    beside = step["TRL's step over ours with vLLM"]
    assert f"takes {beside:.2f} times as long" in text


def test_evaluations_are_as_measured():
    values = {name: figure["value"] for name, figure in results("eval").items()}
    text = " ".join(page("docs/evaluation.md").split())
    least = [values[f"lowest coverage, with ends: {n} problems"] for n in (30, 500)]
    assert (
        "hold it in {:.1f} % of all draws or more with 30 problems and in {:.1f} % or more with 500".format(*least)
        in text
    )
    assert f"go down to {values['lowest coverage, plain: 30 problems']:.0f} %" in text
    found = {name: value for name, value in values.items() if name.startswith("differences found at 5 %")}
    none = {name: value for name, value in found.items() if re.search(r"truth (\S+) and \1$", name)}
    few, many = ([value for name, value in found.items() if f": {n} " in name and name not in none] for n in (30, 500))
    assert f"found in {min(few):.0f} to {max(few):.0f} % of all comparisons, with 500 in {int(min(many))} % or" in text
    assert f"but in {max(none.values()):.1f} % of comparisons at most" in text
    held = min(value for name, value in values.items() if name.startswith("coverage of a difference"))
    assert f"The interval of a difference holds it in {held:.1f} % of draws or more" in text


def test_the_first_hour_is_as_measured():
    figures = results("first_hour")
    changed, readme = (
        figures[f"from the clone {place}"]["value"] for place in ("to a changed baseline", "through all of README")
    )
    typed = figures["README's and the pages' commands typed"]["value"]
    said = (
        f"took {changed:.0f} minutes from `git clone` to a changed baseline and {readme:.0f} through all of README; "
        f"of {typed:.0f} commands that README and pages have for any machine, none failed"
    )
    assert said in " ".join(page("docs/index.md").split())
    assert figures["commands that did not do what they are for"]["value"] == 0


def page(name):
    return (ROOT / name).read_text()
