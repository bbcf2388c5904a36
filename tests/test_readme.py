"""The README's numbers stand in the results, and its table of equations points at the lines it quotes."""

import json
import re

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


def test_cost_figures_are_the_measured_ones():
    result = json.loads((ROOT / "benchmarks" / "results" / "gradnorm.json").read_text())
    figures = {figure["name"]: figure["value"] for figure in result["figures"]}
    rows = re.findall(r"^\| ([a-z+, ]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]*) ?\|$", README, flags=re.MULTILINE)
    assert len(rows) == 7
    for kind, short, long, memory in rows:
        assert short == f"{figures[f'T=128: time, {kind}']:.2f}"
        assert long == f"{figures[f'T=512: time, {kind}']:.2f}"
        assert memory == (f"{figures[f'T=128: peak memory, {kind}']:.2f}" if memory else "")
