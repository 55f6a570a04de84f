"""The release of a histogram: its noise, its threshold, and nothing of the order of the words."""

import numpy as np
import pytest
from scipy.stats import kstest

from dpft.privacy.cipher import secret_key
from dpft.privacy.mechanisms.histogram import GaussianHistogram, noisy_counts, words_above_threshold
from dpft.privacy.noise import grid

KEY = secret_key("histogram", 7)


def test_a_stray_word_passes_as_often_as_delta_allows() -> None:
    """Closed form: words of one unit alone, each with the most that it may add."""
    histogram = GaussianHistogram(
        noise_std=3.0, l2_cap=2.0, linf_cap=2.0, words_per_record=4, delta=0.08
    )
    draws = 1_000_000
    passed = noisy_counts(np.full(draws, 2.0), 3.0, KEY) >= histogram.threshold
    allowed = histogram.delta / (2 * 4)
    assert abs(passed.mean() - allowed) < 4 * np.sqrt(allowed / draws)


def test_the_noise_is_gaussian_of_the_given_deviation() -> None:
    noise = noisy_counts(np.zeros(20_000), 5.0, KEY) / 5.0
    assert kstest(noise, "norm").pvalue > 0.01


def test_other_keys_give_other_noise_and_equal_ones_the_same() -> None:
    counts = np.arange(8.0)
    first, again = (noisy_counts(counts, 1.0, KEY) for _ in range(2))
    other = noisy_counts(counts, 1.0, secret_key("histogram"))
    assert (first == again).all()
    assert (first != other).all()


@pytest.fixture
def quiet() -> GaussianHistogram:
    return GaussianHistogram(
        noise_std=0.01, l2_cap=1.0, linf_cap=1.0, words_per_record=2, delta=1e-6
    )


def test_words_come_by_count_and_name_whatever_their_order(quiet: GaussianHistogram) -> None:
    words, counts = ["b", "rare", "a", "c"], np.array([5.0, 0.5, 5.0, 9.0])
    expected = [("c", 9), ("a", 5), ("b", 5)]
    assert words_above_threshold(words, counts, quiet, KEY) == expected
    assert words_above_threshold(words[::-1], counts[::-1].copy(), quiet, KEY) == expected


def test_a_count_that_the_grid_rounds_up_to_the_threshold_does_not_pass(
    quiet: GaussianHistogram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a stray word would pass a little more often than delta / (2N) allows."""
    at = quiet.threshold
    spacing = grid(quiet.noise_std)
    counts = np.array([at, at + 0.49 * spacing, at + spacing])
    monkeypatch.setattr("dpft.privacy.mechanisms.histogram.noisy_counts", lambda *_: counts)
    assert [word for word, _ in words_above_threshold(["a", "b", "c"], counts, quiet, KEY)] == ["c"]
