"""Theorem 3's bound on a step of the laboratory, which Theorem 4's rate minimises."""

from laboratory import Laboratory


def smoothness(lab: Laboratory) -> float:
    """``B_R·L + B_R²·M``: ``‖∇² log π‖ ≤ L`` and ``‖∇ log π‖² ≤ M``, from the features."""
    longest = lab.features.norm(dim=-1).max().item()
    return longest**2 + (2 * longest) ** 2


def bound_of_a_step(lab: Laboratory, eta: float, noise: float, n_groups: int) -> float:
    """What Theorem 3 adds to the loss: ``−η‖∇L‖² + (B_R L + B_R² M)/2 · η² (‖∇L‖² + tr H/N)``."""
    square = lab.gradient.square().sum().item()
    return -eta * square + smoothness(lab) / 2 * eta**2 * (square + noise / n_groups)
