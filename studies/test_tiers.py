"""What the pages say of the tiers is what was measured."""

import pytest
from measured import results
from pages import page


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
