"""The README's numbers stand in the results, and its table of equations points at the lines it quotes."""

import json
import re

import pytest
from conftest import ROOT

README = (ROOT / "README.md").read_text()


def test_equations_point_at_their_lines():
    rows = re.findall(r"^\| .* \| `(.+)` \| \[[\w./]+\]\(([\w./]+)#L(\d+)\) \|$", README, flags=re.MULTILINE)
    assert len(rows) >= 12
    for code, path, line in rows:
        assert code.replace("\\|", "|") in (ROOT / path).read_text().splitlines()[int(line) - 1], (code, path, line)


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (ROOT / target).exists(), target


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
        assert f"| {seed} | {before:.1f} % | {after:.1f} % | +{rise:.1f} points | {gap:.0e} |" in README
    assert all(figure["holds"] is not False for figure in figures.values())


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


@pytest.mark.parametrize("tier", ["exact", "sketch", "logit", "length"])
def test_tier_figures_are_the_measured_ones(tier):
    figures = results("tiers")
    for policy in ("pocket", "SmolLM2-135M"):
        moment = figures[f"{policy}: second moment, {tier}"]
        assert f"{moment['value']:.2f} [{moment['low']:.2f}, {moment['high']:.2f}]" in README


def test_the_step_beside_trl_is_the_measured_one():
    ratio = results("step")["TRL's step over ours with vLLM"]["value"]
    assert f"TRL's takes {ratio:.2f} times as long as ours with vLLM" in README
