"""The numbers of README and pages stand in the results, and the table of equations points at the lines it quotes."""

import json
import re

import pytest
from again import LOADED, Run, series
from conftest import PAGES, ROOT
from contest import Case, Runs
from contest import late as reward
from measured import CHANGED, PAGE, digest, revisions, row, script
from results import ADAMW, CONTEST, COSINE, DEFAULT, PARTS, RIVAL, SNR

README = "".join(path.read_text() for path in PAGES)  # and all pages


def test_equations_point_at_their_lines():
    rows = re.findall(r"^\| .* \| `(.+)` \| \[[\w./]+\]\(\.\./([\w./]+)#L(\d+)\) \|$", README, flags=re.MULTILINE)
    assert len(rows) >= 12
    for code, path, line in rows:
        assert code.replace("\\|", "|") in (ROOT / path).read_text().splitlines()[int(line) - 1], (code, path, line)


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
    assert all(figure["holds"] is not False for figure in figures.values())


def test_every_result_says_which_code_it_is_of():
    found = re.findall(r"^(\| \[.* \|) \d{4}-\d\d-\d\d \| (\w{8})(.*) \|$", PAGE.read_text(), flags=re.MULTILINE)
    kept = list(revisions())
    assert [start for start, *_ in found] == [row(name, revision) for name, revision in kept]
    for (name, _), (_, then, changed) in zip(kept, found, strict=True):
        stale = then != digest((ROOT / script(name)).read_bytes())
        assert changed == (f", {CHANGED}" if stale else ""), (
            f"python benchmarks/measured.py: {name} is of another script"
        )


def results(name):
    result = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return {figure["name"]: figure for figure in result["figures"]}


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


@pytest.mark.parametrize("ratio", ["sequence", "sequence ≤ 5", "sequence ≤ 2", "token ≤ 2"])
def test_ratio_figures_are_the_measured_ones(ratio):
    figures, cells = {name: figure["value"] for name, figure in results("ratios").items()}, []
    for name in ("128 tokens", "512 tokens", "bfloat16 engine, 512 tokens"):
        error, left = (figures[f"{name}, {ratio}: {what}"] for what in ("error of ĝ", "effective responses in a group"))
        cells += [f"{100 * error:.0f} %", f"{left:.1f}"]
    assert f"| {ratio} | " + " | ".join(cells) + " |" in README


def test_what_bfloat16_makes_of_ratios_is_as_measured():
    figures = {name: figure["value"] for name, figure in results("ratios").items()}
    gaps = [figures[f"{engine} engine: |Δ| of a token, mean"] for engine in ("float32", "bfloat16")]
    assert f"differ by {gaps[0]:.3f} nats a token, by {gaps[1]:.3f} where the engine is bfloat16 as well" in README
    drawn = [figures[f"bfloat16 engine, drawn, {n} tokens: effective sample size of ρ"] for n in (64, 256, 1024)]
    assert "{:.0f} % at 64 tokens, {:.0f} % at 256, {:.1f} % at 1,024".format(*(100 * x for x in drawn)) in README
    assert f"beside float32, is {100 * figures['128 tokens, none: error of ĝ']:.0f} %" in README
    dropped = figures["bfloat16 engine, 512 tokens, gspo: dropped at the first update"]
    assert f"GSPO drops {100 * dropped:.0f} % of the responses" in README
    errors = [results("second_update")[f"by the {whose}'s: error of log ρ"]["value"] for whose in ("engine", "policy")]
    assert "off by {:.2f} nats with the engine's and by {:.2f} with the policy's own".format(*errors) in README


@pytest.mark.parametrize("tier", ["sketch", "logit", "length", "norm_layers"])
def test_tier_figures_are_the_measured_ones(tier):
    figures, cells = results("tiers"), []
    for policy in ("pocket", "SmolLM2-135M"):
        moment, kept = (
            figures[f"{policy}: {what}, {tier}"] for what in ("second moment", "fraction of variance reduction kept")
        )
        cells += [
            f"{figures[f'{policy}: rank correlation, {tier}']['value']:.2f}",
            f"{moment['value']:.2f} [{moment['low']:.2f}, {moment['high']:.2f}]",
            f"{100 * kept['value']:.0f} %",
        ]
    assert f"| {tier} | " + " | ".join(cells) + " |" in page("docs/cost.md")


def test_what_tiers_keep_is_said_as_measured():
    figures = results("tiers")

    def kept(policy, tier, end="value"):
        return round(100 * figures[f"{policy}: fraction of variance reduction kept, {tier}"][end])

    of_logit = "{} % [{}, {}]".format(*(kept("SmolLM2-135M", "logit", end) for end in ("value", "low", "high")))
    cost = page("docs/cost.md")
    assert cost.count(of_logit) == 2
    assert f"keeps {kept('pocket', 'logit')} % of\ntheir use" in cost
    assert {kept(policy, "sketch") for policy in ("pocket", "SmolLM2-135M")} == {100}
    others = figures["pocket: second moment, weighted mean of 56 others"]["value"]
    assert f"would reach {others:.2f} on the pocket policy" in cost
    scales = sorted(kept(policy, "norm_layers") for policy in ("pocket", "SmolLM2-135M"))
    assert "they keep {} to {} % of what".format(*scales) in page("docs/findings.md")


