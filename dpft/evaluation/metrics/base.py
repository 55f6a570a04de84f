"""Base of metrics: the registry, and the specification of each metric.

A module of this package registers one metric, or a few that share their arithmetic. The function of
a metric needs no library of Hugging Face; ``dpft.evaluation.local_metric`` wraps it.

``ptb_tokens`` are tokens as the COCO caption scorers see them, without Java.
coco-caption, and with it the E2E NLG Challenge, lower-cases with the Stanford PTBTokenizer 3.4.1
and drops punctuation. This is the part of that tokenizer that English sentences use. On the
60,757 distinct texts of E2E's references and challenge outputs it gives the same tokens, but for
how "£" and brackets are written, in all but 73 (mostly "center." and "st." before another sentence,
which the Stanford tokenizer takes for abbreviations).
"""

import importlib
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import regex

from dpft.errors import InputError
from dpft.evaluation.eval_config import MetricsConfig
from dpft.evaluation.words import ENGLISH, without_marks
from dpft.registry import Registry

TEXTS = "texts"
"""Predictions and their references: columns ``predictions`` and ``references``."""
LIKELIHOODS = "likelihoods"
"""A model's likelihood of the references: columns ``nll_sums`` (nats) and ``token_counts``."""
NEXT_TOKENS = "next_tokens"
"""Tokens of the references that a model, given those before, holds for the likeliest: columns
``right_counts`` and ``token_counts``."""
LABELS = "labels"
"""Classes or, for regression, scores: columns ``predicted`` and ``gold``, numbers."""
RANKINGS = "rankings"
"""Classes from the likeliest on: columns ``ranked``, lists of them, and ``gold``, numbers."""
ATTRIBUTES = "attributes"
"""0 or 1 for each attribute: columns ``predicted`` and ``gold``, lists of numbers."""
PAIRS = "pairs"
"""A model's log-likelihoods (nats) of the answers of preference pairs: columns ``chosen``,
``rejected`` and ``tokens``, of the chosen answer."""

HIGHER, LOWER = "higher", "lower"
"""Which of two values of a metric is better."""


class NotComputed(Exception):
    """A metric has no value on these columns; the message is the reason and quotes no text."""


def nothing_missing(settings: MetricsConfig) -> str | None:
    """Return None: a metric that needs no more than dpft itself."""
    return None


@dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """One metric: what it is called, what it reads and how it is computed."""

    name: str
    """What ``task.metrics`` calls it, which is the name of its function."""
    inputs: str
    """The kind of columns it reads, which are the parameters of ``score``: ``TEXTS``, say."""
    score: Callable[..., float]
    """The arithmetic; keyword parameters named as the columns. May raise ``NotComputed``."""
    description: str
    """What the number means, with its scale."""
    citation: str
    """Where the metric is defined."""
    title: str = ""
    """Its name in tables, in the spelling of the field; empty: ``name`` in words."""
    key: str = ""
    """Key in metrics.json, which metrics of one kind may share; empty: ``name``."""
    missing: Callable[[MetricsConfig], str | None] = nothing_missing
    """Why the metric cannot be computed here and how to mend that; None where it can."""
    reads_settings: bool = False
    """Whether ``score`` also takes ``settings``, a ``MetricsConfig``."""
    reads_language: bool = False
    """Whether ``score`` also takes ``language``, the code of ``task.language`` or None."""
    english_only: bool = False
    """Whether the metric is defined only for English texts."""
    signature: Callable[[str | None], str] | None = None
    """Returns the settings that reproduce a score, such as sacrebleu's signature, by language."""
    better: str | None = HIGHER
    """``HIGHER`` or ``LOWER``; None: neither is better, so no run can be chosen by it."""

    @property
    def heading(self) -> str:
        """Its name in tables, with an arrow that points to the better values."""
        arrows = {HIGHER: " ↑", LOWER: " ↓"}
        title = self.title or self.name.replace("_", " ").capitalize()
        return f"{title}{arrows.get(self.better or '', '')}"

    @property
    def reported_as(self) -> str:
        """Its key in metrics.json."""
        return self.key or self.name


