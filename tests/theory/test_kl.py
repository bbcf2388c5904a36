"""Every claim of ``docs/kl.md`` that a finite sum can check: what a KL penalty does to the baseline and the SNR."""

import math
from copy import copy
from statistics import median

import pytest
import torch
from laboratory import Laboratory, Sequences

from oblr.baselines.base import Groups
from oblr.baselines.gradient_weighted import GradientWeightedBaseline
from oblr.baselines.leave_one_out import leave_one_out_means

BETA = 0.7
LABORATORIES = [Laboratory, Sequences]


def gradient(function, theta):
    return torch.autograd.functional.jacobian(function, theta)


def close(value, expected):
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)


def reference(lab, distance=0.8, seed=3):
    """Parameters of a reference policy, [D]."""
    change = torch.randn(lab.theta.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return lab.theta + distance * change


def log_ratios(lab, ref):
    """``D(o) = log π(o|q) − log π_ref(o|q)``, [P, K]."""
    return (lab.token_logs(lab.theta) - lab.token_logs(ref)).sum(2)


def divergence(lab, theta, other):
    """``KL(π_θ‖π_other)`` of whole responses."""
    logs = lab.token_logs(theta).sum(2)
    return (logs.exp() * (logs - lab.token_logs(other).sum(2))).sum(1).mean()


def penalised(lab, ref, beta=BETA):
    """``J_β`` as a function of the parameters: nothing in it is held constant."""
    return lambda theta: lab.objective(theta) - beta * divergence(lab, theta, ref)


def in_the_reward(lab, ref, beta=BETA):
    """k1: the same laboratory with ``R' = R − β D``, numbers like any other rewards."""
    lab = copy(lab)
    lab.rewards = lab.rewards - beta * log_ratios(lab, ref)
    return lab


def in_the_loss(lab, ref, kind, beta=BETA):
    """``g_q = (1/G) Σ_i [A_i s_i − β v_i]`` with ``v = Σ_t κ_t ∇ log π_t``."""
    lab, d = copy(lab), lab.token_logs(lab.theta) - lab.token_logs(ref)
    factors = {"k1": torch.ones_like(d), "k2": d, "k3": 1 - (-d).exp()}[kind]
    lab.penalties = beta * (factors[..., None] * lab.token_gradients).sum(2)
    return lab


def expectation(lab, values):
    """``E_q E_o`` of a vector for each response [P, K, D]."""
    return (lab.probabilities[..., None] * values).sum(1).mean(0)


def best_baseline(lab):
    """``b* = E[nR − β⟨s, v⟩]/E[n]`` of each prompt, [P]."""
    n = lab.square_norms
    numerator = n * lab.rewards - (lab.gradients * lab.penalties).sum(2)
    return (lab.probabilities * numerator).sum(1) / (lab.probabilities * n).sum(1)


def leave_one_out(rewards, weights, lengths):
    return GradientWeightedBaseline()(Groups(rewards, weights, lengths, rewards))


# 1. In the reward


@pytest.mark.parametrize("kind", LABORATORIES)
@pytest.mark.parametrize(("n_groups", "group_size"), [(1, 3), (2, 2)])
def test_k1_is_unbiased_with_the_leave_one_out_baseline(kind, n_groups, group_size):
    lab = kind()
    ref = reference(lab)
    mean, _ = in_the_reward(lab, ref).moments(leave_one_out, n_groups, group_size)
    close(mean, gradient(penalised(lab, ref), lab.theta))
    assert (mean - lab.gradient).norm() > 0.1 * lab.gradient.norm()  # the penalty is not too small to be seen


def test_k1_stays_unbiased_on_responses_of_another_policy():
    """``E_μ[ρ (R' − b) s]`` is the same for every b, and ``D`` is of the policy that is trained."""
    lab = Laboratory()
    ref, behaviour = reference(lab), lab.token_logs(reference(lab, seed=4)).sum(2).exp()
    shaped = in_the_reward(lab, ref)
    ratios = lab.probabilities / behaviour
    values = behaviour[..., None] * (ratios * (shaped.rewards - 0.3))[..., None] * lab.gradients
    close(values.sum(1).mean(0), gradient(penalised(lab, ref), lab.theta))


@pytest.mark.parametrize("kind", LABORATORIES)
def test_theorem_7_holds_for_the_shaped_reward(kind):
    lab = kind()
    shaped = in_the_reward(lab, reference(lab))
    _, least = shaped.moments(shaped.constant(shaped.optimal_baseline))
    for change in torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64):
        assert shaped.moments(shaped.constant(shaped.optimal_baseline + 0.1 * change))[1] > least
    assert shaped.moments(shaped.constant(lab.optimal_baseline))[1] > least  # E[nR]/E[n], which ignores the penalty