def test_how_much_the_snr_brakes_is_as_measured():
    figures = results("results")
    for n in (16, 64, 128):
        factors = [figures[f"N = {n}: factor, {estimator}"] for estimator in ("plug_in", "debiased", "ema")]
        assert (
            f"| N = {n} | "
            + " | ".join(f"{f['value']:.2f} {f['unit'].removesuffix(' over steps')}" for f in factors)
            + " |"
            in README
        )


#: Whom the claims of the contest have to beat.
RIVALS = ("the constant rate's", "cosine's")
COSTS = ("CPU time", "CPU time of updates")
#: Tasks of short responses.
SHORT = ("pocket", "pocket_graded", "pocket_rare")
PLAIN = ("second moment", "CPU time of updates")


def interval(name, form=".1f"):
    """A figure of the contest, with its interval."""
    figure = results("contest")[name]
    return f"{figure['value']:{form}} [{figure['low']:{form}}, {figure['high']:{form}}]"


def claims(steps):
    """Names of the contest's claims after so many steps, of those tasks that are complete."""
    schedules = ("constant", "cosine", "noise", "noise_linear")
    ends = tuple(f", {steps} steps, gradient_weighted, {schedule}: η₀" for schedule in schedules)
    return [name.removesuffix(": η₀") for name in results("contest") if name.endswith(ends)]


@pytest.mark.parametrize("steps", [100, 300])
def test_every_row_of_a_table_of_claims_is_the_measured_one(steps):
    figures = results("contest")
    section = page("docs/findings.md").split(f"## {steps} steps\n")[1].split("\n## ")[0]
    kinds = claims(steps)
    assert section.count("\n| pocket") == len(kinds) > 0
    for kind in kinds:
        task, _, _, schedule = kind.split(", ")
        over = [f"{kind}: late reward, over {rival}" for rival in RIVALS]
        cells = [
            *(task, schedule, f"{figures[f'{kind}: η₀']['value']:g}"),
            *(interval(f"{kind}: {name}") for name in ("final accuracy", "late reward")),
            *(interval(name, "+.1f") if name in figures else "" for name in over),
            interval(f"{kind}: area"),
        ]
        assert "| " + " | ".join(cells) + " |" in section


def test_what_is_said_of_100_steps_is_as_measured():
    """What README and findings say in short of the default schedule."""
    figures = results("contest")
    row = "100 steps, gradient_weighted, noise_linear"
    ahead = figures[f"{row}: tasks on which its late reward is ahead of every rival's"]
    assert (ahead["value"], ahead["unit"]) == (3, "of 4")
    of_all = {
        measure: [interval(f"all tasks, {row}: {measure}, over {rival}") for rival in RIVALS]
        for measure in ("final accuracy", "late reward")
    }
    first, second = of_all["late reward"]
    readme = " ".join(page("README.md").split())
    assert f"by {first} points of a tuned constant rate and by {second} of cosine" in readme
    findings = page("docs/findings.md")
    assert f"over all, by {first} points of late reward over the constant rate, {second} over cosine" in findings
    tie = figures["pocket_long, 100 steps, gradient_weighted, noise_linear: late reward, over cosine's"]
    assert tie["low"] < 0 < tie["high"]
    assert f"+{tie['value']:.1f} [−{-tie['low']:.1f}, {tie['high']:.1f}] points" in findings
    assert "it is ahead by {} and {}, and on the same three.".format(*of_all["final accuracy"]) in findings
    assert figures[f"{row}: tasks on which its final accuracy is ahead of every rival's"]["value"] == 3
    on_seeds = [
        figures[f"{task}, {row}: seeds whose late reward is ahead of {rival}"] for task in SHORT for rival in RIVALS
    ]
    assert {(figure["value"], figure["unit"]) for figure in on_seeds} == {(10, "of 10")}
    rare = "pocket_rare, 100 steps, gradient_weighted"
    rates = [figures[f"{rare}, {schedule}: mean learning rate"]["value"] for schedule in ("noise", "noise_linear")]
    assert "`noise` is {:.3f} there and that of `noise_linear` {:.3f},".format(*rates) in findings
    alone = figures["100 steps, gradient_weighted, noise: tasks on which its late reward is ahead of every rival's"]
    assert (alone["value"], alone["unit"]) == (1, "of 4")
    costs = sorted(figures[f"{kind}: CPU time"]["value"] for kind in claims(100) if kind.endswith("noise_linear"))
    assert f"CPU time of the default's runs is {costs[0]:.2f} to {costs[-1]:.2f} of the constant rate's" in findings
    areas = [interval(f"all tasks, {row}: {area}, over {RIVALS[0]}") for area in ("area per token", "area")]
    assert "Per sampled token its area is ahead by {} points, per step by {}.".format(*areas) in findings
    compared = sum(figure["value"] for name, figure in figures.items() if name.endswith(": comparisons"))
    assert f"**{compared} comparisons** are" in findings
    few = [figure for name, figure in figures.items() if name.endswith(", by t")]
    left = sum(figure["low"] * figure["high"] > 0 for figure in few)
    assert f"Of {len(few)} comparisons of late reward or area that exclude a tie" in findings
    assert f"{left} do so by Student's interval too" in findings


