"""What rounding to bfloat16 makes of each loss's factors, and where that is refused."""

import math

import pytest
from composing import composed
from conftest import POCKET
from hydra.utils import instantiate

from oblr.commands.checks import ROUNDING, check_loss, check_policy, rounding
from oblr.errors import SettingError
from oblr.losses.gspo import GSPOLoss
from oblr.losses.policy_gradient import PolicyGradientLoss
from oblr.losses.ppo_clip import PPOClipLoss


@pytest.mark.parametrize("length", [1, 16, 64])
def test_ratios_of_log_normal_tokens(length):
    """``E (ρ − 1)² = e^(σ²T) − 1``; of single tokens that of one, whatever the length."""
    expected = {"none": 0.0, "token": math.expm1(ROUNDING**2), "sequence": math.expm1(length * ROUNDING**2)}
    for ratio, value in expected.items():
        assert rounding(PolicyGradientLoss(ratio), length, groups=2000) == pytest.approx(value, rel=0.1)


@pytest.mark.parametrize(
    ("loss", "longest"),
    [
        (PolicyGradientLoss("none"), 4096),
        (PolicyGradientLoss("token", 2.0), 4096),
        (PPOClipLoss(), 4096),
        (GSPOLoss(0.2, 0.28), 4096),
        (PolicyGradientLoss("sequence"), 64),
        (PolicyGradientLoss("sequence", 2.0), 100),
        (GSPOLoss(), 0),
    ],
)
def test_what_is_refused_in_bfloat16_alone(loss, longest):
    if longest:
        check_loss(loss, {"bf16-mixed", "float32", "bfloat16"}, longest)
    if longest < 4096:
        for dtypes in ({"bf16-mixed", "float32"}, {"32-true", "bfloat16"}):
            with pytest.raises(SettingError, match=r"loss: in bfloat16.* 1024 tokens .*loss\.ratio=token"):
                check_loss(loss, dtypes, 1024)
    check_loss(loss, {"32-true", "float32"}, 1024)


def test_the_whole_context_can_be_used():
    context = check_policy(str(POCKET), "float32", 1).max_position_embeddings
    check_policy(str(POCKET), "float32", context)
    with pytest.raises(SettingError, match=r"^rollout\.max_model_len: "):
        check_policy(str(POCKET), "float32", context + 1)


@pytest.mark.parametrize("size", ["4b", "8b"])
def test_the_qwen3_experiments_are_not_refused(size):
    cfg = composed(f"experiment=oblr_qwen3_{size}")
    dtypes = {cfg.trainer.precision, cfg.policy.dtype, cfg.engine_dtype}
    assert "bf16-mixed" in dtypes
    check_loss(instantiate(cfg.loss), dtypes, cfg.rollout.max_new_tokens)
