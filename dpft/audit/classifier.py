"""A classifier of texts that needs no model: scikit-learn's logistic regression on words."""

from collections.abc import Sequence
from typing import Any

from dpft.audit.words import words_of


def fitted_classifier(texts: Sequence[str], classes: Sequence[str]) -> Any:
    """Returns a classifier of texts, fitted to some; the same for the same texts."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    reader = TfidfVectorizer(analyzer=word_features)
    return make_pipeline(reader, LogisticRegression(max_iter=1000)).fit(texts, classes)


def word_features(text: str) -> list[str]:
    """Returns the words and the pairs of words of a text, as the classifier reads them.

    Its beginning is one of them, so that a text without words has a feature, too.
    """
    words = words_of(text.lower())
    pairs = [f"{one} {other}" for one, other in zip(words, words[1:], strict=False)]
    return ["", *words, *pairs]