def test_smoothness_of_the_penalised_objective():
    """``∇²J_β = E[R'(s sᵀ + ∇² log π)] − βF``, and the bounds on its norm that the page derives."""
    lab = Laboratory()
    ref = reference(lab)
    longest = lab.features.norm(dim=-1).max().item()
    smooth, steep = longest**2, (2 * longest) ** 2  # ‖∇² log π‖ ≤ L, ‖s‖² ≤ M
    generator = torch.Generator().manual_seed(0)
    for radius in (0.0, 0.3, 1.0, 3.0):
        lab.theta = ref + radius * torch.nn.functional.normalize(torch.randn(3, generator=generator).double(), dim=0)
        p, s, d = lab.probabilities, lab.gradients, log_ratios(lab, ref)
        outer = s[..., :, None] * s[..., None, :]
        fisher = (p[..., None, None] * outer).sum(1)  # of a prompt, and −∇² log π of its responses
        weights = p * (lab.rewards - BETA * d)
        hessian = ((weights[..., None, None] * (outer - fisher[:, None])).sum(1) - BETA * fisher).mean(0)
        close(hessian, torch.autograd.functional.hessian(penalised(lab, ref), lab.theta))

        kl, absolute = (p * d).sum(1).mean().item(), (p * d.abs()).sum(1).mean().item()
        assert absolute <= kl + math.sqrt(2 * kl) + 1e-12
        assert (p * d.clamp(max=0).square()).sum(1).mean().item() <= 4 * kl + 1e-12
        assert d.abs().max() <= math.sqrt(steep) * radius + 1e-12
        norm = torch.linalg.matrix_norm(hessian, 2).item()
        assert norm <= (1 + BETA * absolute) * (smooth + steep) + BETA * min(smooth, steep)


def test_no_worse_than_the_reference_means_smooth():
    """Where ``J_β(θ) ≥ J_β(θ_ref)``: ``β KL ≤ B_R`` and ``β E|D| ≤ B_R + √(2 β B_R)``, whatever the log-ratios."""
    lab = Laboratory()
    ref = lab.theta.clone()
    for beta in (0.01, 0.1, 1.0):
        objective, worst = penalised(lab, ref, beta), 0.0
        changes = torch.randn(300, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        for theta in ref + torch.linspace(0, 8, 300, dtype=torch.float64)[:, None] * changes:
            if objective(theta) >= objective(ref):
                lab.theta = theta
                p, d = lab.probabilities, log_ratios(lab, ref)
                worst = max(worst, beta * (p * d.abs()).sum(1).mean().item())
                assert beta * (p * d).sum(1).mean() <= 1
        assert 0 < worst <= 1 + math.sqrt(2 * beta)


def test_theorem_3_holds_inside_a_ball_around_the_reference():
    """With ``B_R' = B_R + β r √M`` in the ball of radius r; the same steps as without a penalty otherwise."""
    lab, n_groups, group_size, radius = Laboratory(responses=2), 2, 2, 1.0
    ref = lab.theta.clone()
    longest = lab.features.norm(dim=-1).max().item()
    smooth, steep = longest**2, (2 * longest) ** 2
    constant = (1 + BETA * radius * math.sqrt(steep)) * (smooth + steep) + BETA * smooth
    objective, generator = penalised(lab, ref), torch.Generator().manual_seed(0)
    for _ in range(10):
        shaped = in_the_reward(lab, ref)
        advantages = shaped.constant(shaped.optimal_baseline)
        _, noise = shaped.moments(advantages, 1, group_size)
        square = shaped.gradient.square().sum().item()
        eta = square / (square + noise / n_groups) / constant
        expected = 0.0
        for chance, prompts, responses in shaped.steps(n_groups, group_size):
            theta = lab.theta + eta * shaped.group_gradients(prompts, responses, advantages).mean(0)
            assert (theta - ref).norm() < radius
            expected += chance * objective(theta).item()
        assert expected - objective(lab.theta).item() >= eta * square / 2 > 0
        step = shaped.group_gradients(*shaped.sample(n_groups, group_size, generator), advantages).mean(0)
        lab.theta = lab.theta + eta * step


def at_the_optimum():
    """One prompt, and parameters enough for ``π ∝ π_ref exp(R/β)``: the laboratory there, and its reference."""
    lab = Laboratory(prompts=1, responses=3, size=3)
    ref = reference(lab)
    lab.theta = ref + torch.linalg.solve(lab.features[0], lab.rewards[0] / BETA)
    return lab, ref


def test_at_the_optimum_k1_has_no_noise_and_a_penalty_in_the_loss_has():
    lab, ref = at_the_optimum()
    close(gradient(penalised(lab, ref), lab.theta), torch.zeros(3, dtype=torch.float64))
    shaped = in_the_reward(lab, ref)
    assert shaped.rewards.std() < 1e-12
    assert shaped.moments(leave_one_out)[1] < 1e-20
    penalty = in_the_loss(lab, ref, "k2")
    assert penalty.moments(leave_one_out)[1] > 1e-3
    assert penalty.moments(lab.constant(best_baseline(penalty)))[1] < 1e-20  # the cross term is all that was missing


def test_near_the_optimum_the_snr_of_k1_does_not_vanish():
    lab, ref = at_the_optimum()
    optimum, ratios = lab.theta.clone(), []
    for distance in (1e-2, 1e-3, 1e-4):
        lab.theta = optimum + distance * torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64)
        shaped = in_the_reward(lab, ref)
        _, noise = shaped.moments(leave_one_out)
        plain = in_the_loss(lab, ref, "k2").moments(lab.constant(lab.optimal_baseline))[1]
        ratios.append((shaped.gradient.square().sum().item() / noise, shaped.gradient.square().sum().item() / plain))
    snr, snr_in_loss = zip(*ratios, strict=True)
    assert snr[0] > 0.05
    assert snr[2] == pytest.approx(snr[1], rel=0.01)
    assert snr_in_loss[1] == pytest.approx(snr_in_loss[0] / 100, rel=0.1)  # signal falls, noise does not