def test_what_is_said_of_300_steps_is_as_measured():
    """The default is ahead of both rivals on every task that is complete, in every measure."""
    figures, findings = results("contest"), page("docs/findings.md").split("## 300 steps\n")[1].split("\n## ")[0]
    row = "300 steps, gradient_weighted, noise_linear"
    for measure in ("final accuracy", "best accuracy", "late reward", "area", "area per token"):
        ahead = figures[f"{row}: tasks on which its {measure} is ahead of every rival's"]
        assert (ahead["value"], ahead["unit"]) == (3, "of 3")
    late, final = (
        [interval(f"all tasks, {row}: {measure}, over {rival}") for rival in RIVALS]
        for measure in ("late reward", "final accuracy")
    )
    assert f"by {late[0]} points of late reward over the constant rate and {late[1]} over cosine" in findings
    on_seeds = [
        figures[f"{task}, {row}: seeds whose late reward is ahead of {rival}"] for task in SHORT for rival in RIVALS
    ]
    assert {(figure["value"], figure["unit"]) for figure in on_seeds} == {(10, "of 10")}
    assert f"by {late[0]} and {late[1]} points over all;" in " ".join(page("README.md").split())
    assert "in final accuracy by {} and {}.".format(*final) in findings
    ours = [kind for kind in claims(300) if kind.endswith("noise_linear")]
    whole, updates = (sorted(figures[f"{kind}: {cost}"]["value"] for kind in ours) for cost in COSTS)
    assert f"runs is {whole[0]:.2f} to {whole[-1]:.2f} of the constant rate's" in findings
    assert f"that of their updates {updates[0]:.2f} to {updates[-1]:.2f}." in findings


def test_which_runs_of_300_steps_fell_is_as_measured():
    runs, findings = Runs(CONTEST, makes=False), page("docs/findings.md").split("## 300 steps\n")[1].split("\n## ")[0]
    findings = " ".join(findings.split())
    tasks = {kind.split(", ")[0] for kind in claims(300)}
    seeds = next(part.seeds for part in PARTS if part.name == "long")

    def of(task, row):
        return runs.of(Case(task, row, 300), seeds)

    def spread(task, row):
        rewards = [100 * reward(run) for run in of(task, row)]
        return max(rewards) - min(rewards)

    constant = max(spread(task, RIVAL) for task in tasks)
    falling = max(spread(task, row) for task in tasks for row in (COSINE, DEFAULT))
    assert f"by up to {constant:.1f} points, that of the rates which fall by {falling:.1f} at most" in findings
    ours = [run for task in tasks for run in runs.of(Case(task, DEFAULT, 300), (*seeds, *runs.tuning_seeds))]
    assert f"Of its {len(ours)} runs from there none broke down" in findings
    assert min(map(reward, ours)) > 0.95
    dip, step = min(
        (found, step) for run in of("pocket_rare", DEFAULT) for step, found in enumerate(run.reward[60:], 60)
    )
    twice = reward(runs(Case("pocket_rare", DEFAULT, 300), 0.06, 101))
    assert f"one fell to a reward of {100 * dip:.0f} % after {step} steps" in findings
    assert f"twice that rate ended one at {100 * twice:.0f} %." in findings
    broken, held = sorted(reward(runs(Case("pocket", COSINE, 300), 0.02, seed)) for seed in runs.tuning_seeds)
    assert broken < 0.1 < 0.9 < held


def test_the_decay_alone_is_as_measured():
    figures, findings = results("contest"), page("docs/findings.md")
    for task in SHORT:
        row = f"{task}, 100 steps, gradient_weighted, linear"
        cells = [task, f"{figures[f'{row}: η₀']['value']:g}"]
        for measure in ("late reward", "area"):
            cells += [interval(f"{row}: {measure}"), interval(f"{row}: {measure}, over noise_linear's", "+.1f")]
        assert "| " + " | ".join(cells) + " |" in findings
        assert figures[f"{row}: late reward, over noise_linear's"]["high"] < 0
        assert (figures[f"{row}: area, over noise_linear's"]["low"] > 0) == (task == "pocket_graded")
        assert figures[f"{row}: late reward, over the constant rate's, by t"]["low"] > 0
    gained = interval("all tasks, 100 steps, gradient_weighted, linear: late reward, over the constant rate's")
    assert f"by {gained} points over all" in findings
    noise = "100 steps, gradient_weighted, noise: late reward, over the constant rate's"
    alone = [f"{figures[f'{task}, {noise}']['value']:.1f}".replace("-", "−") for task in SHORT]
    assert "gains {}, {} and {}.".format(*alone) in findings
    over_all = interval("all tasks, 100 steps, gradient_weighted, linear: late reward, over noise_linear's")
    assert f"by late reward: {over_all.replace('-', '−')} points over all" in findings


