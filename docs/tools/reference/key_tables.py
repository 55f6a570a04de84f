"""Tables of keys: what each is for, what it takes, and its default."""

import re
from collections.abc import Iterable, Sequence

from docs.tools.reference.keys import DocumentedKey, options_of
from docs.tools.reference.markup import code, prose, table

LONGEST_DEFAULT = 60
HEADINGS = ("Key", "Default", "Takes", "What it is for")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
"""What a choice is, where a refusal names them all."""


def key_table(keys: Iterable[DocumentedKey], group: str = "") -> str:
    """Returns the table of some keys.

    Args:
        keys: They.
        group: The group whose options they may be of.
    """
    return table(HEADINGS, [_row(key, group) for key in keys])


def takes(key: DocumentedKey) -> str:
    """Returns what a key takes: its choices, else its type with its range."""
    if key.takes.startswith("<class"):
        return f"an option of {code(key.name)}"
    choices = re.split(", | or ", key.allowed.removeprefix("one of "))
    if len(choices) > 1 and all(map(_NAME.fullmatch, choices)):
        null = [" or `null`"] if key.takes.endswith("or null") else []
        return "".join([", ".join(map(code, choices)), *null])
    kind = re.sub(r"a list, each entry (?:an? )?([a-z ]+?)(?= or |$)", r"a list of \1s", key.takes)
    kind = kind.replace("list of group of keyss", "list of groups of keys")
    kind = re.sub(r"\b(null|true|false|auto)\b", r"`\1`", kind)
    return f"{kind}; {prose(key.allowed)}" if key.allowed else kind


def _row(key: DocumentedKey, group: str) -> Sequence[str]:
    anchor = f'<span id="{key.name}"></span>'
    only = f" *{_only(key, group)}*" if key.options else ""
    return (f"{anchor}{code(key.name)}", _default(key), takes(key), prose(key.text) + only)


def _only(key: DocumentedKey, group: str) -> str:
    lacking = [option for option in options_of(group) if option not in key.options]
    if len(lacking) < len(key.options):
        return f"Not with {', '.join(code(f'{group}={option}') for option in lacking)}."
    return f"With {', '.join(code(f'{group}={option}') for option in key.options)}."


def _default(key: DocumentedKey) -> str:
    if key.default == "required":
        return "must be given"
    if key.varies:
        return "by option"
    if key.default == '""':
        return "empty"
    shown = key.default
    return code(shown if len(shown) <= LONGEST_DEFAULT else f"{shown[: LONGEST_DEFAULT - 1]}…")
