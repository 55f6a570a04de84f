"""Dotted configuration keys: which ones there are, and which one a misspelt key was meant to be."""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_type_hints

MISSING = "???"
"""OmegaConf's mark of a value that must be given."""


def join_key(parent: str, name: object) -> str:
    """Returns the dotted key of ``name`` under ``parent``; the root's key is empty."""
    return f"{parent}.{name}" if parent else str(name)


def known_keys(root: type, *, parent: str = "") -> list[str]:
    """Returns the keys a dataclass type allows, those of nested dataclasses included."""
    hints = get_type_hints(root)
    keys = []
    for entry in configuration_fields(root):
        key = join_key(parent, entry.name)
        keys.append(key)
        nested = dataclass_in(hints[entry.name])
        if nested is not None:
            keys += known_keys(nested, parent=key)
    return keys


def plain(value: Any) -> Any:
    """Returns a value with dataclasses as dicts and tuples as lists, as YAML knows them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def configuration_fields(root: type) -> list["dataclasses.Field[Any]"]:
    """Returns the fields of a dataclass type that a configuration may set."""
    return [entry for entry in dataclasses.fields(root) if entry.init]


def dataclass_in(hint: Any) -> type | None:
    """Returns the dataclass a type hint is, or the one inside ``X | None``."""
    members = [hint, *get_args(hint)] if not isinstance(hint, type) else [hint]
    found = [one for one in members if isinstance(one, type) and dataclasses.is_dataclass(one)]
    return found[0] if len(found) == 1 else None


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Returns the sentence that refuses a key and names the nearest known one."""
    known = set(known)
    if key in known:
        return f"configuration key {key} is not part of this composition; set it as ++{key}=VALUE."
    near = nearest(key, known)
    if near is not None:
        return f"unknown configuration key {key}; did you mean {near}?"
    parent = key.rpartition(".")[0]
    siblings = sorted(k for k in known if k.rpartition(".")[0] == parent)
    names = ", ".join(siblings or sorted(k for k in known if "." not in k))
    return f"unknown configuration key {key}; the known keys here are {names}."


def nearest(key: str, known: Iterable[str]) -> str | None:
    """Returns the known key nearest to ``key``: one of the same name, else a sibling, else any."""
    known = sorted(known)
    parent, _, name = key.rpartition(".")
    same_name = [k for k in known if k.rpartition(".")[2] == name]
    siblings = {k.rpartition(".")[2]: k for k in known if k.rpartition(".")[0] == parent}
    close = [siblings[one] for one in difflib.get_close_matches(name, siblings, n=1)]
    return next(iter(same_name or close or difflib.get_close_matches(key, known, n=1)), None)
