import pytest

from dpft.privacy.clipping.options import ClippingOptions
from dpft.training.measure import measure_step
from tests.training.toy import tiny_model


@pytest.mark.parametrize("options", [ClippingOptions(max_grad_norm=0.1), None])
def test_time_and_memory_are_measured_and_extrapolated_to_all_steps(options):
    measured = measure_step(
        tiny_model(),
        max_length=16,
        micro_batch_size=4,
        expected_batch_size=8,
        steps=10,
        options=options,
    )
    assert measured.seconds_per_step > 0
    assert measured.seconds_total == pytest.approx(10 * measured.seconds_per_step)
    assert measured.peak_memory_bytes > 2**20
