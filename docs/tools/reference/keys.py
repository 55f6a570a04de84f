"""Every key of every command, as ``dpft COMMAND --help`` finds them, with what each allows."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import yaml

from dpft.cli.commands import subcommand
from dpft.cli.main import SUBCOMMANDS
from dpft.config.help_text import ComposedCommand, Key, composed_command, written
from dpft.config.keys import MISSING
from dpft.config.load import config_directory
from dpft.config.section import ChosenBy

OWNERS = {"audit": "audit", "tuning": "tune"}
"""Commands with which the options of a group are composed, where it is not ``dpft train``."""


@dataclass(frozen=True, kw_only=True)
class DocumentedKey:
    """A key as a page shows it."""

    name: str
    default: str
    """As a command line writes it; of a key without one ``required``."""
    takes: str
    text: str
    """All that its class says of it."""
    options: tuple[str, ...] = ()
    """Options of its group that have it; empty: all of them."""
    varies: bool = False
    """Whether options of its group set it to different values."""

    @property
    def section(self) -> str:
        """The section that it is in; empty for a key of the command itself."""
        return self.name.rpartition(".")[0].partition(".")[0]


@functools.cache
def composed(name: str, words: tuple[str, ...] = ()) -> ComposedCommand:
    """Returns a command as words compose it.

    Args:
        name: Of the command.
        words: ``GROUP=OPTION``.
    """
    found = subcommand(name)
    return composed_command(name, words, found.config, folders=[config_directory()])


@functools.cache
def keys_of_command(name: str) -> tuple[DocumentedKey, ...]:
    """Returns every key that a command takes with any option, in the order of its fields.

    Args:
        name: Of the command.
    """
    default = composed(name)
    own = default.keys()
    found = [_documented(key) for key in own]
    for group, field in default.root.model_fields.items():
        if group in default.choices and any(isinstance(each, ChosenBy) for each in field.metadata):
            found = _with_options(group, found)
    places = [field.alias or field_name for field_name, field in default.root.model_fields.items()]
    return tuple(sorted(found, key=lambda key: places.index(key.name.partition(".")[0])))


@functools.cache
def keys_of_group(group: str) -> tuple[DocumentedKey, ...]:
    """Returns every key under a group, those of all its options."""
    keys = keys_of_command(OWNERS.get(group, "train"))
    return tuple(key for key in keys if key.section == group)


def options_of(group: str) -> list[str]:
    """Returns the options of a group of conf/."""
    return sorted(path.stem for path in (config_directory() / group).glob("*.yaml"))


def commands() -> Sequence[str]:
    """Returns the names of all commands, in the order of ``dpft --help``."""
    return tuple(SUBCOMMANDS)


def _with_options(group: str, found: list[DocumentedKey]) -> list[DocumentedKey]:
    """Returns keys with those that only some options of a group have, behind the group's own."""
    own = {key.name: key for key in found if key.section == group}
    of_options = _keys_of_options(group)
    everyone = len(options_of(group))
    merged = [
        replace(own.get(name, key), options=() if len(having) == everyone else having)
        for name, (key, having) in of_options.items()
    ]
    merged.sort(key=lambda key: (key.name not in own, bool(key.options)))
    start = next((place for place, key in enumerate(found) if key.name in own), 0)
    rest = [key for key in found if key.name not in of_options]
    return [*rest[:start], *merged, *rest[start:]]


@functools.cache
def _keys_of_options(group: str) -> dict[str, tuple[DocumentedKey, tuple[str, ...]]]:
    """Returns each key under a group as the first option has it, and the options that do."""
    name = OWNERS.get(group, "train")
    found: dict[str, tuple[DocumentedKey, tuple[str, ...]]] = {}
    for option in options_of(group):
        words = (f"{group}={option}",)
        keys = composed(name, words).keys()
        for key in keys:
            if not key.name.startswith(f"{group}."):
                continue
            first, having = found.get(key.name, (None, ()))
            found[key.name] = first or _documented(key), (*having, option)
    return found


def _documented(key: Key) -> DocumentedKey:
    return DocumentedKey(
        name=key.name,
        default="required" if key.value == MISSING else written(key.value),
        takes=key.takes,
        text=key.text,
        varies=varies(key.name),
    )


def varies(key: str) -> bool:
    """Returns whether the options of a key's group set it to different values."""
    group, _, name = key.partition(".")
    return len({str(values[name]) for values in _settings(group) if name in values}) > 1


@functools.cache
def _settings(group: str) -> list[dict[str, object]]:
    """Returns what each option of a group sets; none of what is no group."""
    files = (config_directory() / group).glob("*.yaml")
    return [yaml.safe_load(file.read_text(encoding="utf-8")) or {} for file in files]
