"""Poisson sampling: each record is in each step with the same probability, independently.

The draws come from ``PoissonBatches`` with fixed keys, so the tests are deterministic. A bound of
five standard deviations fails a correct sampler with a probability below one in a million.
"""

import numpy as np
import pytest

from tests.guarantees.by_hand import drawn

pytestmark = pytest.mark.slow

RECORDS, EXPECTED, STEPS = 1001, 50, 4000
RATE = EXPECTED / RECORDS
DEVIATIONS = 5


@pytest.fixture(scope="module")
def joined() -> np.ndarray:
    """Return which record is in which step, shape (steps, records)."""
    found = np.zeros((STEPS, RECORDS), dtype=bool)
    batches = drawn(num_examples=RECORDS, expected_batch_size=EXPECTED, steps=STEPS, seed=5)
    for step, batch in enumerate(batches):
        assert len(set(batch)) == len(batch), "a record was drawn twice in one step"
        found[step, batch] = True
    return found


def test_every_record_is_drawn_equally_often(joined: np.ndarray) -> None:
    counts = joined.sum(axis=0)
    spread = np.sqrt(STEPS * RATE * (1 - RATE))
    assert np.abs(counts - STEPS * RATE).max() < DEVIATIONS * spread


def test_sizes_of_draws_are_binomial(joined: np.ndarray) -> None:
    sizes = joined.sum(axis=1)
    variance = RECORDS * RATE * (1 - RATE)
    assert abs(sizes.mean() - EXPECTED) < DEVIATIONS * np.sqrt(variance / STEPS)
    assert abs(sizes.var() / variance - 1) < DEVIATIONS * np.sqrt(2 / STEPS)


def test_records_are_drawn_independently(joined: np.ndarray) -> None:
    """The first record and another one are together in a step as often as their rate says."""
    for other in (1, 2, 15, 16, 17, RECORDS - 1):
        together = (joined[:, 0] & joined[:, other]).sum()
        assert abs(together - STEPS * RATE**2) < DEVIATIONS * np.sqrt(STEPS) * RATE


@pytest.mark.parametrize("apart", [1, 2, 20, 21])
def test_steps_are_drawn_independently(joined: np.ndarray, apart: int) -> None:
    """A record joins two steps as often as its rate says, also one epoch of 20 steps apart."""
    both = (joined[:-apart] & joined[apart:]).mean()
    pairs = (STEPS - apart) * RECORDS
    assert abs(both - RATE**2) < DEVIATIONS * RATE / np.sqrt(pairs)
