"""Tokens of a text as the COCO caption scorers see them, without Java, and n-grams of tokens.

coco-caption, and with it the E2E NLG Challenge, lower-cases with the Stanford PTBTokenizer 3.4.1
and drops punctuation. This is the part of that tokenizer that English sentences use. On the
60,757 distinct texts of E2E's references and challenge outputs it gives the same tokens, but for
how "£" and brackets are written, in all but 73 (mostly "center." and "st." before another sentence,
which the Stanford tokenizer takes for abbreviations).
"""

import re
from collections.abc import Iterator, Sequence

_TOKEN = re.compile(
    r"""
      \w+?(?=n't\b)                             # the verb in "don't"
    | n't\b | '(?:s|m|d|re|ve|ll)\b             # what it contracts with
    | \w+(?:(?:[-./&]                           # "family-friendly", "4.5", "and/or"
             | (?<=\d)[,:](?=\d)                # "1,000", "12:30"
             | '(?!(?:s|m|d|re|ve|ll|t)\b)      # "d'oeuvres"
            )\w+)*
    | [^\w\s]
    """,
    re.VERBOSE,
)
_PUNCTUATION = frozenset(".?!,:;-`'\"")


def ptb_tokens(text: str) -> list[str]:
    """Returns the text's lower-cased tokens without punctuation.

    >>> ptb_tokens("It isn't The Punter's family-friendly pub, (£20-25).")
    ['it', 'is', "n't", 'the', 'punter', "'s", 'family-friendly', 'pub', '(', '£', '20-25', ')']
    """
    return [token for token in _TOKEN.findall(text.lower()) if token not in _PUNCTUATION]


def ngrams(tokens: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    """Returns every n consecutive tokens, in order; none of a shorter sequence.

    >>> list(ngrams("a b c".split(), 2))
    [('a', 'b'), ('b', 'c')]
    """
    return (tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1))
