import pytest

from dpft.privacy.clipping.clipper import ClippingOptions
from dpft.runs import planned_run
from dpft.runs.planned_run import measure_step
from tests.training.toy import tiny_model


@pytest.mark.parametrize("options", [ClippingOptions(max_grad_norm=0.1), None])
def test_time_and_memory_are_measured_and_extrapolated_to_all_steps(options):
    measured = measure_step(
        tiny_model(),
        max_length=16,
        typical_length=8,
        micro_batch_size=4,
        expected_batch_size=8,
        steps=10,
        options=options,
    )
    assert measured.seconds_per_step > 0
    assert measured.seconds_total == pytest.approx(10 * measured.seconds_per_step)
    assert measured.peak_memory_bytes > 2**20
    assert measured.typical_length == 8


@pytest.mark.parametrize("options", [ClippingOptions(max_grad_norm=0.1), None])
def test_the_longest_records_are_run_once_and_the_typical_ones_are_timed(options, monkeypatch):
    made, run = planned_run.synthetic_losses, []

    def counted(model, count, length, **options):
        losses = made(model, count, length, **options)
        return lambda: run.append(length) or losses()

    monkeypatch.setattr(planned_run, "synthetic_losses", counted)
    sizes = {"max_length": 16, "typical_length": 8, "micro_batch_size": 2}
    measure_step(tiny_model(), **sizes, expected_batch_size=2, steps=1, options=options)
    first = run.index(8)
    assert set(run[:first]) == {16} and set(run[first:]) == {8}