AT_25 = "pocket, 25 steps, "


def test_every_row_of_25_steps_is_the_measured_one():
    figures, section = results("contest"), page("docs/findings.md").split("## 25 steps\n")[1].split("\n## ")[0]
    kinds = [name.removesuffix(": η₀") for name in figures if name.startswith(AT_25) and name.endswith(": η₀")]
    table = section.split("|---|\n")[1].split("\n<!-- end")[0]
    assert len(kinds) == table.count("\n") + 1 == 30
    for kind in kinds:
        over = [f"{kind}: late reward, over {rival}" for rival in ("the constant rate's", "noise_linear's")]
        plain = [f"{figures[name]['value']:.2f}" if (name := f"{kind}: {what}") in figures else "" for what in PLAIN]
        cells = [
            *(kind.removeprefix(AT_25), f"{figures[f'{kind}: η₀']['value']:g}"),
            *(interval(f"{kind}: {name}") for name in ("final accuracy", "late reward")),
            *(interval(name, "+.1f") if name in figures else "" for name in over),
            interval(f"{kind}: area"),
            *plain,
        ]
        assert "| " + " | ".join(cells) + " |" in table


def test_what_is_said_of_25_steps_is_as_measured():
    figures, findings = results("contest"), page("docs/findings.md").split("## 25 steps\n")[1].split("\n## ")[0]
    findings = " ".join(findings.split())

    def over(kind, measure="area", rival="the constant rate's"):
        figure = figures[f"{AT_25}{kind}: {measure}, over {rival}"]
        return figure["value"], figure["low"], figure["high"]

    moments = {
        name.removeprefix(AT_25).removesuffix(", constant: second moment"): figure["value"]
        for name, figure in figures.items()
        if name.startswith(AT_25) and name.endswith(", constant: second moment")
    }
    small, near = ([name for name, m in moments.items() if least < m < most] for least, most in ((0, 0.5), (0.9, 1.1)))
    assert sorted(small) == ["adaptive", "gradient_weighted", "none"]
    assert sorted(near) == ["batch_mean", "opo", "rloo", "shrinkage"]
    assert moments.keys() == {*small, *near, "remax"}
    values = sorted(moments[name] for name in small)
    assert f"Baselines at {values[0]:.2f} to {values[-1]:.2f} of RLOO's tie" in findings
    for name in {*small} - {"gradient_weighted"}:
        value, low, high = over(f"{name}, constant")
        assert low < 0 < high
    behind = sorted(-over(f"{name}, constant")[0] for name in near)
    assert all(over(f"{name}, constant")[2] < 0 for name in near)
    remax = -over("remax, constant")[0]
    assert f"are {behind[0]:.1f} to {behind[-1]:.1f} points of area behind" in findings
    assert f"with twice of it, {remax:.1f}." in findings
    assert 1.9 < moments["remax"] < 2.1
    value, low, high = over("rloo, constant")
    cost = 1 / figures[f"{AT_25}rloo, constant: CPU time of updates"]["value"]
    assert f"bootstrap's, {-value:.1f} [{-high:.1f}, {-low:.1f}], would call it ahead" in findings
    value, low, high = over("gradient_weighted, constant", rival="RLOO's, by t")
    assert low < 0
    assert f"+{value:.1f} [−{-low:.1f}, {high:.1f}] points of area by Student's interval" in findings
    assert f"Its updates take {cost:.2f} times the CPU time." in findings
    editions = results("results")
    earlier = [
        editions[f"{baseline}, snr: area under the curve, over RLOO's"] for baseline in ("gradient_weighted", "none")
    ]
    first, second = ("{value:.1f} [{low:.1f}, {high:.1f}]".format(**figure) for figure in earlier)
    assert f"had it {first} points of area ahead of RLOO, and no baseline {second} (" in findings
    lost, late = results("lost"), "after 90 steps, "
    moments = [
        f"{lost[f'{task}, {late}{baseline}: second moment']['value']:.2f}"
        for baseline in ("none", "gradient_weighted")
        for task in ("pocket", "pocket_rare")
    ]
    assert (
        "is {} of RLOO's on sums and {} on rare answers, the gradient-weighted one's {} and {} (".format(*moments)
        in findings
    )
    gained = [
        "{value:.2f} [{low:.2f}, {high:.2f}]".format(**lost[f"pocket, {late}{baseline}: gained over RLOO's"])
        for baseline in ("none", "gradient_weighted")
    ]
    gained = [text.replace("[-", "[−") for text in gained]
    assert "gains {} points more than RLOO's, the other's {}.".format(*gained) in findings
    dropped = figures[f"{AT_25}group_mean_std, constant, loss=capo: dropped, behind the constant rate by"]["value"]
    assert f"CAPO was dropped at {dropped:.1f} points behind" in findings
    gepo = over("group_mean, constant, loss=gepo", rival="RLOO's")
    assert "own loss GEPO is {:.1f} [{:.1f}, {:.1f}] points of area ahead of RLOO".format(*gepo) in findings
    for kind in ("opo, constant", "group_mean_std, constant"):
        _, low, high = over(kind, "late reward", "RLOO's")
        assert low < 0 < high
    value, low, high = over("group_mean_std, constant", rival="RLOO's")
    assert f"and is {-value:.1f} [{-high:.1f}, {-low:.1f}] points of area behind it" in findings
    snr, papers = (over(f"gradient_weighted, snr, estimator={name}", "late reward") for name in ("ema", "plug_in"))
    assert "ahead of the constant rate by {:.1f} [{:.1f}, {:.1f}] points".format(*snr) in findings
    assert "own (`plug_in`) by {:.1f} [{:.1f}, {:.1f}];".format(*papers) in findings
    fewer = "gradient_weighted, noise_linear, N = 4, G = 8"
    gain, cost = over(fewer, "area", "noise_linear's"), figures[f"{AT_25}{fewer}: CPU time"]["value"]
    assert "of itself by {:.1f} [{:.1f}, {:.1f}] points of area, for {:.2f} times".format(*gain, cost) in findings
    for size in ("N = 32, G = 4", "N = 8, G = 16"):
        _, low, high = over(f"gradient_weighted, constant, {size}", "late reward")
        assert low < 0 < high
    _, low, high = over("gradient_weighted, constant, optimizer=adamw", "late reward", "noise_linear's")
    assert low < 0 < high
    plain, *others = (
        [
            figures[f"{AT_25}gradient_weighted, {schedule}, optimizer=adamw: {of}"]["value"]
            for of in ("late reward", "area")
        ]
        for schedule in ("constant", "snr, estimator=ema", "noise")
    )
    assert all(late < plain[0] and area > plain[1] for late, area in others)
    runs = Runs(CONTEST, makes=False)
    ends = sorted(reward(runs(Case("pocket", ADAMW, 25), 5e-4, seed)) for seed in runs.tuning_seeds)
    assert "runs end at {:.0f} and {:.0f} % late reward".format(*(100 * end for end in ends)) in findings


