"""``audit=one_run``: which views of a run it looks at, and what it releases of several views.

That is one verdict, whose p-value is of all of them.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from dpft.audit.one_run import OneRunConfig, View
from dpft.audit.trade_off import GaussianTradeOff
from dpft.commands.canary_steps import read_white_box
from dpft.data.canaries import COIN, Canary
from dpft.strict_model import as_json
from tests.rejections import rejects

COINS = np.random.default_rng(0).random(200) < 0.5
CANARIES = [
    Canary(kind=COIN, read=("a",), learned=("b",), number=0, copies=int(coin), unit=str(at))
    for at, coin in enumerate(COINS)
]
BLIND = np.random.default_rng(1).normal(size=len(COINS))


def released(*views: View, private: bool = True) -> dict:
    finding = OneRunConfig(name="one_run").finding(
        CANARIES,
        views,
        epsilon=20.0 if private else None,
        delta=1e-5,
        trade_off=GaussianTradeOff(0.1) if private else None,
    )
    return as_json(finding.released)


def view(name: str, scores: np.ndarray, *, independent: bool = False) -> View:
    return View(name=name, threat_model=name, scores=scores.tolist(), independent=independent)


@pytest.mark.slow
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


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run that was to keep scores of its steps, and kept none."""
    scores = [0.0, 1.0]
    monkeypatch.setattr(OneRunConfig, "black_box_scores", lambda self, run, canaries: scores)
    return SimpleNamespace(
        folder=tmp_path, config=SimpleNamespace(audit=SimpleNamespace(white_box=True))
    )


def views(run: Any, **options: Any) -> list[View]:
    canaries = cast("list[Canary]", [None, None])
    return OneRunConfig(name="one_run", **options).views(run, canaries)


def test_a_run_whose_steps_have_no_scores_is_audited_by_its_model_alone_where_asked(
    run: Any,
) -> None:
    (alone,) = views(run, white_box=False)
    assert alone.name == "black box"


def test_a_run_whose_steps_have_no_scores_cannot_be_audited_by_its_steps(run: Any) -> None:
    with rejects() as faults:
        read_white_box(run.folder, canaries=2, steps=3)
    assert "audit.white_box=false" in str(faults[0])
