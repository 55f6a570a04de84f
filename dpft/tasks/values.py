"""Checks of what an untyped column holds: texts, and lists of texts or of objects.

Rows are private: a refusal says what is expected and in which column, never what stands there.
"""

from collections.abc import Mapping
from typing import Any

from dpft.errors import InputError


def text_of(value: Any, what: str) -> str:
    """Returns a value that is a text.

    Args:
        value: From a row.
        what: The value in words, for messages.

    Raises:
        InputError: It is none, or holds what no one can encode (a lone surrogate of JSON).
    """
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            pass
        else:
            return value
    raise InputError(f"{what} must be text (a string of valid Unicode).")


def texts_of(value: Any, what: str) -> tuple[str, ...]:
    """Returns the texts of a list.

    Raises:
        InputError: It is no list, or one of its values is no text.
    """
    return tuple(text_of(each, f"each value of {what}") for each in list_of(value, what, "texts"))


def objects_of(value: Any, what: str) -> tuple[Mapping[str, Any], ...]:
    """Returns the objects of a list.

    Raises:
        InputError: It is no list, or one of its values is no object.
    """
    values = list_of(value, what, "objects")
    if not all(isinstance(each, Mapping) for each in values):
        raise InputError(f"{what} must be a list of objects.")
    return tuple(values)


def list_of(value: Any, what: str, values: str) -> list[Any]:
    """Returns a value that is a list.

    Args:
        value: From a row.
        what: The value in words, for messages.
        values: What it should hold, in words.

    Raises:
        InputError: It is none.
    """
    if not isinstance(value, list):
        raise InputError(f"{what} must be a list of {values}; a .csv file cannot hold one.")
    return value


def spelled(value: Any) -> str | None:
    """Returns a label as ``task.labels`` would spell it; None for what is no label.

    >>> [spelled(value) for value in (" spam ", 3, 3.0, 0.5, True, None)]
    ['spam', '3', '3', '0.5', 'true', None]
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip() if isinstance(value, str | int | float) else None
