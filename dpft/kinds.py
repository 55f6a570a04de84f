"""Kinds of models and of what they answer, by constants, and registries of named offers.

A registry is what a package offers by name, where each offer registers itself.
"""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from dpft.errors import InputError

CAUSAL = "causal"
"""Continues a text: GPT-2, Llama."""
SEQ2SEQ = "seq2seq"
"""Reads one text and writes another: T5, BART."""
MASKED = "masked"
"""Fills in a masked token: BERT, RoBERTa."""
CLASSIFIER = "classifier"
"""Has a classification head."""
IMAGE_CLASSIFIER = "image_classifier"
"""Sees an image and has a classification head: ViT, ConvNeXt."""

LANGUAGE_KINDS = (CAUSAL, SEQ2SEQ, MASKED)

TEXT, LABEL_WORDS, CLASSES, SCORE = "text", "label_words", "classes", "score"
"""What an answer is: a text; a word among a few; a class, or a number, of a classifier."""

TEXTS, LABELS, ATTRIBUTES = "texts", "labels", "attributes"
"""What a task's answers are, and so how they are scored: texts; a class or a number of each record;
several attributes of it, each there or not."""

DeltaRule = Literal["published", "own_data"]
PUBLISHED: Final = "published"
OWN_DATA: Final = "own_data"
"""What a task says of a delta that nobody gave: that of the papers, or that for a user's data."""

NOTHING, PROMPTS = "num", "prompts"
"""What ``dpft generate`` has a model write from, by its own keys: nothing, so many times; or rows
of the user's."""

GAP, SENTINEL = re.compile(r"_{4,}"), re.compile(r"<extra_id_(\d+)>")
"""A gap of a text, in place of whole words, for a model that has learned hidden spans to fill; and
how T5 names it, and names it again before what fills it."""

IGNORED_LABEL = -100
"""Label of a token that carries no loss, of every kind of model."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """What a model answers with."""

    kind: str
    """One of the kinds above."""
    labels: tuple[str, ...] = ()
    """For a classifier: names of the classes; empty: it gives one number, a score."""

    @property
    def num_outputs(self) -> int:
        """Numbers a classifier gives for a record."""
        return max(1, len(self.labels))


Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """What one module, or the modules of one package, offer by name.

    A module that registers nothing is one that others of the package share; no list need say so.
    """

    def __init__(self, package: str, *, key: str) -> None:
        """Begins without an entry.

        Args:
            package: Dotted name of the module, or of the package whose modules register themselves.
            key: The configuration key that names an entry, for messages.
        """
        self._package, self._key = package, key
        self._entries: dict[str, Entry] = {}

    def register(self, *names: str) -> Callable[[Entry], Entry]:
        """Returns a decorator that registers what it is given under every one of the names.

        Raises:
            ValueError: A name is taken.
        """

        def registered(entry: Entry) -> Entry:
            for name in names:
                if name in self._entries:
                    raise ValueError(f"{self._package} has a {name} already; choose another name.")
                self._entries[name] = entry
            return entry

        return registered

    def _import(self, names: Iterable[str]) -> None:
        for name in names:
            importlib.import_module(f"{self._package}.{name}")

    def _modules(self) -> list[str]:
        package = importlib.import_module(self._package)
        return [module.name for module in pkgutil.iter_modules(getattr(package, "__path__", ()))]

    def entries(self) -> dict[str, Entry]:
        """Returns every entry by name, sorted, once all modules of the package are imported."""
        self._import(self._modules())
        return dict(sorted(self._entries.items()))

    def named(self, name: str) -> Entry:
        """Returns the entry of that name.

        The module of the same name is asked first, since all modules of a package together may
        take seconds to import.
        """
        if name not in self._entries:
            self._import({name} & set(self._modules()))
        if name in self._entries:
            return self._entries[name]
        entries = self.entries()
        if name not in entries:
            raise InputError(f"{self._key} must be one of {', '.join(entries)}, got {name!r}.")
        return entries[name]
