"""What a private histogram costs: published figures, the exact mechanism, a stray word's chance."""

import math
from typing import Any

import pytest
from scipy.stats import norm

from dpft.privacy.accounting import Composition, SampledGaussian, account_composition
from dpft.privacy.mechanisms.histogram import (
    GaussianCounts,
    GaussianHistogram,
    noise_std_for,
    noise_std_for_counts,
)
from dpft.strict_model import as_json, parse

FIELDS: dict[str, Any] = {
    "noise_std": 10000, "l2_cap": 256, "linf_cap": 256, "words_per_record": 256, "delta": 1e-9,
}  # fmt: skip
PUBLISHED = GaussianHistogram(**FIELDS)
"""Ponomareva et al. 2022, Appendix B: N = k = m = 256; noise and delta follow from Table 1."""


def with_noise(noise_std: float) -> GaussianHistogram:
    return GaussianHistogram(**FIELDS | {"noise_std": noise_std})


@pytest.mark.parametrize(("noise_std", "epsilon"), [(10000, 0.17), (500, 3.37), (50, 33.68)])
def test_the_classical_formula_gives_the_published_epsilons(
    noise_std: float, epsilon: float
) -> None:
    """Ponomareva et al. 2022, Tables 1 and 3."""
    assert with_noise(noise_std).epsilon_classical == pytest.approx(epsilon, abs=5e-3)


@pytest.mark.parametrize(
    ("noise_std", "epsilon"), [(10000, 0.1330), (500, 3.0442), (50, 43.7306), (5, 1622.5772)]
)
def test_epsilon_is_that_of_the_analytic_gaussian_mechanism(
    noise_std: float, epsilon: float
) -> None:
    """By delta(eps) of Balle and Wang 2018, Theorem 8, at half of delta."""
    histogram = with_noise(noise_std)
    assert histogram.epsilon == pytest.approx(epsilon, abs=5e-5)
    mu, eps = 256 / noise_std, histogram.epsilon
    log_first, log_second = norm.logcdf(mu / 2 - eps / mu), eps + norm.logcdf(-mu / 2 - eps / mu)
    delta = math.exp(log_first) * -math.expm1(log_second - log_first)
    assert delta == pytest.approx(5e-10, rel=1e-6)


@pytest.mark.parametrize("units", [5, 20, 60, 400])
@pytest.mark.parametrize("counted", [1.0, 16.0, 256.0])
def test_no_records_have_more_words_reach_the_threshold_than_are_expected_at_most(
    units: int, counted: float
) -> None:
    """Records that spend all they may on words that so many units have, or share."""
    few = GaussianHistogram(noise_std=6, l2_cap=1, linf_cap=1, words_per_record=256, delta=1e-3)
    each = min(1.0, 1 / math.sqrt(counted))  # a unit's count of each of its words
    most = few.most_words_expected(units)
    for sharing in range(1, units + 1):
        words = units * counted / sharing
        found = words * norm.sf((few.threshold - sharing * each) / few.noise_std)
        assert found <= most * (1 + 1e-6)


@pytest.mark.parametrize(
    ("noise_std", "threshold"), [(10000, 69661.3), (500, 3726.3), (50, 603.0), (5, 290.7)]
)
def test_the_threshold_takes_the_normal_quantile(noise_std: float, threshold: float) -> None:
    histogram = with_noise(noise_std)
    assert histogram.threshold == pytest.approx(threshold, abs=0.05)
    stray = norm.sf((histogram.threshold - 256) / noise_std)
    assert stray * 256 == pytest.approx(histogram.threshold_delta, rel=1e-6)


def test_the_published_sums_are_those_of_the_simple_composition() -> None:
    """Ponomareva et al. 2022, Table 2: training by RDP and the tokenizer added up."""
    training = (6.0573157, 8.6898032, 13.4586238, 319.1941523)
    sums = [round(epsilon + PUBLISHED.epsilon_classical, 2) for epsilon in training]
    assert sums == [6.23, 8.86, 13.63, 319.36]


@pytest.mark.slow
def test_the_composition_with_training_costs_less_than_the_published_sum() -> None:
    """Table 5, noise 0.40, with the tokenizer of epsilon 0.17: 6.23 published."""
    examples = 5_240_387_307
    delta = 1 / examples + PUBLISHED.delta - PUBLISHED.threshold_delta
    training = SampledGaussian(
        noise_multiplier=0.4, sample_rate=8192 / examples, steps=100_000, delta=delta
    )
    histogram = SampledGaussian(
        noise_multiplier=PUBLISHED.noise_multiplier, sample_rate=1.0, steps=1, delta=delta
    )
    bound = account_composition(Composition(parts=(training, histogram)))
    assert (bound.accountant, round(bound.epsilon, 3)) == ("pld", 3.707)


@pytest.mark.parametrize("eps", [0.17, 1.0, 3.0, 40.0])
def test_noise_for_an_epsilon_keeps_within_it_and_near(eps: float) -> None:
    found = with_noise(noise_std_for(eps=eps, l2_cap=256, delta=1e-9)).epsilon
    assert eps * (1 - 2e-5) <= found <= eps


def test_a_ledgers_line_gives_the_histogram_back() -> None:
    assert parse(as_json(PUBLISHED), GaussianHistogram) == PUBLISHED


@pytest.mark.parametrize("name", ["threshold", "noise_multiplier"])
def test_another_threshold_or_multiplier_than_follows_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"its {name} must be"):
        PUBLISHED.replace(**{name: 0.999 * getattr(PUBLISHED, name)})


CELLS = GaussianCounts(noise_std=8.62958, l2_cap=1.0, cells=36, delta=1e-5)


def test_counts_of_public_cells_cost_a_gaussian_at_all_of_delta() -> None:
    """Balle and Wang 2018, Theorem 8, with scipy's normal; half of delta would cost more."""
    mu, epsilon = 1 / CELLS.noise_std, CELLS.epsilon
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-9)
    assert epsilon == pytest.approx(0.4, rel=1e-5)
    half = noise_std_for(eps=0.4, l2_cap=1, delta=1e-5)
    assert half > noise_std_for_counts(eps=0.4, l2_cap=1, delta=1e-5) == CELLS.noise_std
    twice = GaussianCounts(noise_std=2 * CELLS.noise_std, l2_cap=2.0, cells=36, delta=1e-5)
    assert twice.epsilon == epsilon


def test_a_ledgers_line_gives_counts_back() -> None:
    assert parse(as_json(CELLS), GaussianCounts) == CELLS