def test_other_rivals_are_as_measured():
    figures, section = results("contest"), page("docs/findings.md").split("## Other rivals\n")[1].split("\n## ")[0]
    text = " ".join(section.split())
    start, ours = "pocket, 100 steps, ", "gradient_weighted, "
    kinds = [
        *(f"{ours}{schedule}" for schedule in ("noise_linear", "noise_linear, schedule.power=0.5")),
        *(f"{ours}{schedule}, optimizer=adamw" for schedule in ("constant", "cosine", "noise_linear")),
        *("rloo, constant", "rloo, noise_linear", f"{ours}snr, estimator=ema"),
    ]
    assert section.count(" | ") == 6 * (len(kinds) + 1)
    for kind in kinds:
        cells = [kind, f"{figures[f'{start}{kind}: η₀']['value']:g}", interval(f"{start}{kind}: final accuracy")]
        for measure in ("late reward", "area"):
            over = f"{start}{kind}: {measure}, over noise_linear's"
            cells += [interval(f"{start}{kind}: {measure}"), interval(over, "+.1f") if over in figures else ""]
        assert "| " + " | ".join(cells) + " |" in section

    def over(kind, measure="late reward", rival="noise_linear's"):
        figure = figures[f"{start}{kind}: {measure}, over {rival}"]
        return figure["value"], figure["low"], figure["high"]

    def behind(*of):
        value, low, high = over(*of)
        return f"{-value:.1f} [{'−' * (high > 0)}{abs(high):.1f}, {-low:.1f}]"

    measures = ("final accuracy", "late reward", "area")
    assert all(low < 0 < high for _, low, high in (over(kinds[1], measure) for measure in measures))
    rare = f"pocket_rare, 100 steps, {kinds[1]}"
    on_rare = {measure: figures[f"{rare}: {measure}, over noise_linear's"] for measure in measures}
    final, late, area = ([figure[end] for end in ("value", "low", "high")] for figure in on_rare.values())
    assert f"late reward, +{late[0]:.1f} [−{-late[1]:.1f}, {late[2]:.1f}] points, and final accuracy" in text
    assert final[1] < 0 < final[2]
    assert f"its area is {-area[0]:.1f} [{-area[2]:.1f}, {-area[1]:.1f}] behind, which" in text
    cosine = [over(kinds[3], measure) for measure in measures]
    assert cosine[1][1] < 0 < cosine[1][2]
    assert cosine[0][2] < 0 > cosine[2][2]
    ahead = [over(kind, "late reward", "AdamW's") for kind in (kinds[4], kinds[3])]
    ahead = ["{:.1f} [{:.1f}, {:.1f}]".format(*of) for of in ahead]
    assert f"constant rate by {ahead[0]} points of late reward, cosine by {ahead[1]}." in text
    assert all(low < 0 < high for _, low, high in (over(kinds[4], measure) for measure in measures))
    assert f"the default is {behind(kinds[6])} points of late reward behind" in text
    assert f"is {behind(kinds[5], 'late reward', RIVALS[0])} behind that baseline at one" in text
    assert f"** by {behind(kinds[7])} points of late reward, by Student's interval a tie" in text
    assert over(kinds[7], rival="noise_linear's, by t")[2] > 0
    runs, case = Runs(CONTEST, makes=False), Case("pocket", SNR, 100)
    chosen, other = (runs.score(case, rate) for rate in (0.06, 0.03))
    assert 0.4 < 100 * (chosen - other) < 0.6
    fell = min(min(runs(case, 0.06, seed).reward[10:]) for seed in runs.tuning_seeds)
    assert f"its reward fell to {100 * fell:.0f} % on the way" in text
    _, low, high = over(kinds[7], "late reward", RIVALS[0])
    assert low < 0 < high


