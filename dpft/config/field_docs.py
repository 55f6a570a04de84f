"""What each field of a dataclass is for, read from the text that stands below it in the source."""

import ast
import functools
import inspect
import re
from pathlib import Path

from dpft.config.keys import configuration_fields

_END = re.compile(r"(?<!\bal)(?<!\be\.g)\.(?=\s|$)")
"""The end of a sentence, which "et al." is not."""


def field_texts(cls: type) -> dict[str, str]:
    """Returns the text on every field of a dataclass that a configuration may set, on one line.

    A field that a subclass gives another default keeps the text of its base; one without any text
    has an empty one.
    """
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base is not object:
            texts |= _texts_of(base)
    return {
        entry.name: " ".join(texts.get(entry.name, "").split())
        for entry in configuration_fields(cls)
    }


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


def _texts_of(cls: type) -> dict[str, str]:
    """Returns the texts below the fields that a class itself declares."""
    found = _classes(inspect.getsourcefile(cls) or "").get(cls.__qualname__)
    if found is None:
        return {}
    return {
        field.target.id: text.value.value
        for field, text in zip(found.body, found.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


@functools.cache
def _classes(file: str) -> dict[str, ast.ClassDef]:
    """Returns the classes of a source file, by name."""
    source = Path(file).read_text(encoding="utf-8")
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
