"""Base of metrics: the registry, and the specification of each metric.

A module of this package registers one metric, or a few metrics that share their arithmetic. The
function of a metric needs no library of Hugging Face; ``dpft.evaluation.local_metric`` wraps it.

``ptb_tokens`` returns tokens like the COCO caption scorers, without Java. The E2E NLG Challenge
uses coco-caption. That scorer tokenizes with the Stanford PTBTokenizer 3.4.1, converts to lower
case and removes punctuation. This module implements the part of that tokenizer that English
sentences use. It was compared on the 60,757 distinct texts of E2E's references and challenge
outputs. Except for the spelling of "£" and brackets, the tokens differ in only 73 texts. Most of
these texts contain "center." or "st." before another sentence, which the Stanford tokenizer treats
as abbreviations.
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
"""Numbers of reference tokens that a model ranks first, given the previous tokens: columns
``right_counts`` and ``token_counts``."""
LABELS = "labels"
"""Classes, or scores for regression: columns ``predicted`` and ``gold`` of numbers."""
RANKINGS = "rankings"
"""Classes in order of decreasing likelihood: columns ``ranked`` of lists and ``gold``
of numbers."""
ATTRIBUTES = "attributes"
"""0 or 1 for each attribute: columns ``predicted`` and ``gold`` of lists of numbers."""
PAIRS = "pairs"
"""A model's log-likelihoods (nats) of the answers of preference pairs: columns ``chosen``,
``rejected`` and ``tokens``, the number of tokens of the chosen answer."""

HIGHER, LOWER = "higher", "lower"
"""Direction in which values of a metric are better."""


class NotComputed(Exception):
    """Error for a metric without a value on these columns.

    The message states the reason and quotes no text.
    """


def nothing_missing(settings: MetricsConfig) -> str | None:
    """Return None; used for a metric that needs no optional package or file."""
    return None


@dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """Specification of one metric: its name, its inputs and its computation."""

    name: str
    """Name in ``task.metrics``, which is the name of its function."""
    inputs: str
    """The kind of columns that the metric reads, such as ``TEXTS``. The columns of this kind are
    the parameters of ``score``."""
    score: Callable[..., float]
    """The computation, with keyword parameters named like the columns. May
    raise ``NotComputed``."""
    description: str
    """Meaning and scale of the number."""
    citation: str
    """Publication that defines the metric."""
    title: str = ""
    """Name in tables, in its usual spelling; empty to use ``name`` with spaces."""
    key: str = ""
    """Key in metrics.json, which related metrics may share; empty to use ``name``."""
    missing: Callable[[MetricsConfig], str | None] = nothing_missing
    """Function that returns the reason why the metric cannot be computed on this machine, and how
    to fix this; None if it can be computed."""
    reads_settings: bool = False
    """Whether ``score`` also takes ``settings``, a ``MetricsConfig``."""
    reads_language: bool = False
    """Whether ``score`` also takes ``language``, the code of ``task.language`` or None."""
    english_only: bool = False
    """Whether the metric is defined only for English texts."""
    signature: Callable[[str | None], str] | None = None
    """Function that returns, for a language, the settings that reproduce a score, such as
    sacrebleu's signature."""
    better: str | None = HIGHER
    """``HIGHER`` or ``LOWER``; None if neither direction is better, so that runs cannot be selected
    by the metric."""

    @property
    def heading(self) -> str:
        """The name in tables, with an arrow that points to the better values."""
        arrows = {HIGHER: " ↑", LOWER: " ↓"}
        title = self.title or self.name.replace("_", " ").capitalize()
        return f"{title}{arrows.get(self.better or '', '')}"

    @property
    def reported_as(self) -> str:
        """The key in metrics.json."""
        return self.key or self.name


Score = TypeVar("Score", bound=Callable[..., float])
METRICS: Registry[MetricSpec] = Registry("dpft.evaluation.metrics", key="task.metrics")
"""Registry of metrics by name; a module of this package registers its metrics with ``metric``."""


def better_value(metric: str) -> str | None:
    """Return the better direction of a metric; ``HIGHER`` if dpft does not know the metric."""
    specs = METRICS.entries().values()
    return next((spec.better for spec in specs if spec.reported_as == metric), HIGHER)


def metric(
    inputs: str, *, description: str, citation: str, **options: Any
) -> Callable[[Score], Score]:
    """Return a decorator that registers a function as a metric under the function's name."""

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
        InputError: A metric does not exist, or two metrics would share a key of metrics.json.
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
    """Return the reason why modules of the ``metrics`` extra are missing; None if they exist.

    Args:
        names: Modules to import; an installed but broken module counts as missing.
    """
    try:
        for name in names:
            importlib.import_module(name)
    except ImportError:
        return "needs the extra: pip install 'dpft[metrics]'"
    return None


def missing_java() -> str | None:
    """Return the reason why Java programs cannot be run; None if they can be run."""
    if shutil.which("java") is None:
        return "needs Java; install a Java runtime (8 or newer)"
    return None


def missing_folder(key: str, folder: str | None, example: str) -> str | None:
    """Return the reason why a model folder is missing; None if it exists."""
    if folder is None:
        return f"needs a model folder; set {key}=DIR (for example, a download of {example})"
    if not Path(folder).is_dir():
        return f"needs a model folder; {key}={folder} is not a folder"
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
"""Pattern of tokens; a word includes its combining marks, such as the vowel signs of Hindi."""
_PUNCTUATION = frozenset(".?!,:;-`'\"")


def ptb_tokens(text: str, language: str | None = None) -> list[str]:
    """Return the lower-cased tokens of a text without punctuation.

    Unless the language is English, each character of a script without spaces is a token.

    >>> ptb_tokens("It isn't The Punter's family-friendly pub, (£20-25).")
    ['it', 'is', "n't", 'the', 'punter', "'s", 'family-friendly', 'pub', '(', '£', '20-25', ')']
    """
    pattern = _ENGLISH_TOKEN if language == ENGLISH else _UNICODE_TOKEN
    tokens = pattern.findall(without_marks(text.lower(), language))
    return [token for token in tokens if token not in _PUNCTUATION]


def ngrams(tokens: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    """Return all n-grams of consecutive tokens, in order; none if there are fewer than n tokens.

    >>> list(ngrams("a b c".split(), 2))
    [('a', 'b'), ('b', 'c')]
    """
    return (tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1))
