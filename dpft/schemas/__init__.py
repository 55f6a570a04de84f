"""JSON Schemas (draft 2020-12) of the files that dpft writes, and of what ``output=json`` prints.

They lie here, beside this file, as ``NAME.schema.json``, and are shipped in the wheel. Each stands
by itself: no schema refers to another file. They are strict, so that a reader that validates a file
knows every key that it can hold; a key that a later dpft adds comes with a schema that has it.

    import json
    import jsonschema
    from dpft.schemas import schema

    jsonschema.validate(json.load(open("outputs/RUN/privacy.json")), schema("privacy"))

A file with a line for each entry has the schema of one line: ``ledger_line``, ``predictions_line``.
The privacy.json of ``dpft tokenizer`` has another form, ``tokenizer_privacy``; it alone has the key
``mechanism``.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from dpft.errors import InputError

SUFFIX = ".schema.json"


def names() -> tuple[str, ...]:
    """Returns the names of all schemas, sorted."""
    return tuple(sorted(path.name.removesuffix(SUFFIX) for path in _FOLDER.glob(f"*{SUFFIX}")))


def path_of(name: str) -> Path:
    """Returns the file of a schema.

    Args:
        name: One of ``names()``.

    Raises:
        InputError: There is no such schema.
    """
    if name not in names():
        raise InputError(f"schema must be one of {', '.join(names())}, got {name!r}.")
    return _FOLDER / f"{name}{SUFFIX}"


def schema(name: str) -> dict[str, Any]:
    """Returns a schema.

    Args:
        name: One of ``names()``.

    Raises:
        InputError: There is no such schema.
    """
    return dict(_read(path_of(name)))


_FOLDER = Path(__file__).parent


@cache
def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
