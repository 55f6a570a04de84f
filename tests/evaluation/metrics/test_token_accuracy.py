"""Accuracy of tokens, given those before."""

import pytest

from dpft.evaluation.metrics.base import NotComputed
from dpft.evaluation.metrics.token_accuracy import token_accuracy


def test_every_token_counts_the_same():
    assert token_accuracy([9, 0], [9, 1]) == 0.9


def test_references_without_tokens_have_no_accuracy():
    with pytest.raises(NotComputed, match="no tokens"):
        token_accuracy([0], [0])
