"""Copies of training records are seen, and what everybody writes is not taken for them."""

import random

import pytest

from dpft.audit.leakage import Leakage, allowed_share, leakage_of, most_found
from dpft.audit.synthetic_page import runs_plot

WORDS = [f"w{number}" for number in range(50)]


def texts(seed: int, count: int = 60) -> list[str]:
    order = random.Random(seed)
    return [" ".join(order.choices(WORDS, k=20)) for _ in range(count)]


@pytest.fixture(scope="module")
def clean() -> Leakage:
    return leakage_of(texts(0), texts(1), texts(2))


@pytest.fixture(scope="module")
def leaking() -> Leakage:
    """Every fourth training record is among the synthetic ones, blanks apart; some are repeated."""
    copied = [f" {text}" for text in texts(1)[::4]]
    return leakage_of([*texts(0), *copied, copied[0]], texts(1), texts(2))


def test_copies_are_counted_on_both_sides(leaking: Leakage) -> None:
    assert leaking.unseen is not None
    assert (leaking.training.exact, leaking.unseen.exact) == (15, 0)
    assert (leaking.training.near, leaking.unseen.near) == (15, 0)
    assert leaking.copies == 16
    assert leaking.training.share_of_runs(20) == 0.25
    assert leaking.unseen.share_of_runs(20) == 0


def test_records_that_were_not_trained_on_are_the_control(clean: Leakage, leaking: Leakage) -> None:
    assert clean.auc == pytest.approx(0.5, abs=0.12)
    assert clean.p_value is not None and clean.p_value > 0.05
    assert leaking.auc is not None and leaking.auc > clean.auc
    assert leaking.p_value is not None and leaking.p_value < 0.05


def test_a_few_whole_copies_are_seen_where_runs_are_longest(
    clean: Leakage, leaking: Leakage
) -> None:
    assert clean.tail is not None and leaking.tail is not None
    assert clean.tail.training_share <= 0.05
    assert leaking.tail.training_share >= 0.25
    assert leaking.tail.unseen_share <= 0.01
    assert leaking.record().tail == leaking.tail


def test_without_a_control_nothing_is_compared() -> None:
    alone = leakage_of(texts(0), texts(1), None)
    assert (alone.unseen, alone.auc, alone.p_value) == (None, None, None)
    assert alone.tail is None
    assert alone.record().unseen is None
    assert runs_plot(alone, (1.0, 1e-5)).count("ε") == 0


def test_the_most_found_record_is_shown_first(leaking: Leakage) -> None:
    words, text = most_found(leaking.training, texts(1))[0]
    assert (words, text) == (20, texts(1)[0])


def test_what_epsilon_allows_of_a_share() -> None:
    assert allowed_share(0.0, 3.0, 1e-5) == 1e-5
    assert allowed_share(0.1, 0.0, 0.0) == 0.1
    assert allowed_share(0.5, 1e6, 0.0) == 1.0


def test_the_control_of_few_records_is_not_taken_for_all() -> None:
    """Of 60 records none: at 95 % fewer than 1 - 0.05^(1/60) of all."""
    found = leakage_of(texts(0), texts(1), texts(2)).unseen
    assert found is not None and found.share_of_runs(20) == 0
    assert found.limit_of_share(20) == pytest.approx(1 - 0.05 ** (1 / 60))
    assert found.limit_of_share(0) == 1


def test_the_bound_of_epsilon_is_drawn_beside_the_shares(leaking: Leakage) -> None:
    assert "most that ε allows" in runs_plot(leaking, (1.0, 1e-5))
    assert "most that ε allows" not in runs_plot(leaking, None)
