import math
from collections import Counter

import dp_accounting
import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from scipy import stats

from dpft.privacy.accounting import rdp
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.accounting.selection import (
    ACCOUNTANT,
    TrialCount,
    UniformStream,
    calibrate_trials,
    draw_count,
    draw_settings,
    selection_curve,
    selection_epsilon,
)
from tests.rejections import rejects
from tests.slowness import slow

ORDERS = np.array(rdp.ORDERS)
E2E = SampledGaussian(
    noise_multiplier=1.0, sample_rate=1024 / 42061, steps=410, delta=1 / (2 * 42061)
)


def at(order, curve):
    return float(curve[rdp.ORDERS.index(order)])


@pytest.mark.parametrize(
    ("count", "law"),
    [
        (TrialCount(eta=1, gamma=0.1), stats.geom(0.1)),
        (TrialCount(eta=0, gamma=0.02), stats.logser(0.98)),
    ],
)
def test_quantiles_are_those_of_the_geometric_and_the_logarithmic_law(count, law):
    for share in (0.5, 0.1, 0.01):
        assert count.quantile(share) == law.ppf(1 - share)


@pytest.mark.parametrize("eta", [-0.5, 0, 1, 3])
def test_the_expected_number_is_the_mean_of_the_probabilities(eta):
    # Definition 1: P(k) is proportional to (1 - gamma)^k * prod over l < k of (l + eta) / (l + 1),
    # for eta = 0 to (1 - gamma)^k / k.
    gamma, weight, total, mean = 0.3, 1.0, 0.0, 0.0
    for k in range(1, 400):
        total, mean = total + weight, mean + k * weight
        weight *= (1 - gamma) * (k + eta) / (k + 1)
    count = TrialCount(eta=eta, gamma=gamma)
    assert count.expected == pytest.approx(mean / total, rel=1e-12)


@pytest.mark.parametrize("eta", [-0.5, 0, 0.5, 1, 5])
def test_a_gaussian_trial_has_the_closed_form_of_corollary_4(eta):
    # A Gaussian of epsilon(order) = rho * order. The minimum over other of
    # rho * (other - 1) + log(1/gamma) / other is at sqrt(log(1/gamma) / rho), here 4, an order of
    # ours: 2 * sqrt(rho * log(1/gamma)) - rho.
    rho, gamma = 0.1, math.exp(-1.6)
    count = TrialCount(eta=eta, gamma=gamma)
    curve = selection_curve(rho * ORDERS, count)
    for order in (20, 64, 1024):
        mean = math.log(count.expected)
        closed = (
            rho * (order - 1)
            + mean / (order - 1)
            + 2 * (1 + eta) * math.sqrt(rho * -math.log(gamma))
            - eta * rho
        )
        assert at(order, curve) == pytest.approx(closed, rel=1e-12)


