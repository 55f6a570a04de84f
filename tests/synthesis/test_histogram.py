"""The histogram of the condition: public cells, bounded units, noise on each, shares of rows."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpft.privacy.mechanisms.histogram import noisy_counts
from dpft.synthesis.histogram import Condition, cell_shares, rows_per_cell
from dpft.synthesis.schema import schema_of
from tests.rejections import rejects

CONTENT: dict[str, Any] = {
    "columns": {
        "city": {"type": "category", "values": ["Rome", "Oslo", 1, "1x"], "missing": True},
        "smoker": {"type": "boolean"},
        "age": {"type": "integer", "minimum": 0, "maximum": 9},
        "many": {"type": "category", "values": [*range(9000)]},
        "some": {"type": "category", "values": [*range(100)]},
    },
    "impossible": [{"city": "Oslo", "smoker": True}, {"city": "Rome", "age": 3}],
}
SCHEMA = schema_of(CONTENT)
CONDITION = Condition.of(SCHEMA, ["city", "smoker"])


def test_cells_are_the_schemas_whoever_is_in_them() -> None:
    """Also empty ones and a missing value's; what is impossible is none."""
    assert len(CONDITION.cells) == 5 * 2 - 1
    assert ("Oslo", True) not in CONDITION.cells and (None, True) in CONDITION.cells
    for at in range(len(CONDITION.cells)):
        assert CONDITION.place(CONDITION.row(at)) == at


def test_noise_is_on_every_cell_though_none_has_a_record() -> None:
    noisy = noisy_counts(CONDITION.count([]), 5.0, bytes(32))
    assert noisy.shape == (9,) and (noisy != 0).all()
    assert len(set(noisy.tolist())) == 9


UNITS = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 8)), max_size=40)


@pytest.mark.slow
@given(UNITS, st.sampled_from("abcde"))
def test_a_unit_moves_the_counts_by_at_most_1(rows: list[tuple[str, int]], unit: str) -> None:
    """In L2 norm, to the last bit, however many rows it has in however many cells."""
    without = [row for row in rows if row[0] != unit]
    moved = CONDITION.count(rows) - CONDITION.count(without)
    squares = sum(int(each * 2**20) ** 2 for each in moved)
    assert squares <= (2**20) ** 2
    assert (moved >= 0).all()
    if len(without) < len(rows):
        assert moved.sum() == pytest.approx(1, abs=1e-4)


def test_a_row_that_is_its_own_unit_counts_1() -> None:
    counts = CONDITION.count([(str(number), number % 3) for number in range(10)])
    assert counts.tolist() == [4, 3, 3, 0, 0, 0, 0, 0, 0]


def test_the_histogram_alone_spends_its_share_at_all_of_delta() -> None:
    counts = CONDITION.plan(eps=8, share=0.05, delta=1e-5, num_examples=10_000)
    assert 0.4 * (1 - 1e-4) <= counts.epsilon <= 0.4
    # Balle and Wang 2018, Theorem 8: delta of a Gaussian of this noise at this epsilon
    mu, eps = 1 / counts.noise_multiplier, counts.epsilon
    upper, lower = (
        0.5 * math.erfc(-x / math.sqrt(2)) for x in (mu / 2 - eps / mu, -mu / 2 - eps / mu)
    )
    assert upper - math.exp(eps) * lower == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize(
    "names, value",
    [
        (["age"], "age"),
        (["nothing"], "nothing"),
        (["city", "city"], ["city", "city"]),
        (["many", "some"], 900_000),
    ],
)
def test_a_condition_that_cannot_be_is_refused(names: list[str], value: object) -> None:
    with rejects("condition", value):
        Condition.of(SCHEMA, names)


def test_a_histogram_of_noise_alone_is_refused_by_public_numbers() -> None:
    many = Condition.of(SCHEMA, ["many"])
    with rejects("condition"):
        many.plan(eps=8, share=0.05, delta=1e-5, num_examples=10_000)
    assert many.plan(eps=8, share=0.05, delta=1e-5, num_examples=1_000_000).cells == 9000


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=30))
def test_shares_are_the_nearest_that_can_be(noisy: list[float]) -> None:
    """Projection onto the simplex: no other shares are nearer to the noisy counts."""
    found, total = cell_shares(noisy), sum(noisy)
    assert found.sum() == pytest.approx(1) and (found >= 0).all()
    if total <= 1e-3:
        return
    # The conditions of Karush, Kuhn and Tucker, which the projection alone meets: what is taken
    # away is the same of every cell that keeps something, and no cell that keeps nothing had more.
    moved = np.array(noisy) - found * total
    kept = found > 0
    slack = 1e-6 * (1 + np.abs(noisy).max())
    assert np.ptp(moved[kept]) <= slack
    assert (np.array(noisy)[~kept] <= moved[kept].min() + slack).all()


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=30), st.integers(1, 5000))
def test_rows_are_allotted_by_shares_and_none_is_lost(counts: list[float], num: int) -> None:
    of_cells = cell_shares(counts)
    rows = rows_per_cell(of_cells, num)
    assert sum(rows) == num
    assert all(abs(n - share * num) < 1 + 1e-6 for n, share in zip(rows, of_cells, strict=True))
