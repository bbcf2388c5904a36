"""What findings say of stale responses is what was measured."""

from measured import results


def test_two_of_twelve_differences_exclude_a_tie():
    """Both of a linear decay at a lag of 4 steps, where scaling does better."""
    over = {name: figure for name, figure in results("lag").items() if name.endswith("over unscaled")}
    clear = {name for name, figure in over.items() if figure["low"] * figure["high"] > 0}
    assert (len(over), len(clear)) == (12, 2)
    assert all(name.startswith("lag 4, linear × ") and over[name]["high"] < 0 for name in clear)