Score = TypeVar("Score", bound=Callable[..., float])
METRICS: Registry[MetricSpec] = Registry("dpft.evaluation.metrics", key="task.metrics")
"""Every metric by name; a module of this package registers its own by ``metric``."""


def better_value(metric: str) -> str | None:
    """Return which of two scores is better, ``HIGHER`` for a metric that dpft does not know."""
    specs = METRICS.entries().values()
    return next((spec.better for spec in specs if spec.reported_as == metric), HIGHER)


def metric(
    inputs: str, *, description: str, citation: str, **options: Any
) -> Callable[[Score], Score]:
    """Return a decorator that registers a function as the metric of its name."""

    def registered(score: Score) -> Score:
        spec = MetricSpec(
            name=score.__name__,
            inputs=inputs,
            score=score,
            description=description,
            citation=citation,
            **options,
        )
        METRICS.register(spec.name)(spec)
        return score

    return registered


def metric_specs(names: Sequence[str]) -> list[MetricSpec]:
    """Return the metrics of a task.

    Raises:
        InputError: There is no such metric, or two would share a key of metrics.json.
    """
    specs = [METRICS.named(name) for name in names]
    by_key: dict[str, str] = {}
    for spec in specs:
        other = by_key.setdefault(spec.reported_as, spec.name)
        if other != spec.name or names.count(spec.name) > 1:
            raise InputError(
                f"task.metrics must contain one metric for each key of metrics.json, got {other}"
                f" and {spec.name} for {spec.reported_as}. Remove one of them.",
                key="task.metrics",
                value=spec.name,
            )
    return specs


def missing_modules(*names: str) -> str | None:
    """Return why modules of the ``metrics`` extra cannot be used; None where they can.

    Args:
        names: Modules, imported here: one that is installed but broken counts as missing.
    """
    try:
        for name in names:
            importlib.import_module(name)
    except ImportError:
        return "needs the extra: pip install 'dpft[metrics]'"
    return None


def missing_java() -> str | None:
    """Return why no Java program can be run; None where one can."""
    if shutil.which("java") is None:
        return "needs Java; install a Java runtime (8 or newer)"
    return None


def missing_folder(key: str, folder: str | None, example: str) -> str | None:
    """Return why there is no model folder; None where there is."""
    if folder is None:
        return f"needs a model folder; set {key}=DIR (a download of {example}, say)"
    if not Path(folder).is_dir():
        return f"needs a model folder; {key}={folder} is none"
    return None


_TOKEN = r"""
      \w+?(?=n't\b)                             # the verb in "don't"
    | n't\b | '(?:s|m|d|re|ve|ll)\b             # what it contracts with
    | \w+(?:(?:[-./&]                           # "family-friendly", "4.5", "and/or"
             | (?<=\d)[,:](?=\d)                # "1,000", "12:30"
             | '(?!(?:s|m|d|re|ve|ll|t)\b)      # "d'oeuvres"
            )\w+)*
    | [^\w\s]
    """
_ENGLISH_TOKEN = re.compile(_TOKEN, re.VERBOSE)
_UNICODE_TOKEN = regex.compile(_TOKEN, regex.VERBOSE)
"""Here a word includes its combining marks, such as the vowel signs of Hindi."""
_PUNCTUATION = frozenset(".?!,:;-`'\"")


def ptb_tokens(text: str, language: str | None = None) -> list[str]:
    """Return the text's lower-cased tokens without punctuation.

    Unless the language is English, each character of a script without blanks is a token.

    >>> ptb_tokens("It isn't The Punter's family-friendly pub, (£20-25).")
    ['it', 'is', "n't", 'the', 'punter', "'s", 'family-friendly', 'pub', '(', '£', '20-25', ')']
    """
    pattern = _ENGLISH_TOKEN if language == ENGLISH else _UNICODE_TOKEN
    tokens = pattern.findall(without_marks(text.lower(), language))
    return [token for token in tokens if token not in _PUNCTUATION]


def ngrams(tokens: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    """Return every n consecutive tokens, in order; none of a shorter sequence.

    >>> list(ngrams("a b c".split(), 2))
    [('a', 'b'), ('b', 'c')]
    """
    return (tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1))
