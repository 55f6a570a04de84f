"""Translation of pydantic's validation errors into messages that name the key and a fix."""

import difflib
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from dpft.config.keys import quoted, unknown_key
from dpft.config.section import section_class
from dpft.errors import Fault, InputError
from dpft.strict_model import members, type_text

BOUNDS = {
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "above {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "below {lt:g}",
    "too_short": "a list of at least {min_length}",
    "multiple_of": "a multiple of {multiple_of}",
    "finite_number": "a finite number",
}
"""Types of pydantic errors, and descriptions of the valid values."""


def faults_of(
    error: ValidationError, kind: type[BaseModel], values: Any, known_keys: Iterable[str] = ()
) -> Iterator[Fault]:
    """Yield a fault for each key that pydantic rejects, with a fix.

    Args:
        error: The error that the validation of ``values`` raised.
        kind: The model class.
        values: The rejected values, as plain dicts and lists.
        known_keys: Dotted keys to suggest for an unknown key.
    """
    rejected = set()
    for entry in error.errors(include_url=False):
        if entry["type"] == "value_error":  # raised by a check of the model
            cause = entry["ctx"]["error"]
            yield from (
                cause.faults if isinstance(cause, InputError) else [Fault(str(cause), key=None)]
            )
            continue
        path = _path(entry, values)
        key = ".".join(path).replace(".[", "[")
        if key not in rejected:  # pydantic lists an error for each type of a union
            rejected.add(key)
            yield _fault(entry, key, field_at(kind, path, values), known_keys)


def _fault(
    entry: ErrorDetails, key: str, field: FieldInfo | None, known_keys: Iterable[str]
) -> Fault:
    value, context = entry["input"], entry.get("ctx", {})
    if entry["type"] == "not_chosen":
        message = f"{key} is not chosen. If a YAML file sets it, add the line `name: NAME`."
        return Fault(message, key=key, hint=f"{key}=NAME")
    if entry["type"] == "extra_forbidden":
        return unknown_key(key, known_keys, value=value)
    example = _example(field, value)
    hint = None if example is None else shlex.quote(f"{key}={example}")
    if entry["type"] == "missing":
        return Fault(f"Missing required key {key}.", key=key, hint=hint)
    expected = BOUNDS.get(entry["type"], "").format(**context)
    expected = expected or (
        "valid" if field is None else type_text(field.annotation, field.metadata)
    )
    advice = ""
    if isinstance(value, bool | None) and field is not None and str in members(field.annotation):
        hint = shlex.quote(f"{key}={quoted(json.dumps(value), DOUBLE_QUOTE)}")
        advice = " To set a text, quote it."
    got = "a group of keys" if isinstance(value, Mapping) else json.dumps(value)
    if len(got) > LONGEST:
        got = f"{got[:LONGEST]}…"
    message = f"{key} must be {expected}, got {got}.{advice}"
    return Fault(message, key=key, value=value, hint=hint)


DOUBLE_QUOTE = '"'
LONGEST = 60
"""Number of characters of a rejected value that a message shows."""


def _example(field: FieldInfo | None, value: Any) -> str | None:
    """Return a valid value: the option with the most similar name, an example, or the default."""
    if field is None:
        return None
    choices = [
        c
        for member in members(field.annotation)
        for c in getattr(member, "__args__", ())
        if isinstance(c, str)
    ]
    near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.7)
    default = field.get_default(call_default_factory=False)
    if near or field.examples or default is PydanticUndefined:
        return str([*near, *(field.examples or ()), *choices, "VALUE"][0])
    if isinstance(default, str):
        return default
    return json.dumps(default).replace(" ", "").replace('"', "")


def _path(entry: ErrorDetails, values: Any) -> list[str]:
    """Return the keys and indices of an error, without pydantic's names of union types."""
    path: list[str] = []
    for part in entry["loc"]:
        if isinstance(values, Mapping) and part in values:
            values = values[part]
            path.append(str(part))
        elif isinstance(values, Sequence) and isinstance(part, int):
            values = values[part]
            path.append(f"[{part}]")
    return [*path, str(entry["loc"][-1])] if entry["type"] == "missing" else path


def field_at(kind: type[BaseModel] | None, path: Sequence[str], values: Any) -> FieldInfo | None:
    """Return the field at a path of keys, or None if the path leads into a list or mapping."""
    field = None
    for part in path:
        fields = (
            {} if kind is None else {f.alias or name: f for name, f in kind.model_fields.items()}
        )
        field = fields.get(part)
        values = values.get(part) if isinstance(values, Mapping) else None
        kind = None if field is None else section_class(field, values)
    return field
