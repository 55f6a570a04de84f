import pytest

from dpft.evaluation.metrics.base import ngrams, ptb_tokens


# what stanford-corenlp-3.4.1's PTBTokenizer -preserveLines -lowerCase prints,
# less coco-caption's punctuation
@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The Punter is a pub.", "the punter is a pub"),
        ("It isn't cheap, but they're kid friendly!", "it is n't cheap but they 're kid friendly"),
        ("Clowns' Café; Wildwood's rival", "clowns café wildwood 's rival"),
        ("a family-friendly, 3-star place", "a family-friendly 3-star place"),
        ("rated 3.5 out of 1,000", "rated 3.5 out of 1,000"),
        ('a "cosy" pub - really...', "a cosy pub really"),
        ("hors d'oeuvres", "hors d'oeuvres"),
        ("by the river,there", "by the river there"),
        ("", ""),
    ],
)
def test_tokens_equal_the_stanford_tokenizer_without_punctuation(text, tokens):
    assert ptb_tokens(text) == tokens.split()


def test_a_currency_sign_is_a_token_of_its_own():
    assert ptb_tokens("£20-25") == ["£", "20-25"]


@pytest.mark.parametrize(("n", "expected"), [(1, ["a", "b", "a"]), (2, ["ab", "ba"]), (4, [])])
def test_ngrams_are_every_n_consecutive_tokens(n, expected):
    assert ["".join(ngram) for ngram in ngrams("aba", n)] == expected
