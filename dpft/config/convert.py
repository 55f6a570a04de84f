"""Plain values to typed dataclasses, strictly: every refusal names the key, the value and the type.

OmegaConf's own structured configs know no classes chosen by name and turn texts into numbers and
booleans; a privacy parameter must be what its author wrote.
"""

import dataclasses
import math
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dpft.config.keys import MISSING, configuration_fields, join_key, key_name, unknown_key
from dpft.errors import InputError

ClassChoice = Callable[[Mapping[str, Any]], type]
"""From the values under a key, a ``name`` among them, to the dataclass they stand for."""


def by_name(choose: Callable[[str], type]) -> ClassChoice:
    """Returns the choice of a class by the ``name`` among its values alone."""
    return lambda values: choose(values["name"])


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What is known of the configuration beyond the types of its dataclasses."""

    polymorphic: Mapping[str, "ClassChoice"]
    """Dotted key to the function from the values under it to the dataclass they stand for."""
    known_keys: tuple[str, ...]
    """Every dotted key, to suggest the one a misspelt key was meant to be."""


def build(values: Mapping[str, Any], cls: type, *, key: str, schema: Schema) -> Any:
    """Returns an instance of a dataclass from a mapping of its fields.

    Args:
        values: Field name to plain value.
        cls: The dataclass, or the base of the dataclasses chosen by ``name``.
        key: Dotted key of ``values``; empty for the root.
        schema: Which keys hold a class chosen by name, and which keys there are.

    Raises:
        InputError: A key is unknown, a value is missing or of the wrong type, or the class refuses.
    """
    cls = _chosen_class(values, cls, key, schema)
    hints = get_type_hints(cls)
    fields = {key_name(entry): entry for entry in configuration_fields(cls)}
    _refuse_unknown(values, fields, key, schema)
    arguments = {}
    for name, entry in fields.items():
        inner = join_key(key, name)
        value = values.get(name, _NOT_GIVEN)
        if value is _NOT_GIVEN and _has_default(entry):
            continue
        if value is _NOT_GIVEN or value == MISSING:
            hint = describe(hints[entry.name])
            raise InputError(f"{inner} has no value; set {inner}=VALUE ({hint}).")
        arguments[entry.name] = convert(value, hints[entry.name], key=inner, schema=schema)
    return cls(**arguments)


def convert(value: Any, hint: Any, *, key: str, schema: Schema) -> Any:
    """Returns a plain value as the type hint wants it.

    Raises:
        InputError: The value is not of that type, or is a number that is not finite.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{key} must be a finite number, got {value}.")
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise InputError(f"{key} must be a number below 1.8e308, got a larger one.")
    for member in _members(hint):
        converted = _convert_member(value, member, key, schema)
        if converted is not _NOT_THIS:
            return converted
    raise InputError(f"{key} must be {describe(hint)}, got {value!r}.")


def describe(hint: Any) -> str:
    """Returns a type hint in words: ``a number or null``."""
    members = _members(hint)
    if len(members) > 1:
        null_last = sorted(members, key=lambda member: member is type(None))
        return " or ".join(describe(member) for member in null_last)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (list, tuple):
        return "a list, each entry " + describe((*arguments, Any)[0])
    if hint in _WORDS:
        return _WORDS[hint]
    return "a group of keys" if _is_mapping(hint) else str(hint)


class _Marker:
    """A value no configuration can hold."""


_NOT_GIVEN = _Marker()
_NOT_THIS = _Marker()
_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "null",
    Any: "any value",
}


def _convert_member(value: Any, hint: Any, key: str, schema: Schema) -> Any:
    """Returns the value as one type, or ``_NOT_THIS``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value if value in arguments else _NOT_THIS
    if origin in (list, tuple) and isinstance(value, list | tuple):
        entries = [
            convert(entry, (*arguments, Any)[0], key=f"{key}[{index}]", schema=schema)
            for index, entry in enumerate(value)
        ]
        return origin(entries)
    if isinstance(value, Mapping) and (_is_mapping(hint) or key in schema.polymorphic):
        return _convert_mapping(value, hint, key, schema)
    return _convert_scalar(value, hint)


def _convert_mapping(value: Mapping[str, Any], hint: Any, key: str, schema: Schema) -> Any:
    if dataclasses.is_dataclass(hint) or key in schema.polymorphic:
        return build(value, hint, key=key, schema=schema)
    entry_hint = (*get_args(hint), Any, Any)[1]
    return {
        str(name): convert(entry, entry_hint, key=join_key(key, name), schema=schema)
        for name, entry in value.items()
    }


def _convert_scalar(value: Any, hint: Any) -> Any:
    """Returns a scalar as the type; a whole number is also a number, and a number a text."""
    if hint is Any or type(value) is hint:
        return value
    if hint is float and type(value) is int:
        return float(value)
    # Hydra reads `task.data_dir=2024` as a number; the user meant a name.
    if hint is str and type(value) in (int, float):
        return str(value)
    return _NOT_THIS


def _members(hint: Any) -> tuple[Any, ...]:
    """Returns a union's members, numbers and texts last, so that the strictest one wins."""
    if get_origin(hint) not in (Union, types.UnionType):
        return (hint,)
    return tuple(sorted(get_args(hint), key=lambda one: (one is str, one is float)))


def _is_mapping(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint) or hint is dict or get_origin(hint) in (dict, Mapping)


def _chosen_class(values: Mapping[str, Any], cls: type, key: str, schema: Schema) -> type:
    if key not in schema.polymorphic:
        return cls
    name = values.get("name", MISSING)
    if name == MISSING or not isinstance(name, str):
        raise InputError(f"{key} is not chosen; set {key}=NAME.")
    return schema.polymorphic[key](values)


def _refuse_unknown(
    values: Mapping[str, Any], fields: Mapping[str, Any], key: str, schema: Schema
) -> None:
    for name in values:
        if name not in fields:
            allowed = {join_key(key, field) for field in fields}
            raise InputError(unknown_key(join_key(key, name), {*allowed, *schema.known_keys}))


def _has_default(entry: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return entry.default is not missing or entry.default_factory is not missing