# 2. In the loss


@pytest.mark.parametrize("kind", ["k2", "k3"])
@pytest.mark.parametrize("laboratory", LABORATORIES)
@pytest.mark.parametrize("group_size", [1, 3])
def test_the_optimal_baseline_has_a_cross_term(laboratory, kind, group_size):
    """``tr H(b) − tr H(b*) = E_q[(b − b*)² E[n]]/G`` for every b, that of ``E[nR]/E[n]`` included."""
    lab = laboratory()
    penalty = in_the_loss(lab, reference(lab), kind)
    best, n = best_baseline(penalty), (lab.probabilities * lab.square_norms).sum(1)
    mean, least = penalty.moments(lab.constant(best), group_size=group_size)
    close(mean, lab.gradient - expectation(lab, penalty.penalties))
    for change in torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64):
        _, noise = penalty.moments(lab.constant(best + 0.1 * change), group_size=group_size)
        assert noise > least
        assert noise - least == pytest.approx(((0.1 * change) ** 2 * n).mean().item() / group_size, rel=1e-10)
    _, without = penalty.moments(lab.constant(lab.optimal_baseline), group_size=group_size)
    cross = (lab.probabilities * (lab.gradients * penalty.penalties).sum(2)).sum(1)  # β E⟨s, v⟩
    assert without - least == pytest.approx((cross**2 / n).mean().item() / group_size, rel=1e-10)
    assert without > 1.001 * least


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_what_the_missing_cross_term_costs(kind):
    """``E[nR]/E[n]`` beside ``b*``: at the median of 20 laboratories more than half as much noise again."""
    ratios = []
    for seed in range(20):
        lab = Sequences(seed=seed)
        penalty = in_the_loss(lab, reference(lab), kind)
        baselines = best_baseline(penalty), lab.optimal_baseline
        least, without = (penalty.moments(lab.constant(b), group_size=2)[1] for b in baselines)
        ratios.append(without / least)
    assert median(ratios) > 1.5


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_leave_one_out_baselines_stay_unbiased_with_a_penalty_in_the_loss(kind):
    """Whether they average ``R_j`` or the effective ``R_j − β⟨s_j, v_j⟩/n_j``."""
    lab = Sequences()
    penalty = in_the_loss(lab, reference(lab), kind)
    expected = lab.gradient - expectation(lab, penalty.penalties)
    close(penalty.moments(leave_one_out)[0], expected)
    effective = lab.rewards - (lab.gradients * penalty.penalties).sum(2) / lab.square_norms

    def corrected(rewards, weights, _):
        own = (rewards[..., None, None] == lab.rewards).flatten(2).int().argmax(2)
        return rewards - leave_one_out_means(effective.flatten()[own], weights)

    close(penalty.moments(corrected)[0], expected)


