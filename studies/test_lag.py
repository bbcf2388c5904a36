"""What findings say of stale responses is what was measured."""

from measured import results
from pages import page


def test_what_stale_responses_ask_of_rates_is_as_measured():
    log = page("docs/findings.md").split("## Log")[1]
    over = {name: figure for name, figure in results("lag").items() if name.endswith("over unscaled")}
    clear = {name: figure["value"] for name, figure in over.items() if figure["low"] > 0 or figure["high"] < 0}
    assert (len(over), len(clear)) == (12, 2)
    assert all(name.startswith("lag 4, linear × ") for name in clear)
    first, second = (f"−{-value:.1f}" for value in sorted(clear.values(), reverse=True))
    assert f"of twelve differences two exclude a tie, {first} and {second} points" in log
