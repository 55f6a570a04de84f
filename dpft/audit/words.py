"""Words of a text, and which text of a record an audit compares."""

import re

from dpft.tasks.records import Example

_WORD = re.compile(r"\w+|[^\w\s]")


def words_of(text: str) -> list[str]:
    """Returns the words of a text and its marks, each mark a word of its own.

    >>> words_of("The Eagle, a pub.")
    ['The', 'Eagle', ',', 'a', 'pub', '.']
    """
    return _WORD.findall(text)


def whole_text(record: Example) -> str:
    """Returns a record as the model reads it: prompt and target."""
    return record.prompt + record.target


def written_text(record: Example, *, prompted: bool) -> str:
    """Returns what of a record a model would write.

    Args:
        record: Of a task of texts.
        prompted: Whether the prompt was given to it, though it may have learned to write it.
    """
    return whole_text(record) if record.learns_prompt and not prompted else record.target
