"""How synthetic texts look: by themselves, and against real ones.

Lengths and n-grams are compared as distributions, and a classifier is asked to tell the two apart
(Lopez-Paz and Oquab 2017, arXiv 1610.06545): where it does no better than a coin, nothing that it
can see is different. Every distance has a control, the same one between two halves of the real
texts: with few texts it is far from 0 by itself.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dpft.audit.near_duplicates import NearDuplicates
from dpft.audit.utility import fitted_classifier
from dpft.audit.words import words_of
from dpft.records import audits

NGRAMS = (1, 2, 3)
FEWEST = 20
"""Texts of a kind without which nothing is compared."""
MAUVE = (
    "MAUVE is not computed: it reads a language model's features (GPT-2 large in its paper), and no"
    " such model comes with dpft; the classifier two-sample test asks the same question"
)
Gram = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TextShape:
    """Some texts by themselves."""

    lengths: tuple[int, ...] = field(repr=False)
    """Words of each."""
    distinct: int
    """Different texts among them."""
    repeated: int
    """Texts with a near duplicate, or an equal one, among the others."""
    distinct_ngrams: dict[int, float]
    """Different n-grams as a share of all n-grams, by n."""

    def record(self) -> audits.TextShape:
        """Returns the numbers as they are written down, shares of texts in percent."""
        count = len(self.lengths)
        return audits.TextShape(
            records=count,
            distinct_percent=100 * self.distinct / count,
            near_duplicate_percent=100 * self.repeated / count,
            words_mean=float(np.mean(self.lengths)),
            words_median=float(np.median(self.lengths)),
            words_5_percent=float(np.quantile(self.lengths, 0.05)),
            words_95_percent=float(np.quantile(self.lengths, 0.95)),
            **{f"distinct_{n}": share for n, share in self.distinct_ngrams.items()},
        )


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """Synthetic texts against real ones."""

    records: int
    """Texts of each kind that the classifier was asked about."""
    accuracy: float
    """Share of those it had not seen that it told right; a coin tells half."""
    p_value: float
    """Probability that a coin does as well."""
    divergences: dict[int, float]
    """Jensen-Shannon divergence of the n-grams in bits, from 0 to 1, by n."""
    control: dict[int, float]
    """The same between two halves of the real texts, as many in each."""


def shape_of(texts: Sequence[str]) -> TextShape:
    """Returns some texts by themselves, at least one.

    Raises:
        InputError: datasketch is not installed.
    """
    split = [words_of(text) for text in texts]
    return TextShape(
        lengths=tuple(map(len, split)),
        distinct=len(set(texts)),
        repeated=sum(NearDuplicates(texts).repeated(texts)),
        distinct_ngrams={n: _distinct_share(split, n) for n in NGRAMS},
    )


def likeness(synthetic: Sequence[str], real: Sequence[str]) -> Likeness | str:
    """Returns synthetic texts against real ones, or why they are not compared, in words."""
    if min(len(synthetic), len(real)) < FEWEST:
        return f"fewer than {FEWEST} texts of a kind are too few to be told apart"
    order = np.random.default_rng(0)
    one, other = _shuffled(synthetic, order), _shuffled(real, order)
    half = min(len(one), len(other) // 2)
    halves = other[:half], other[half : 2 * half]
    accuracy, p_value, count = _two_sample_test(one, other)
    return Likeness(
        records=count,
        accuracy=accuracy,
        p_value=p_value,
        divergences={n: _divergence(one[:half], halves[0], n) for n in NGRAMS},
        control={n: _divergence(halves[1], halves[0], n) for n in NGRAMS},
    )


def ngrams(texts: Sequence[Sequence[str]], n: int) -> Counter[Gram]:
    """Returns how often each n-gram of words stands in the texts."""
    return Counter(tuple(words[at : at + n]) for words in texts for at in range(len(words) - n + 1))


def _two_sample_test(one: Sequence[str], other: Sequence[str]) -> tuple[float, float, int]:
    """Returns accuracy, p-value and texts of each kind; half of them teach the classifier."""
    from scipy.stats import binomtest

    count = min(len(one), len(other))
    half = count // 2
    taught = [*one[:half], *other[:half]]
    model = fitted_classifier(taught, ["synthetic"] * half + ["real"] * half)
    asked = [*one[half:count], *other[half:count]]
    answers = model.predict(asked)
    right = int(np.sum(answers == np.repeat(["synthetic", "real"], count - half)))
    p_value = binomtest(right, len(asked), 0.5, alternative="greater").pvalue
    return right / len(asked), float(p_value), count


def _divergence(one: Sequence[str], other: Sequence[str], n: int) -> float:
    from scipy.spatial.distance import jensenshannon

    counts = [ngrams([words_of(text) for text in texts], n) for texts in (one, other)]
    if not all(counts):
        return 0.0 if counts[0] == counts[1] else 1.0
    grams = list(counts[0] | counts[1])
    rows = [[count[gram] for gram in grams] for count in counts]
    return float(jensenshannon(*rows, base=2) ** 2)


def _distinct_share(texts: Sequence[Sequence[str]], n: int) -> float:
    counts = ngrams(texts, n)
    total = sum(counts.values())
    return len(counts) / total if total else 0.0


def _shuffled(texts: Sequence[str], order: np.random.Generator) -> list[str]:
    return [texts[at] for at in order.permutation(len(texts))]
