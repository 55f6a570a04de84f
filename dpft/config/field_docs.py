"""What each key of the configuration is for: the text below its field in the source."""

import re

from dpft.config.keys import configuration_fields
from dpft.records.field_texts import texts_of

_END = re.compile(r"(?<!\bal)(?<!\be\.g)\.(?=\s|$)")
"""The end of a sentence, which "et al." is not."""


def field_texts(cls: type) -> dict[str, str]:
    """Returns the text on every field of a dataclass that a configuration may set, on one line.

    A field that a subclass gives another default keeps the text of its base; one without any text
    has an empty one.
    """
    texts = texts_of(cls)
    return {entry.name: texts.get(entry.name, "") for entry in configuration_fields(cls)}


def field_sentences(cls: type) -> dict[str, str]:
    """Returns the first sentence of each text of ``field_texts``."""
    return {name: first_sentence(text) for name, text in field_texts(cls).items()}


def first_sentence(text: str) -> str:
    """Returns a text as far as its first full stop, on one line.

    >>> first_sentence("Also biases (Bu et al. 2022).  As they are.")
    'Also biases (Bu et al. 2022).'
    """
    line = " ".join(text.split())
    end = _END.search(line)
    return line if end is None else line[: end.end()]