def test_the_part_of_the_penalty_across_the_gradient_no_baseline_removes():
    """``E‖(R−b)s − βv‖² = E[(R̃ − b)² n] + β² E‖v⊥‖²`` with ``R̃ = R − β⟨s, v⟩/n``; one token has no ``v⊥``."""
    for laboratory in LABORATORIES:
        lab = laboratory()
        penalty = in_the_loss(lab, reference(lab), "k2")
        n, inner = lab.square_norms, (lab.gradients * penalty.penalties).sum(2)
        across = penalty.penalties - (inner / n)[..., None] * lab.gradients
        total = ((lab.rewards - 0.3)[..., None] * lab.gradients - penalty.penalties).square().sum(2)
        close(total, (lab.rewards - inner / n - 0.3).square() * n + across.square().sum(2))
        assert (across.square().sum(2).max() > 1e-3) == (laboratory is Sequences)


@pytest.mark.parametrize("laboratory", LABORATORIES)
def test_k1_in_the_loss_is_a_shift_of_the_baseline(laboratory):
    lab = laboratory()
    loss = in_the_loss(lab, reference(lab), "k1")
    close(expectation(lab, loss.penalties), torch.zeros_like(lab.theta))
    close(best_baseline(loss), lab.optimal_baseline - BETA)
    values = torch.tensor([0.2, 0.6], dtype=torch.float64)
    assert loss.moments(lab.constant(values))[1] == pytest.approx(
        lab.moments(lab.constant(values + BETA))[1], rel=1e-10
    )


# 3. What the penalties in the loss descend


def test_one_token_k2_is_the_gradient_of_one_kl_and_k3_of_the_other():
    lab = Laboratory()
    ref = reference(lab)
    reverse = gradient(lambda theta: divergence(lab, theta, ref), lab.theta)
    forward = gradient(lambda theta: divergence(lab, ref, theta), lab.theta)
    close(expectation(lab, in_the_loss(lab, ref, "k2", 1.0).penalties), reverse)
    close(expectation(lab, in_the_loss(lab, ref, "k3", 1.0).penalties), forward)
    assert (forward - reverse).norm() > 0.1 * reverse.norm()


@pytest.mark.parametrize("laboratory", LABORATORIES)
def test_k2_of_whole_responses_is_k1_with_a_baseline_that_ignores_the_penalty(laboratory):
    """``A_i s_i − β D_i s_i = (R'_i − b_i) s_i``, term by term."""
    lab = laboratory()
    ref = reference(lab)
    loss = copy(lab)
    loss.penalties = BETA * log_ratios(lab, ref)[..., None] * lab.gradients
    shaped, prompts, responses = in_the_reward(lab, ref), torch.tensor([0, 1, 1]), torch.tensor([[0], [1], [2]])
    value = torch.tensor([0.2, 0.6], dtype=torch.float64)
    close(
        loss.group_gradients(prompts, responses, lab.constant(value)),
        shaped.group_gradients(prompts, responses, shaped.constant(value)),
    )


def prefix_divergences(lab, ref, forward):
    """``Σ_t E KL_t(prefix)`` of next-token distributions; the prefixes are drawn from the policy as it stands."""

    def between(theta):
        total, reach = 0.0, torch.ones(len(lab.rewards), 1, dtype=torch.float64)
        for features in lab.prefixes:
            logs, others = (lab.next_logs(x, features) for x in ((ref, theta) if forward else (theta, ref)))
            total = total + (reach * (logs.exp() * (logs - others)).sum(2)).sum(1).mean()
            reach = (reach[..., None] * lab.next_logs(lab.theta, features).exp()).flatten(1)
        return total

    return between


@pytest.mark.parametrize(("kind", "forward"), [("k2", False), ("k3", True)])
def test_per_token_penalties_hold_prefixes_fixed(kind, forward):
    """They follow ``Σ_t KL_t`` at the prefixes that were sampled, not how the policy comes by its prefixes."""
    lab = Sequences(length=3)
    ref = reference(lab)
    mean = expectation(lab, in_the_loss(lab, ref, kind, 1.0).penalties)
    close(mean, gradient(prefix_divergences(lab, ref, forward), lab.theta))
    whole = gradient(lambda theta: divergence(lab, ref, theta) if forward else divergence(lab, theta, ref), lab.theta)
    assert (mean - whole).norm() > 0.01 * whole.norm()


