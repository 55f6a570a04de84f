"""What a ledger's steps cost: those of equal noise together, and none left out."""

from pathlib import Path

import pytest

from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.ledger import LedgerRecord, Noise, as_mechanisms, steps_taken, sum_steps
from dpft.privacy.mechanisms.base import GaussianStep
from dpft.privacy.mechanisms.histogram import GaussianCounts, GaussianHistogram
from tests.rejections import rejects

PATH = Path("run/ledger.jsonl")


def mechanism(noise=1.0, rate=0.1, **changes):
    values = {"noise_multiplier": noise, "sample_rate": rate, "sensitivity": 0.1}
    return GaussianStep(name="poisson_sampled_gaussian", **values | changes)


def record(*mechanisms, **changes):
    size = len(mechanisms)
    return LedgerRecord(
        steps=size, mechanisms=mechanisms, closed=False, lines=size, head="", **changes
    )


def noise(multiplier=1.0, rate=0.1):
    return Noise(noise_multiplier=multiplier, sample_rate=rate)


def test_steps_of_equal_noise_are_counted_together_whatever_their_sensitivity():
    taken = steps_taken(record(mechanism(), mechanism(2.0), mechanism(sensitivity=5.0)), PATH)
    assert taken == {noise(): 2, noise(2.0): 1}


def test_steps_of_equal_noise_of_several_runs_add_up():
    together = sum_steps({noise(): 2, noise(2.0): 1}, {noise(): 3})
    assert together == {noise(): 5, noise(2.0): 1}


@pytest.mark.parametrize("unsure", ["torn_step", "journaled_step"])
def test_a_step_that_is_not_known_costs_as_much_as_any_could(unsure):
    lines = record(mechanism(1.0, 0.1), mechanism(2.0, 0.3), **{unsure: True})
    assert steps_taken(lines, PATH) == {noise(): 1, noise(2.0, 0.3): 1, noise(1.0, 0.3): 1}


def test_a_first_step_that_is_not_known_is_the_planned_one_or_refused():
    assert steps_taken(record(torn_step=True), PATH, planned=noise(3.0)) == {noise(3.0): 1}
    with rejects(str(PATH)):
        steps_taken(record(torn_step=True), PATH)
    assert steps_taken(record(), PATH) == {}


def test_each_noise_becomes_a_mechanism_at_one_delta():
    mechanisms = as_mechanisms({noise(): 2, noise(2.0, 0.3): 5}, 1e-5)
    assert mechanisms == (
        SampledGaussian(noise_multiplier=1.0, sample_rate=0.1, steps=2, delta=1e-5),
        SampledGaussian(noise_multiplier=2.0, sample_rate=0.3, steps=5, delta=1e-5),
    )


HISTOGRAM = GaussianHistogram(
    noise_std=40.0, l2_cap=4.0, linf_cap=1.0, words_per_record=64, delta=1e-6
)


def test_a_histogram_is_a_gaussian_of_all_units_beside_its_threshold():
    taken = steps_taken(record(HISTOGRAM, mechanism()), PATH)
    own = Noise(noise_multiplier=10.0, sample_rate=1.0, threshold_delta=5e-7)
    assert taken == {noise(): 1, own: 1}
    parts = as_mechanisms(taken, 3e-6)
    assert {part.delta for part in parts} == {3e-6 - 5e-7}
    assert {part.noise_multiplier for part in parts} == {1.0, 10.0}


def test_a_delta_that_thresholds_take_whole_is_refused():
    taken = steps_taken(record(HISTOGRAM), PATH)
    with rejects("delta", 5e-7):
        as_mechanisms(taken, 5e-7)


def test_a_torn_step_beside_a_histogram_takes_of_delta_what_its_threshold_took():
    taken = steps_taken(record(HISTOGRAM, torn_step=True), PATH)
    own = Noise(noise_multiplier=10.0, sample_rate=1.0, threshold_delta=5e-7)
    assert taken == {own: 2}


def test_counts_of_public_cells_are_a_gaussian_of_all_units_without_a_threshold():
    counts = GaussianCounts(noise_std=4.0, l2_cap=2.0, cells=9, delta=1e-5)
    taken = steps_taken(record(counts), PATH)
    assert taken == {Noise(noise_multiplier=2.0, sample_rate=1.0): 1}
    (mechanism,) = as_mechanisms(taken, 1e-5)
    assert mechanism.delta == 1e-5
