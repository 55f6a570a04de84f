"""Constants that tasks, data and models share: kinds of models, and kinds of answers."""

import re
from dataclasses import dataclass
from typing import Final, Literal

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