def test_what_a_history_brings_is_as_measured():
    """The weighted one is ahead by area and ties by late reward and accuracy; the other one ties or is behind."""
    figures, findings = results("contest"), page("docs/findings.md")
    names = {
        "gradient_weighted": "gradient_weighted, constant",
        "history": "history, constant",
        "history, uniform weights": "history, constant, baseline.weighted=false",
    }
    for title, name in names.items():
        row = f"pocket, 100 steps, {name}, data.train.size=64"
        cells = [title, f"{figures[f'{row}: second moment']['value']:.2f}"]
        for measure in ("late reward", "area", "final accuracy"):
            over = f"{row}: {measure}, over gradient_weighted's"
            cells += [interval(f"{row}: {measure}"), interval(over, "+.1f") if over in figures else ""]
            if over in figures:
                ahead = title == "history" and measure != "final accuracy"
                assert (figures[over]["low"] > 0) == ahead
        assert figures[f"{row}: η₀"]["value"] == 0.01
        assert "| " + " | ".join(cells) + " |" in findings


def test_the_step_beside_trl_is_the_measured_one():
    ratio = results("step")["TRL's step over ours with vLLM"]["value"]
    assert f"TRL's takes {ratio:.2f} times as long as ours with vLLM" in README


def test_what_a_horizon_asks_of_rates_is_as_computed():
    figures = {name: figure["value"] for name, figure in results("horizon").items()}
    shares = [figures[name] for name in figures if name.startswith("laboratory") and name.endswith(": constant")]
    assert len(shares) == 12
    proved = [value for name, value in figures.items() if name.endswith("η₀ proved")]
    best = [value for name, value in figures.items() if name.endswith(": best η₀")]
    assert f"best rate there is {min(best):.0f} to {round(max(best), -2):,.0f} times as large" in README
    assert f"the proved one makes {min(proved):.2f} to {max(proved):.1f} % of" in README
    assert f"the best constant one makes at least {min(shares):.1f} % of the best\nschedule's progress" in README
    for shape, sentence in (
        ("theorem 4", "rate makes {} to {} %"),
        ("linear", "a linear decay {} to {} %"),
        ("its root, linear", "{} to {} % (`python benchmarks/horizon.py`"),
    ):
        names = [
            f"quadratic of N·SNR = {n_snr}, T = {steps}: {shape}" for n_snr in (0.05, 0.5, 5) for steps in (100, 300)
        ]
        found = [figures[name] for name in names]
        assert sentence.format(f"{min(found):.0f}", f"{max(found):.0f}") in README


def test_what_did_not_earn_its_place_is_as_measured():
    """In the log of findings: rates without tuning, groups by the noise scale, and responses by allotment."""
    log = page("docs/findings.md").split("## Log")[1]
    figures = {name: figure["value"] for name, figure in results("horizon").items()}
    problems = [f"quadratic of N·SNR = {n_snr}, T = {steps}" for n_snr in (0.05, 0.5, 5) for steps in (100, 300)]

    def of(shape):
        return [figures[f"{problem}: {shape}"] for problem in problems]

    untuned, batches = of("measured"), of("constant, N by the noise scale")
    assert all(a < b for a, b in zip(untuned, of("constant"), strict=True))
    assert f"{min(untuned):.0f} to {max(untuned):.0f} % of the best schedule's progress, less than the tuned" in log
    assert all(a > b for a, b in zip(batches, of("constant, best N"), strict=True))
    behind = [b - a for a, b in zip(batches, of("linear, best N"), strict=True)]
    assert f"by {min(behind):.0f} to {max(behind):.0f} points of the best schedule's progress" in log
    tasks = results("tasks")
    by_norms, by_spread = (
        [figure["value"] for name, figure in tasks.items() if name.endswith(f"noise left, allotted by {by}")]
        for by in ("norms", "spread of rewards")
    )
    assert f"{min(by_norms):.2f} to {max(by_norms):.2f} times that of equal shares by exact norms" in log
    assert f"{min(by_spread):.2f} to {max(by_spread):.2f} by the spread of rewards" in log
    within = [figure["value"] for name, figure in tasks.items() if name.endswith("noise within prompts")]
    assert f"{min(within):.0f} to {max(within):.0f} % of it from responses" in log


