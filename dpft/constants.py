"""Constants that tasks, data and models share: kinds of models, and kinds of answers."""

import re
from dataclasses import dataclass
from typing import Final, Literal

CAUSAL = "causal"
"""Model that continues a text: GPT-2, Llama."""
SEQ2SEQ = "seq2seq"
"""Model that reads one text and generates another: T5, BART."""
MASKED = "masked"
"""Model that fills in a masked token: BERT, RoBERTa."""
CLASSIFIER = "classifier"
"""Model with a classification head."""
IMAGE_CLASSIFIER = "image_classifier"
"""Model that reads an image and has a classification head: ViT, ConvNeXt."""

LANGUAGE_KINDS = (CAUSAL, SEQ2SEQ, MASKED)

TEXT, LABEL_WORDS, CLASSES, SCORE = "text", "label_words", "classes", "score"
"""Kinds of an answer: a text; one of a few label words; a class of a classifier; a number of a
classifier."""

TEXTS, LABELS, ATTRIBUTES = "texts", "labels", "attributes"
"""Kinds of a task's answers, which determine how they are scored: texts; a class or a number for
each record; several attributes of each record, each present or absent."""

DeltaRule = Literal["published", "own_data"]
PUBLISHED: Final = "published"
OWN_DATA: Final = "own_data"
"""Which default delta a task uses: that of the papers, or that for a user's data."""

NOTHING, PROMPTS = "num", "prompts"
"""Input of ``dpft generate``, by its keys: no input, for a number of texts; or rows of the user's
prompts."""

GAP, SENTINEL = re.compile(r"_{4,}"), re.compile(r"<extra_id_(\d+)>")
"""A gap in a text, in place of whole words, for a model that has learned to fill hidden spans. T5's
name of the gap, which also precedes the text that the model generates for the gap."""

IGNORED_LABEL = -100
"""Label of a token without loss, for every kind of model."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """The output head of a model."""

    kind: str
    """One of the kinds above."""
    labels: tuple[str, ...] = ()
    """For a classifier: names of the classes; empty if the classifier outputs one number,
    a score."""

    @property
    def num_outputs(self) -> int:
        """Number of outputs of a classifier for each record."""
        return max(1, len(self.labels))
