"""The time of a step, from synthetic micro-batches whose times are known."""

from collections.abc import Callable
from typing import Any

import pytest

from dpft.data.batches import Batch
from dpft.privacy.clipping.clipper import ClippingOptions
from dpft.training import step_time
from dpft.training.optimizers import AdamW
from dpft.training.step_time import MeasuredTime, measure_step
from tests.slowness import slow_but
from tests.training.toy import plan, tiny_model

FIXED, EACH, UPDATE = 1.0, 0.25, 7.0
"""Seconds of a micro-batch, of each of its examples, and of noise and update."""


@pytest.fixture
def timed_examples(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The examples of each micro-batch that is timed; its time grows with them."""
    made: list[int] = []
    timed: list[int] = []
    make = step_time.synthetic_batch

    def counted(model: Any, count: int, length: int, **options: Any) -> Batch:
        made.append(count)
        return make(model, count, length, **options)

    def seconds_of(work: Callable[[], object]) -> float:
        work()
        if not made:
            return UPDATE
        timed.append(made[-1])
        made.clear()
        return FIXED + EACH * timed[-1]

    monkeypatch.setattr(step_time, "synthetic_batch", counted)
    monkeypatch.setattr(step_time, "_timed", seconds_of)
    return timed


def measured(*, clips: bool, micro_batch_size: int) -> MeasuredTime:
    return measure_step(
        tiny_model(),
        length=8,
        micro_batch_size=micro_batch_size,
        expected_batch_size=32,
        steps=10,
        clipped=(plan(), ClippingOptions(max_grad_norm=0.1)) if clips else None,
        optimizer=AdamW(),
    )


@pytest.mark.slow
@pytest.mark.parametrize("clips", slow_but([True], [True, False]))
def test_a_step_takes_its_micro_batches_and_one_update(
    clips: bool, timed_examples: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_time, "SECONDS", 1000.0)
    found = measured(clips=clips, micro_batch_size=4)
    assert timed_examples == [1, 2, 4]
    assert found.seconds_per_step == pytest.approx(8 * (FIXED + 4 * EACH) + UPDATE)
    assert found.seconds_total == pytest.approx(10 * found.seconds_per_step)
    assert (found.timed_micro_batch, found.tokens_per_example) == (4, 8)


@pytest.mark.slow
def test_a_micro_batch_that_takes_too_long_follows_from_smaller_ones(
    timed_examples: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_time, "SECONDS", 3.0)
    found = measured(clips=True, micro_batch_size=16)
    assert timed_examples == [1, 2, 4], "1.5 seconds are at most half of SECONDS, 2 are not"
    assert found.timed_micro_batch == 4
    assert found.seconds_per_step == pytest.approx(2 * (FIXED + 16 * EACH) + UPDATE)
