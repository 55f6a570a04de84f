"""Dotted configuration keys: which ones there are, and which one a misspelt key was meant to be."""

import dataclasses
import difflib
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_origin, get_type_hints

from dpft.config.other_names import MEANT
from dpft.kinds import PUBLISHED

MISSING = "???"
"""OmegaConf's mark of a value that must be given."""
RETIRED = {
    "privacy.secure_noise": "noise always comes from a cryptographic stream now; leave it out"
}
"""Keys of earlier versions: what to say of each; in a run's saved configuration it is ignored."""
ADDED = {"task.default_delta": PUBLISHED}
"""Keys that earlier versions had not: what a saved configuration without one stands for."""

WITNESS = "privacy.witness"
"""A key that no file of a run's folder may hold: it may name a program, and its arguments."""


KEYS_OF_THE_LIBRARY = {
    "clipping": "privacy.clipping",
    "compilation": "train.compile=true",
    "compilation=None": "train.compile=false",
    "engine": "privacy.engine",
    "groups": "privacy.groups",
    "loss_scale": "train.loss_scale",
    "max_grad_norm": "privacy.max_grad_norm",
    "memory_mb": "privacy.clipper_memory_mb",
    "b=1": "train.micro_batch_size=1",
    "fuse_head(model)": "a fused head (train.fused_head=false)",
    "dpft.models.batch_norm.replace_batch_norm(model)": "model.replace_batch_norm=true",
}
"""What a message of the clipper names in backticks, its own arguments and calls, and the
configuration keys that stand for it."""


def in_keys(message: str) -> str:
    """Returns a message of the library with configuration keys for the arguments that it names.

    >>> in_keys("`engine` must be one of auto, loop, got 'x'; choose `engine='loop'`.")
    "privacy.engine must be one of auto, loop, got 'x'; choose privacy.engine=loop."
    """

    def key(found: re.Match[str]) -> str:
        code = found[1]
        name, given, value = code.partition("=")
        if code in KEYS_OF_THE_LIBRARY or name not in KEYS_OF_THE_LIBRARY:
            return KEYS_OF_THE_LIBRARY.get(code, found[0])
        return KEYS_OF_THE_LIBRARY[name] + given + value.strip("'")

    return re.sub("`([^`]+)`", key, message)


class KeyFormatter(logging.Formatter):
    """Formats log lines of a command, which name configuration keys (``in_keys``)."""

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
        return in_keys(super().format(record))


def join_key(parent: str, name: object) -> str:
    """Returns the dotted key of ``name`` under ``parent``; the root's key is empty."""
    return f"{parent}.{name}" if parent else str(name)


def quoted(word: str) -> str:
    """Returns a word as a value of Hydra's grammar that means just that word."""
    # Hydra reads a backslash as itself but before a quote or at the value's end.
    return "'" + word.replace("'", "\\'") + "'"


def known_keys(root: type, *, parent: str = "") -> list[str]:
    """Returns the keys a dataclass type allows, those of nested dataclasses included."""
    hints = get_type_hints(root)
    keys = []
    for entry in configuration_fields(root):
        key = join_key(parent, key_name(entry))
        keys.append(key)
        nested = dataclass_in(hints[entry.name])
        if nested is not None:
            keys += known_keys(nested, parent=key)
    return keys


def plain(value: Any) -> Any:
    """Returns a value with dataclasses as dicts and tuples as lists, as YAML knows them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key_name(e): plain(getattr(value, e.name)) for e in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def copy_key(path: list[str], source: Mapping[str, Any], target: dict[str, Any]) -> None:
    """Copies the value at a key path from one configuration to another."""
    for name in path[:-1]:
        source, target = source[name], target[name]
    target[path[-1]] = source[path[-1]]


def key_of(word: str) -> str:
    """Returns the dotted key that a word of a command line, such as ``+key=value``, sets."""
    return word.lstrip("+~").partition("=")[0]


def key_name(entry: "dataclasses.Field[Any]") -> str:
    """Returns the key that sets a field: its name, or ``metadata["key"]`` where a method has that.

    ``task.prompt`` is a template, and ``Task.prompt`` makes a prompt of a row.
    """
    return str(entry.metadata.get("key", entry.name))


def configuration_fields(root: type) -> list["dataclasses.Field[Any]"]:
    """Returns the fields of a dataclass type that a configuration may set."""
    return [entry for entry in dataclasses.fields(root) if entry.init]


def dataclass_in(hint: Any) -> type | None:
    """Returns the dataclass whose keys stand under a field of that type hint; None: there is none.

    It is the hint itself, or the one dataclass in ``X | None``; a list's entries have no keys.
    """
    if get_origin(hint) in (list, tuple):
        return None
    candidates = (hint,) if isinstance(hint, type) else get_args(hint)
    found = [one for one in candidates if isinstance(one, type) and dataclasses.is_dataclass(one)]
    return found[0] if len(found) == 1 else None


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Returns the sentence that refuses a key and names the known keys nearest to it.

    Args:
        key: A dotted key that the configuration does not take.
        known: Every dotted key that it takes somewhere.
    """
    if key in RETIRED:
        return f"configuration key {key} is gone: {RETIRED[key]}."
    known = set(known)
    if key in known:
        return f"configuration key {key} is not part of this composition; set it as ++{key}=VALUE."
    near = nearest_keys(key, known)
    if near:
        return f"unknown configuration key {key}; did you mean {' or '.join(near)}?"
    parent = key.rpartition(".")[0]
    siblings = sorted(k for k in known if k.rpartition(".")[0] == parent)
    names = ", ".join(siblings or sorted(k for k in known if "." not in k))
    return f"unknown configuration key {key}; the known keys here are {names}."


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that is spelt most like ``name``; None where none is near."""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1)), None)


def nearest_keys(key: str, known: Iterable[str]) -> list[str]:
    """Returns the keys that a misspelt dotted key may have been meant to be, none if none is near.

    The first of these that there are: a key of the section that other programs call so
    (``train.lr``), those of the section that end with its name (``optimizer.decay``), a key
    elsewhere that other programs call so, keys elsewhere of the same name (``rank``), a key of the
    section spelt like it, keys elsewhere spelt like it.
    """
    known = sorted(known)
    parent, _, name = key.rpartition(".")
    meant = _meant(name, known)
    if meant and parent in ("", meant[0].rpartition(".")[0]):
        return meant
    last_names = {one: one.rpartition(".")[2] for one in known}
    siblings = {last_names[one]: one for one in known if one.rpartition(".")[0] == parent}
    same_name = [one for one in known if last_names[one] == name]
    spelt_alike = difflib.get_close_matches(name, sorted(set(last_names.values())), n=1, cutoff=0.8)
    return (
        [one for sibling, one in siblings.items() if sibling.endswith(f"_{name}")]
        or meant
        or difflib.get_close_matches(key, same_name, n=1, cutoff=0.8)
        or same_name
        or [siblings[one] for one in difflib.get_close_matches(name, sorted(siblings), n=1)]
        or [one for one in known if last_names[one] in spelt_alike]
    )


def _meant(name: str, known: Iterable[str]) -> list[str]:
    """Returns the key that other programs call so, as it is here or in a command's own root."""
    meant = MEANT.get(name, "")
    if meant.startswith("hydra."):
        return [meant]
    return [one for one in (meant, meant.rpartition(".")[2]) if one in known][:1]