def future(lab, ref):
    """``E[Σ_t (Σ_{u>t} d_u) s_t]`` and ``∇KL(π‖π_ref)``."""
    d = lab.token_logs(lab.theta) - lab.token_logs(ref)
    later = d.flip(2).cumsum(2).flip(2) - d
    whole = gradient(lambda theta: divergence(lab, theta, ref), lab.theta)
    return expectation(lab, (later[..., None] * lab.token_gradients).sum(2)), whole


def test_what_per_token_k2_leaves_out_is_the_future():
    """``∇KL = E[Σ_t (Σ_{u≥t} d_u) s_t]``, of which k2 has ``u = t``."""
    lab = Sequences(length=3)
    ref = reference(lab)
    missing, whole = future(lab, ref)
    close(expectation(lab, in_the_loss(lab, ref, "k2", 1.0).penalties) + missing, whole)
    assert missing.norm() > 0.01 * whole.norm()


def test_how_much_the_future_is():
    """Of the gradient, at the median of 100 laboratories: under a tenth with two tokens, over a fifth with more."""
    shares = {}
    for length in (2, 4, 8):
        labs = [Sequences(length=length, size=8, seed=seed) for seed in range(100)]
        pairs = [future(lab, reference(lab, seed=1000 + seed)) for seed, lab in enumerate(labs)]
        shares[length] = median((missing.norm() / whole.norm()).item() for missing, whole in pairs)
    assert 0.02 < shares[2] < 0.1
    assert min(shares[4], shares[8]) > 0.2


def test_close_to_the_reference_all_three_agree():
    """At distance δ they differ by O(δ²), while the gradients are O(δ)."""
    lab, differences = Sequences(length=3), {"k2": [], "k3": []}
    for distance in (1e-2, 1e-3):
        ref = reference(lab, distance)
        _, whole = future(lab, ref)
        for kind, values in differences.items():
            mean = expectation(lab, in_the_loss(lab, ref, kind, 1.0).penalties)
            values.append(((mean - whole).norm() / whole.norm()).item())
    for far, near in differences.values():
        assert near == pytest.approx(far / 10, rel=0.05)


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_per_token_penalties_are_the_gradient_of_no_objective(kind):
    """A gradient's Jacobian is symmetric; theirs is not, once a response has two tokens."""

    def asymmetry(lab, ref):
        def field(theta):
            moved = copy(lab)
            moved.theta = theta
            return expectation(moved, in_the_loss(moved, ref, kind, 1.0).penalties)

        jacobian = torch.autograd.functional.jacobian(field, lab.theta)
        return ((jacobian - jacobian.T).norm() / jacobian.norm()).item()

    one, two = Laboratory(), Sequences(length=3)
    assert asymmetry(one, reference(one)) < 1e-10
    assert asymmetry(two, reference(two)) > 0.01


def test_the_second_moment_of_k3_holds_a_chi_square():
    """``E_π[κ²] = χ²(π_ref‖π)`` of one token: what the policy has all but given up weighs without bound."""
    lab = Laboratory(prompts=1)
    squares = {"k2": [], "k3": []}
    ref = lab.theta.clone()
    direction = lab.features[0, 1] - lab.features[0, 0]
    for distance in (1.0, 2.0, 4.0):
        lab.theta = ref + distance * direction
        p, r = lab.probabilities[0], (-log_ratios(lab, ref)[0]).exp()
        close((p * (1 - r).square()).sum(), ((p * r - p).square() / p).sum())
        for kind, values in squares.items():
            values.append((p * in_the_loss(lab, ref, kind, 1.0).penalties[0].square().sum(1)).sum().item())
    assert squares["k3"][2] > 10 * squares["k3"][1] > 50 * squares["k3"][0]
    assert squares["k2"][2] < 2 * squares["k2"][1]


def test_equal_rewards_are_no_longer_dead():
    """A group of equal rewards has advantages once the log-ratios differ."""
    lab = Laboratory(prompts=1)
    lab.rewards = torch.full_like(lab.rewards, 0.5)
    assert lab.moments(leave_one_out)[1] < 1e-20
    assert in_the_reward(lab, reference(lab)).moments(leave_one_out)[1] > 0.01


def test_the_estimates_agree_on_how_large_the_penalty_is_but_not_on_its_gradient():
    """k1 and k3 have the same mean, KL; differentiating it sample by sample is another matter."""
    lab = Laboratory()
    ref = reference(lab)
    p, d = lab.probabilities, log_ratios(lab, ref)
    kl = divergence(lab, lab.theta, ref)
    close((p * d).sum(1).mean(), kl)
    close((p * ((-d).exp() - 1 + d)).sum(1).mean(), kl)
    assert abs((p * d.square() / 2).sum(1).mean() / kl - 1) > 0.01
