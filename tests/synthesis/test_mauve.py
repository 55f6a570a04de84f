"""MAUVE by its definition: closed forms, a case by hand, features of a model."""

import math

import numpy as np
import pytest
from scipy.integrate import quad

from dpft.synthesis.mauve import FEWEST, SCALE, embedding, frontier_area, mauve
from tests.models import small


def test_equal_shares_have_1_and_disjoint_ones_the_closed_form() -> None:
    """The integral of (1 - x^(1/c))^c is c!^2 / (2c)!: 1/252 of c = 5."""
    assert frontier_area([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]) == pytest.approx(1)
    least = math.factorial(5) ** 2 / math.factorial(10)
    assert frontier_area([1, 0], [0, 1], points=4000) == pytest.approx(least, rel=1e-3)
    assert frontier_area([1, 0], [0, 1]) == pytest.approx(least, rel=0.1), "25 points are near it"


def test_two_groups_by_hand() -> None:
    """P = (1, 0), Q = (1/2, 1/2): KL(Q | R) = -log(1 - w^2) / 2 and KL(P | R) = -log((1 + w) / 2).

    From where w is 0 the curve goes on to (1, 0).
    """

    def x(w: float) -> float:
        return (1 - w * w) ** (SCALE / 2)

    def y(w: float) -> float:
        return ((1 + w) / 2) ** SCALE

    area = quad(lambda w: y(w) * SCALE * w * (1 - w * w) ** (SCALE / 2 - 1), 0, 1)[0]
    assert x(0) == 1 and y(1) == 1
    assert frontier_area([1, 0], [0.5, 0.5], points=4000) == pytest.approx(area, rel=1e-3)
    assert frontier_area([0.5, 0.5], [1, 0], points=4000) == pytest.approx(area, rel=1e-3)


def clusters(counts: dict[int, int]) -> np.ndarray:
    """Features in groups far apart, so many of each."""
    noise = np.random.default_rng(sum(counts))
    centers = np.eye(8)
    rows = [
        centers[group] + 1e-3 * noise.normal(size=8)
        for group, n in counts.items()
        for _ in range(n)
    ]
    return np.array(rows)


def test_samples_of_one_distribution_are_near_and_of_disjoint_ones_far() -> None:
    noise = np.random.default_rng(0)
    one, other = noise.normal(size=(2, 400, 6))
    assert mauve(one, other) > 0.9
    assert mauve(one, one) == pytest.approx(1)
    assert mauve(clusters({0: 60, 1: 60}), clusters({2: 60, 3: 60})) == pytest.approx(
        frontier_area([1, 0], [0, 1]), rel=1e-6
    )
    shifted = mauve(clusters({0: 60, 1: 60}), clusters({0: 90, 1: 30}))
    assert 0.004 < shifted < 1


def test_a_few_texts_or_equal_ones_are_no_division_by_zero() -> None:
    assert mauve(np.ones((FEWEST - 1, 3)), np.ones((100, 3))) is None
    assert mauve(np.ones((60, 3)), np.ones((60, 3))) == pytest.approx(1)


def test_features_are_the_last_state_of_each_text_whatever_stands_beside_it() -> None:
    model, tokenizer = small.language_model("gpt2"), small.blank_words(closes=False)
    embed = embedding(model, tokenizer, most_tokens=8)
    texts = ["the cat sat", "the", "a dog sat on the mat"]
    together = embed(texts)
    for text, features in zip(texts, together, strict=True):
        np.testing.assert_allclose(embed([text])[0], features, rtol=1e-5, atol=1e-6)
    assert np.abs(together[0] - together[1]).max() > 1e-3
