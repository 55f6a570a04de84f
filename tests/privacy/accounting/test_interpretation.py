"""Tests of membership against what epsilon bounds, and warnings of noise that drowns a signal."""

import doctest
import math
from fractions import Fraction
from itertools import product

import pytest

from dpft.privacy.accounting import interpretation
from dpft.privacy.accounting.interpretation import (
    LEAST_SHARE,
    LEAST_STRENGTH,
    best_attack_accuracy,
    lowest_attack_error,
    noise_warnings,
    signal_notes,
    signal_share,
)
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.plan import default_delta, planned_steps

GPT2, GPT2_LARGE, ROBERTA_LARGE = 124_439_808, 774_030_080, 355_359_744
# num_examples, expected_batch_size, epochs, the largest model published, and the noise multipliers
# that RDP calibrates at epsilon 0.5 and PRV at 1e-9.
RECIPES = {
    "demo": (8000, 256, 1.5, 300_000, 1.871, 4342.24),
    "li2022_e2e": (42061, 1024, 10, GPT2_LARGE, 3.9, 295361.0),
    "bu2022_full_sst2": (67349, 1000, 3, ROBERTA_LARGE, 1.927, 149273.0),
    "bu2022_lora_mnli": (392702, 2000, 50, ROBERTA_LARGE, 4.408, 392484.0),
}


def mechanism(name: str, noise_multiplier: float) -> SampledGaussian:
    size, batch, epochs, *_ = RECIPES[name]
    steps = planned_steps(epochs=epochs, num_examples=size, expected_batch_size=batch)
    return SampledGaussian(
        noise_multiplier=noise_multiplier,
        sample_rate=batch / size,
        steps=steps,
        delta=default_delta(size, "published"),
    )


@pytest.mark.parametrize("name", RECIPES)
def test_no_recipe_is_warned_of_at_epsilon_one_half_and_each_is_at_1e_9(name: str) -> None:
    _, batch, _, parameters, *noises = RECIPES[name]
    for known in (1, parameters):
        found = [
            noise_warnings(
                mechanism(name, noise), expected_batch_size=batch, trainable_parameters=known
            )
            for noise in noises
        ]
        assert [len(warnings) for warnings in found] == [0, 1]


def test_a_warning_has_the_best_case_in_length_and_in_its_own_direction() -> None:
    (warning,) = noise_warnings(
        mechanism("li2022_e2e", 295361.0), expected_batch_size=1024, trainable_parameters=GPT2
    )
    assert "6.3e-06 times as long as the noise over 124,439,808 parameters" in warning
    assert "0.07 times the standard deviation of the noise" in warning


@pytest.mark.parametrize("parameters", [1, 10**9])
def test_the_thresholds_are_of_strength_and_of_its_share(parameters: int) -> None:
    least = max(LEAST_STRENGTH, LEAST_SHARE * math.sqrt(parameters))
    for strength, count in ((0.99 * least, 1), (1.01 * least, 0)):
        noisy = mechanism("demo", math.sqrt(46) * 256 / strength)
        warnings = noise_warnings(noisy, expected_batch_size=256, trainable_parameters=parameters)
        assert len(warnings) == count


def test_few_records_leave_little_to_all_weights_of_an_encoder_and_enough_to_its_head() -> None:
    """The rows of docs/how-to/hyperparameters.md: epsilon 8, 20 steps of half of the records."""
    own = SampledGaussian(noise_multiplier=1.4035, sample_rate=0.5, steps=20, delta=1e-4)
    shares = [
        signal_share(own, expected_batch_size=300, trainable_parameters=parameters)
        for parameters in (22_566_146, 770)
    ]
    assert shares == pytest.approx([0.201, 34.45], rel=0.01)
    (note,) = signal_notes(shares[0])
    assert note
    assert signal_notes(shares[1]) == []


def test_where_nothing_is_left_to_learn_the_warning_speaks_alone() -> None:
    assert signal_notes(0.99 * LEAST_SHARE) == [] != signal_notes(1.01 * LEAST_SHARE)


SETTINGS = list(product((0.0, 1e-9, 0.3, 1.0, 3.0, 7.9981, 12.5), (0.0, 1e-5, 0.00137, 0.3)))


def worst_pair(epsilon: float, delta: float) -> list[tuple[float, float]]:
    """Return the chances of four outputs with and without the unit (arXiv 1311.0776, Figure 2)."""
    kept = (1 - delta) / (1 + math.exp(epsilon))
    likely = kept * math.exp(epsilon)
    return [(delta, 0.0), (likely, kept), (kept, likely), (0.0, delta)]


@pytest.mark.parametrize(("epsilon", "delta"), SETTINGS)
def test_the_bound_is_the_error_of_the_best_test_of_the_worst_mechanism(
    epsilon: float, delta: float
) -> None:
    pair = worst_pair(epsilon, delta)
    best = sum(max(with_unit, without) for with_unit, without in pair) / 2
    assert float(1 - lowest_attack_error(epsilon, delta)) == pytest.approx(best, rel=1e-12)
    advantage = (math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1)
    assert float(1 - 2 * lowest_attack_error(epsilon, delta)) == pytest.approx(advantage, abs=1e-14)


@pytest.mark.parametrize(("epsilon", "delta"), SETTINGS)
def test_the_printed_percentage_is_above_the_bound_and_below_always(
    epsilon: float, delta: float
) -> None:
    printed = Fraction(best_attack_accuracy(epsilon, delta))
    bound = 100 - 100 * Fraction(lowest_attack_error(epsilon, delta))
    assert bound <= printed < 100
    assert printed - bound <= max((100 - bound) / 10, Fraction(0))


def test_where_the_bound_tells_nothing_there_is_no_percentage() -> None:
    assert [best_attack_accuracy(epsilon, 1e-5) for epsilon in (14.0, 1e9, math.inf)] == [None] * 3
    assert best_attack_accuracy(1.0, 1.0) is None


def test_the_examples_of_the_module_hold() -> None:
    failed, tried = doctest.testmod(interpretation)
    assert tried and not failed