def test_what_a_step_loses_is_as_measured():
    figures, findings = results("lost"), page("docs/findings.md")

    def interval(name, form=".0f"):
        figure = figures[name]
        return f"{figure['value']:{form}} [{figure['low']:{form}}, {figure['high']:{form}}]"

    places = [name.removesuffix(": promised") for name in figures if name.endswith(": promised")]
    assert len(places) == 12
    for place in places:
        task, steps = re.fullmatch(r"(\w+), after (\d+) steps", place).groups()
        ours = f"{place}, gradient_weighted: "
        best = interval(f"{ours}best rate of a single step", ".1f")
        cells = [
            *(task, steps, interval(f"{place}: promised", ".2f"), interval(f"{place}, rloo: lost")),
            *(interval(f"{ours}lost"), interval(f"{ours}lost to noise")),
            best if figures[f"{ours}lost"]["low"] > 1 else "none: it curves up",
        ]
        assert "| " + " | ".join(cells) + " |" in findings
    value = {name: figure["value"] for name, figure in figures.items()}
    first, early, *_, last = (f"pocket, after {steps} steps" for steps in (0, 10, 30, 90))
    ours = ", gradient_weighted: "
    assert f"{interval(f'{early}{ours}gained over RLOO' + chr(39) + 's', '.2f')} points a step over RLOO" in findings
    moment = value[f"{early}{ours}second moment"]
    expected = value[f"{early}, rloo: lost to noise"] / 100 * value[f"{early}: promised"] * (1 - moment)
    assert f"its second moment, {moment:.2f} of RLOO's, let one expect {expected:.2f}" in findings
    noise = sorted(value[f"{first}, {baseline}: lost to noise"] for baseline in ("rloo", "gradient_weighted"))
    assert "Before, noise takes {:.0f} to {:.0f} %.".format(*noise) in findings
    late = sorted(value[f"{task}, after 90 steps{ours}second moment"] for task in ("pocket", "pocket_graded"))
    assert "At the end its second moment is {:.2f} to {:.2f} of RLOO's".format(*late) in findings
    assert f"from {value[f'{first}{ours}best rate of a single step']:.0f} times the tuned constant rate" in findings
    assert 0.45 < value[f"{last}{ours}best rate of a single step"] < 0.55  # "half of it"


def test_how_far_steps_go_is_as_measured():
    findings = page("docs/findings.md")
    cells, value = {}, {}
    for name, found in results("overshoot").items():
        kind, phase = name.rsplit(": ", 1)
        ends = f" [{found['low']:.1f}, {found['high']:.1f}]" if "low" in found else ""
        cells.setdefault(kind, []).append(f"{found['value']:.1f}{ends}")
        task, steps, _, schedule, eta0 = kind.split(", ")
        if steps == "100 steps":
            twice = schedule == "constant" and not ends
            value.setdefault((schedule + twice * ", twice", phase), {})[task] = found["value"]
    section = findings.split("## How far steps go\n")[1].split("\n## ")[0]
    kinds = [kind for kind in cells if ", 100 steps, " in kind]
    assert len(kinds) == section.count("\n| pocket") == 16
    for kind in kinds:
        task, _, _, schedule, eta0 = kind.split(", ")
        assert "| " + " | ".join([task, schedule, eta0.removeprefix("η₀ = "), *cells[kind]]) + " |" in section
    first, half, second = (f"{phase} % of the steps" for phase in ("0 to 10", "20 to 50", "50 to 100"))

    def over(schedule, phase, *without):
        found = sorted(of for task, of in value[schedule, phase].items() if task not in without)
        return f"{found[0]:.1f} to {found[-1]:.1f}"

    section, rare = " ".join(section.split()), "pocket_rare"
    assert f"it is {over('constant', second, rare)} times the best" in section
    assert f"too short, {over('constant', first, rare)} times" in section
    left = [f"{r * (2 - r):.1f}" for r in map(float, over("constant", second, rare).split(" to "))]
    gain = "gain {} to {} of what the best".format(*left)
    assert f"{gain} one would." in section
    twice = over("constant, twice", first, rare)
    assert f"{twice} times, where the tuned one is at {over('constant', first, rare)}:" in section
    assert f"**The default is at {over('noise_linear', second)} over the second half**" in section
    assert f"Over its first tenth it is at {over('noise_linear', first)}." in section
    assert all(
        of > 1
        for (schedule, phase), tasks in value.items()
        for task, of in tasks.items()
        if phase in (half, second) and task != rare
    )
    log = findings.split("## Log")[1]
    assert f"is {twice} times the best of a single step from the first tenth" in log
    assert f"it ends at {over('constant', second, rare)}, where steps {gain} would" in log


