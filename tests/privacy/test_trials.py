from collections import Counter

import numpy as np
import pytest
from scipy import stats

from dpft.privacy.accounting.selection import TrialCount
from dpft.privacy.trials import UniformStream, draw_count, draw_settings
from tests.slowness import slow_but

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


@pytest.mark.parametrize("eta", slow_but((0.0, 1.0), (-0.5, 0.0, 0.5, 1.0, 3.0)))
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


def test_consecutive_draws_of_a_stream_share_no_number():
    stream = UniformStream(bytes(32))
    assert np.intersect1d(stream.draw(1000), stream.draw(1000)).size == 0


def test_each_of_the_32_bytes_of_a_key_changes_the_numbers():
    keys = [bytes(32), *(bytes(i) + b"\1" + bytes(31 - i) for i in range(32))]
    assert len({UniformStream(key).draw(1)[0] for key in keys}) == len(keys)
