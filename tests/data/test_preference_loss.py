"""Losses of preference pairs equal their published formulas, in plain Python arithmetic."""

import math

import pytest
import torch

from dpft.data.preference_loss import PreferenceLoss

CHOSEN, REJECTED = (-12.0, -3.5), (-15.0, -2.0)
"""Log-probabilities of two pairs' answers under the model."""
TOKENS = ((4, 5), (7, 2))
BEFORE = ((-11.0, -13.0), (-4.0, -4.5))
"""Log-probabilities under the reference, chosen and rejected, of each pair."""


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def losses(loss: PreferenceLoss, *, references: bool = True) -> list[float]:
    sums = [-value for pair in zip(CHOSEN, REJECTED, strict=True) for value in pair]
    flat = [value for pair in BEFORE for value in pair]
    return loss(
        torch.tensor(sums, dtype=torch.float64),
        torch.tensor([count for pair in TOKENS for count in pair]),
        torch.tensor(flat, dtype=torch.float64) if references else None,
    ).tolist()


@pytest.mark.parametrize(("beta", "smoothing"), [(0.1, 0.0), (0.5, 0.0), (0.3, 0.2)])
def test_dpo_is_equation_7_of_rafailov_et_al(beta: float, smoothing: float) -> None:
    expected = []
    for chosen, rejected, (before, other) in zip(CHOSEN, REJECTED, BEFORE, strict=True):
        margin = beta * ((chosen - before) - (rejected - other))
        agrees, contradicts = math.log(sigmoid(margin)), math.log(sigmoid(-margin))
        expected.append(-(1 - smoothing) * agrees - smoothing * contradicts)
    loss = PreferenceLoss(objective="dpo", beta=beta, label_smoothing=smoothing)
    assert losses(loss) == pytest.approx(expected, rel=1e-12)


def test_dpo_of_the_reference_itself_is_log_2() -> None:
    loss, nll = PreferenceLoss(beta=0.7), torch.tensor([3.0, 5.0])
    assert loss(nll, torch.ones(2), -nll).item() == pytest.approx(math.log(2), rel=1e-6)


def test_ipo_is_equation_17_of_azar_et_al_per_token() -> None:
    beta = 0.2
    expected = []
    for chosen, rejected, (before, other), (a, b) in zip(
        CHOSEN, REJECTED, BEFORE, TOKENS, strict=True
    ):
        margin = (chosen - before) / a - (rejected - other) / b
        expected.append((margin - 1 / (2 * beta)) ** 2)
    assert losses(PreferenceLoss(objective="ipo", beta=beta)) == pytest.approx(expected, rel=1e-12)


def test_orpo_is_equations_5_to_7_of_hong_et_al() -> None:
    beta = 0.1
    expected = []
    for chosen, rejected, (a, b) in zip(CHOSEN, REJECTED, TOKENS, strict=True):
        good, bad = math.exp(chosen / a), math.exp(rejected / b)
        odds = (good / (1 - good)) / (bad / (1 - bad))
        expected.append(-chosen / a - beta * math.log(sigmoid(math.log(odds))))
    loss = PreferenceLoss(objective="orpo", beta=beta)
    assert losses(loss, references=False) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("objective", ["dpo", "ipo"])
def test_a_loss_without_its_references_is_an_error(objective: str) -> None:
    with pytest.raises(ValueError, match="references"):
        losses(PreferenceLoss(objective=objective), references=False)
