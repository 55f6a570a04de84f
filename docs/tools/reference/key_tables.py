"""Tables of keys: what each is for, what it takes, and its default."""

from collections.abc import Iterable, Sequence

from docs.tools.reference.keys import DocumentedKey, options_of
from docs.tools.reference.markup import code, prose, table

LONGEST_DEFAULT = 60
HEADINGS = ("Key", "Default", "Takes", "What it is for")


def key_table(keys: Iterable[DocumentedKey], group: str = "") -> str:
    """Returns the table of some keys.

    Args:
        keys: They.
        group: The group whose options they may be of.
    """
    return table(HEADINGS, [_row(key, group) for key in keys])


def takes(key: DocumentedKey) -> str:
    """Returns the type of a key with its range, or its choices."""
    return code(key.takes)


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
