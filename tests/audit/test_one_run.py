"""What an audit in one run releases of several views: one verdict, whose p is of all of them."""

import numpy as np
import pytest

from dpft.audit.one_run import Settings, View, finding
from dpft.audit.trade_off import GaussianTradeOff
from dpft.data.canaries import COIN, Canary
from dpft.strict_model import as_json

COINS = np.random.default_rng(0).random(200) < 0.5
CANARIES = [
    Canary(kind=COIN, read=("a",), learned=("b",), number=0, copies=int(coin), unit=str(at))
    for at, coin in enumerate(COINS)
]
BLIND = np.random.default_rng(1).normal(size=len(COINS))


def released(*views: View, private: bool = True) -> dict:
    settings = Settings(
        epsilon=20.0 if private else None,
        delta=1e-5,
        trade_off=GaussianTradeOff(0.1) if private else None,
        confidence=0.95,
        mechanism_confidence=0.995,
        choices=10,
    )
    return as_json(finding(CANARIES, views, settings).released)


def view(name: str, scores: np.ndarray, *, independent: bool = False) -> View:
    return View(name=name, threat_model=name, scores=scores.tolist(), independent=independent)


def test_the_verdict_of_any_view_comes_with_that_views_p_value() -> None:
    """The lower bound may be another view's, whose p says nothing of the verdict."""
    # seven in ten are right: impossible under mu = 0.1
    seeing = np.where(np.random.default_rng(2).random(len(COINS)) < 0.7, COINS, ~COINS)
    record = released(view("black", BLIND), view("white", 1.0 * seeing, independent=True))
    assert record["other_mechanism"] and record["assumes_no_mixing"]
    assert record["p_value_of_plan"] <= 1 - 0.995
    alone = released(view("white", 1.0 * seeing, independent=True))
    assert record["p_value_of_plan"] == pytest.approx(2 * alone["p_value_of_plan"])


@pytest.mark.slow
def test_blind_views_are_possible_and_without_privacy_nothing_is_tested() -> None:
    record = released(view("black", BLIND), view("white", -BLIND, independent=True))
    assert not record["other_mechanism"]
    assert 1 - 0.995 < record["p_value_of_plan"] <= 1
    record = released(view("black", BLIND), private=False)
    assert "p_value_of_plan" not in record and not record["other_mechanism"]
