"""Constants shared by tasks, data and models: the kinds of models and the kinds of answers."""

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
"""Kinds of answers of a model: a generated text, one of a few label words, a classifier's class, or
a classifier's number."""

TEXTS, LABELS, ATTRIBUTES = "texts", "labels", "attributes"
"""Kinds of answers of a task, which determine the metrics: texts; a class or a number for each
record; or several attributes for each record, each present or absent."""

DeltaRule = Literal["published", "own_data"]
PUBLISHED: Final = "published"
OWN_DATA: Final = "own_data"
"""Rules for the default delta of a task: the papers' rule, or the rule for a user's data."""

NOTHING, PROMPTS = "num", "prompts"
"""Input of ``dpft generate``, named by its configuration key: no input except the number of texts
(``num``), or a file of prompts (``prompts``)."""

GAP, SENTINEL = re.compile(r"_{4,}"), re.compile(r"<extra_id_(\d+)>")
"""Patterns for models that have learned to fill hidden spans: a gap, which replaces whole words in
a prompt; and T5's sentinel for a gap, which precedes the text that the model generates for it."""

IGNORED_LABEL = -100
"""Label of a token that does not contribute to the loss, for every kind of model."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """The output head of a model."""

    kind: str
    """One of the kinds of models above."""
    labels: tuple[str, ...] = ()
    """For a classifier: the names of its classes. Empty if the classifier outputs a score, which is
    one number."""

    @property
    def num_outputs(self) -> int:
        """Number of outputs of a classifier for each record."""
        return max(1, len(self.labels))
