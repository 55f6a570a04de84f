import pytest

from dpft.evaluation.metrics.base import NotComputed
from dpft.evaluation.metrics.ngrams import distinct, ngrams


@pytest.mark.parametrize(("n", "expected"), [(1, ["a", "b", "a"]), (2, ["ab", "ba"]), (4, [])])
def test_ngrams_are_every_n_consecutive_tokens(n, expected):
    assert ["".join(ngram) for ngram in ngrams("aba", n)] == expected


def test_no_ngram_no_value():
    with pytest.raises(NotComputed, match="no prediction is 2 words long"):
        distinct(["a", "..."], 2)
