import math

import pytest

from dpft.evaluation.metrics.base import NotComputed
from dpft.evaluation.metrics.perplexity import perplexity


def test_every_token_counts_the_same():
    # likelihoods 1/8 over three tokens and 1/2 over one: (8 * 2) ** (1 / 4)
    assert perplexity([math.log(8), math.log(2)], [3, 1]) == pytest.approx(2)


def test_a_uniform_model_has_the_vocabulary_as_perplexity():
    assert perplexity([5 * math.log(50257)], [5]) == pytest.approx(50257)


def test_an_overflow_is_infinite():
    assert perplexity([1000.0], [1]) == math.inf


def test_a_broken_model_is_not_a_number():
    assert math.isnan(perplexity([math.nan], [1]))


def test_no_token_has_no_perplexity():
    with pytest.raises(NotComputed, match="no tokens"):
        perplexity([0.0], [0])
