import numpy as np
import pytest
from scipy import stats

from dpft.privacy.keys import AgingKey
from dpft.privacy.sampling import BLOCK, PoissonSampler, SamplingStream
from tests.privacy.test_plan import plan


def sampler(sample_rate: float, key: int = 0) -> PoissonSampler:
    return PoissonSampler(plan(sample_rate=sample_rate), stream(key))


def stream(key: int = 0) -> SamplingStream:
    return SamplingStream(AgingKey(bytes([key]) * 32))


def test_batch_sizes_are_binomial_with_the_plans_sample_rate():
    draws = sampler(0.25)
    sizes = np.array([len(draws.draw(400, step=step)) for step in range(2000)])
    # Binomial(400, 1/4): mean 100, variance 75; five standard errors each.
    assert abs(sizes.mean() - 100) < 5 * np.sqrt(75 / 2000)
    assert abs(sizes.var() / 75 - 1) < 5 * np.sqrt(2 / 2000)


def test_each_record_joins_independently_of_the_others():
    draws = sampler(0.5)
    members = np.zeros((4000, 8))
    for step in range(4000):
        members[step, draws.draw(8, step=step)] = 1
    correlation = np.corrcoef(members.T) - np.eye(8)
    assert np.abs(correlation).max() < 5 / np.sqrt(4000)


def test_a_tiny_sample_rate_is_not_rounded():
    """float32 uniforms are multiples of 2**-24, so that 1e-7 would become 1.19e-7."""
    draws = sampler(1e-7)
    drawn = sum(len(draws.draw(10_000_000, step=step)) for step in range(10))
    assert abs(drawn - 10) < 5 * np.sqrt(10)


def test_a_rate_of_one_takes_every_record_and_an_empty_draw_is_possible():
    assert sampler(1.0).draw(5, step=0) == [0, 1, 2, 3, 4]
    assert sampler(1e-6).draw(5, step=0) == []


@pytest.mark.parametrize("num_records", [0, 10, 1000])
def test_the_rate_does_not_follow_the_real_number_of_records(num_records):
    """The plan says 40 examples; how many there really are moves nothing but the draw."""
    sizes = [len(sampler(0.25, key).draw(num_records, step=0)) for key in range(100)]
    assert np.mean(sizes) == pytest.approx(num_records / 4, abs=5 * np.sqrt(num_records / 400) + 1)


def test_uniforms_are_uniform_with_53_bits():
    numbers = stream().draw(100_000, step=0)
    assert stats.kstest(numbers, "uniform").pvalue > 1e-3
    assert (numbers >= 0).all() and (numbers < 1).all()
    assert np.unique(numbers * 2**53 % 2**21).size > 90_000, "the low bits vary too"


def test_a_steps_draw_needs_no_other_steps_draw_and_no_step_repeats_another():
    one = stream()
    forwards = [one.draw(1000, step=step).tolist() for step in range(3)]
    backwards = [stream().draw(1000, step=step).tolist() for step in (2, 1, 0)]
    assert forwards == backwards[::-1]
    assert len({number for step in forwards for number in step}) == 3000


def test_a_unit_more_changes_nobody_elses_number_across_blocks_too():
    few, many = stream().draw(BLOCK - 1, step=4), stream().draw(BLOCK + 7, step=4)
    assert np.array_equal(few, many[: BLOCK - 1])
    assert np.unique(many).size == BLOCK + 7