@pytest.mark.parametrize(("eta", "gamma"), [(0.5, 0.2), *slow((0, 0.025), (1, 0.1), (2, 0.3))])
def test_dp_accounting_finds_the_same_bound(eta, gamma):
    count = TrialCount(eta=eta, gamma=gamma)
    other = dp_accounting.rdp.RdpAccountant(
        rdp.ORDERS, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    other.compose(RepeatAndSelectDpEvent(E2E.event(), count.expected, eta))
    assert selection_epsilon([E2E], count).upper == pytest.approx(
        other.get_epsilon(E2E.delta), rel=1e-7
    )


def test_choosing_of_almost_surely_one_trial_costs_what_the_trial_does():
    count = TrialCount(eta=0, gamma=1 - 1e-9)
    assert count.expected == pytest.approx(1)
    assert selection_epsilon([E2E], count).upper == pytest.approx(rdp.epsilon(E2E).upper, abs=1e-6)


def test_a_search_space_costs_what_its_pointwise_largest_curve_does():
    other = SampledGaussian(noise_multiplier=3.0, sample_rate=1.0, steps=10, delta=E2E.delta)
    count = TrialCount(eta=0, gamma=0.1)
    curves = [rdp.curve(E2E), rdp.curve(other)]
    assert (curves[0] > curves[1]).any() and (curves[0] < curves[1]).any()
    expected = rdp.epsilon_of_curve(selection_curve(np.maximum(*curves), count), E2E.delta)
    assert selection_epsilon([E2E, other], count) == expected


def test_the_noise_keeps_the_whole_search_within_eps():
    longer = SampledGaussian(
        noise_multiplier=1.0, sample_rate=E2E.sample_rate / 2, steps=2460, delta=E2E.delta
    )
    count = TrialCount(eta=0, gamma=0.025)
    noise, calibration = calibrate_trials([E2E, longer, E2E], eps=3, count=count)
    calibrated = [
        SampledGaussian(**{**vars(shape), "noise_multiplier": value})
        for shape, value in zip([E2E, longer, E2E], noise, strict=True)
    ]
    assert noise[0] == noise[2] != noise[1]
    assert selection_epsilon(calibrated, count).upper == calibration.epsilon
    assert 2.98 < calibration.epsilon <= 3
    assert calibration.accountant == ACCOUNTANT


def test_a_target_out_of_reach_is_refused():
    with rejects("privacy.eps", 1e-4):
        calibrate_trials([E2E], eps=1e-4, count=TrialCount(eta=0, gamma=0.025))


@pytest.mark.parametrize(
    ("eta", "gamma", "key"),
    [(-1, 0.5, "eta"), (math.inf, 0.5, "eta"), (0, 0, "gamma"), (0, 1, "gamma")],
)
def test_parameters_of_no_distribution_are_refused(eta, gamma, key):
    with rejects(f"tune.{key}"):
        TrialCount(eta=eta, gamma=gamma)


DRAWS = 5_000


def stream(key: int = 1) -> UniformStream:
    return UniformStream(bytes([key]) * 32)


class Fixed(UniformStream):
    """Uniform numbers of the test's own."""

    def __init__(self, words: list[float]) -> None:
        self.words = words

    def draw(self, count: int) -> np.ndarray:
        assert count == len(self.words)
        return np.array(self.words)


@pytest.mark.slow
@pytest.mark.parametrize("eta", (-0.5, 0.0, 0.5, 1.0, 3.0))
def test_frequencies_are_the_probabilities_of_definition_1(eta: float) -> None:
    count, uniforms = TrialCount(eta=eta, gamma=0.3), stream()
    drawn = Counter(draw_count(count, uniforms) for _ in range(DRAWS))
    # Proportional to (1 - gamma)^k * prod over l < k of (l + eta) / (l + 1), l from 1 where eta=0.
    weights = [1.0]
    for k in range(1, 200):
        weights.append(weights[-1] * 0.7 * (k + eta) / (k + 1))
    for k, weight in enumerate(weights[:8], start=1):
        p = weight / sum(weights)
        assert abs(drawn[k] / DRAWS - p) < 4 * (p * (1 - p) / DRAWS) ** 0.5, k
    assert min(drawn) == 1


@pytest.mark.parametrize(
    ("words", "number"),
    # Geometric of gamma = 1/2: P(K <= k) = 1 - 2^-k, and inversion takes the k that passes the
    # uniform number; the words are 53 bits each of its 212.
    [
        ([0.0, 0, 0, 0], 1),
        ([0.5 - 2**-53, 0, 0, 0], 1),
        ([0.5, 0, 0, 0], 2),
        ([0.75, 0, 0, 0], 3),
        ([1 - 2**-53] * 2 + [0, 0], 107),  # 1 - 2^-106, where a float would be 1
    ],
)
def test_the_distribution_function_is_inverted_into_its_far_tail(
    words: list[float], number: int
) -> None:
    assert draw_count(TrialCount(eta=1.0, gamma=0.5), Fixed(words)) == number


def test_a_key_draws_the_same_search_and_another_key_another() -> None:
    count, space = TrialCount(eta=0.0, gamma=0.001), {"a": range(100)}

    def search(key: int) -> list[dict[str, int]]:
        uniforms = stream(key)
        return draw_settings(space, draw_count(count, uniforms) + 20, uniforms)

    assert search(1) == search(1) != search(2)


@pytest.mark.slow
def test_settings_are_drawn_uniformly_independently_and_with_replacement() -> None:
    drawn = draw_settings({"a": [1, 2], "b": ["x", "y", "z"]}, 6000, stream())
    together = Counter((one["a"], one["b"]) for one in drawn)
    assert len(together) == 6
    # 1000 of each, standard deviation sqrt(6000 * 1/6 * 5/6) = 28.9.
    assert all(abs(number - 1000) < 4 * 28.9 for number in together.values())


def test_uniforms_are_uniform_with_53_bits():
    draws = UniformStream(bytes(32)).draw(100_000)
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    assert (draws >= 0).all() and (draws < 1).all()
    assert np.unique(draws * 2**53 % 2**21).size > 90_000, "the low bits vary too"