def test_what_a_history_takes_off_is_as_measured():
    log = page("docs/findings.md").split("## Log")[1]
    for weights, sentence in (("weighted", "its second moment is {} to {} of"), ("uniform", "have them, {} to {} (")):
        found = [
            figure["value"]
            for name, figure in results("history").items()
            if name.endswith(f"visits 9 to 25, {weights}, γ = 1: second moment")
        ]
        assert len(found) == 3
        assert sentence.format(f"{min(found):.2f}", f"{max(found):.2f}") in log


def test_what_stale_responses_ask_of_rates_is_as_measured():
    log = page("docs/findings.md").split("## Log")[1]
    over = {name: figure for name, figure in results("lag").items() if name.endswith("over unscaled")}
    clear = {name: figure["value"] for name, figure in over.items() if figure["low"] > 0 or figure["high"] < 0}
    assert (len(over), len(clear)) == (12, 2)
    assert all(name.startswith("lag 4, linear × ") for name in clear)
    first, second = (f"−{-value:.1f}" for value in sorted(clear.values(), reverse=True))
    assert f"of twelve differences two exclude a tie, {first} and {second} points" in log


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


GRADIENT_WEIGHTED, SIXTEEN = "baseline=gradient_weighted", "rollout.prompts_per_step=16"


def test_what_was_dropped_early_was_behind():
    runs = [json.loads(line) for line in (ROOT / "benchmarks" / "results" / "contest.jsonl").read_text().splitlines()]
    reached = {
        schedule: {
            seed: 100 * sum(run["record"]["reward"][-25:]) / 25
            for run in runs
            for seed in (1, 2, 101, 102)
            if (run["task"], *run["overrides"])
            == (
                "pocket",
                GRADIENT_WEIGHTED,
                f"schedule={schedule}",
                f"eta0={eta0}",
                SIXTEEN,
                "steps=100",
                f"seed={seed}",
            )
        }
        for schedule, eta0 in (("snr_linear", 0.04), ("noise_linear", 0.03))
    }
    first, second = (sorted(found.values()) for found in reached.values())
    assert len(first) == len(second) == 4
    log = page("docs/findings.md").split("## Log")[1]
    made = sum({"schedule=snr_linear", "steps=100"} < {*run["overrides"]} for run in runs)
    assert f"Dropped after {made} runs" in log
    assert f"Late reward {first[0]:.1f} to {first[-1]:.1f} % on four seeds" in log
    assert f"where `noise_linear` had {second[0]:.1f} to {second[-1]:.1f} %" in log


def test_what_bad_numbers_and_settings_do_is_as_measured():
    poisoned, settings = results("poison"), results("settings")
    assert poisoned["steps"]["value"] == 10_000
    assert f"Of 10,000 steps with {poisoned['refused steps']['value']:,.0f} poisoned ones" in README
    assert all(
        poisoned[f"{kind}: numbers that differ"]["value"] == 0 for kind in ("parameters", "optimizer", "averages")
    )
    tried, right = (
        settings[name]["value"]
        for name in ("bad settings tried", "of them in one line, with status 2 and nothing written")
    )
    everything = settings["settings and sections tried"]["value"]
    assert f"Of {tried:,.0f} bad values, at least one for\neach of {everything:.0f} settings" in README
    assert f"all scripts, {right:,.0f} ended with one line" in README


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
    found = results("judged-labelled")

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
    (slower,) = (figure["value"] for name, figure in found.items() if name.startswith("a verdict, over one by"))
    assert f"A verdict takes {slower:.1f} times as long as before" in text
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
    assert wrong == found["random models: wrong"]["value"] == 0


def test_what_helps_in_short_is_as_measured():
    figures, sums = results("contest"), "pocket, 100 steps, "
    area = figures[f"{AT_25}gradient_weighted, constant: area, over RLOO's, by t"]
    reward = figures[f"{sums}rloo, noise_linear: late reward, over noise_linear's"]
    by_t = figures[f"{sums}rloo, noise_linear: late reward, over noise_linear's, by t"]
    assert area["low"] < 0 > max(reward["high"], by_t["high"])
    cost = 1 / figures[f"{AT_25}rloo, constant: CPU time of updates"]["value"]
    for text in (page("README.md"), page("docs/findings.md").split("## 100 steps\n")[0]):
        assert f"by {-reward['value']:.1f} points of reward under" in text
        assert f"{cost:.2f} times " in text
    logit = results("tiers")["pocket: fraction of variance reduction kept, logit"]["value"]
    assert f"need no norms, keep {100 * logit:.0f} % of what" in page("docs/findings.md")
    for tied in ("noise_linear, schedule.power=0.5", "cosine, optimizer=adamw"):
        found = figures[f"{sums}gradient_weighted, {tied}: late reward, over noise_linear's"]
        assert found["low"] < 0 < found["high"]
    snr = "gradient_weighted, snr, estimator=ema: late reward, over the constant rate's"
    assert figures[AT_25 + snr]["low"] > 0 > figures[sums + snr]["low"]


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
