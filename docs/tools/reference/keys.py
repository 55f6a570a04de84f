"""The keys of commands and groups: defaults, types and descriptions, as in ``--help``."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from docs.tools.reference.markup import anchored, code, prose, short, table
from dpft.cli.commands import subcommand
from dpft.config.help_text import ComposedCommand, Key, composed_command, written
from dpft.config.keys import MISSING
from dpft.config.load import config_directory

OWNERS = {"audit": "audit", "tuning": "tune", "model": "eval", "task": "eval"}
"""The command with which a group is composed, if that is not ``dpft train``: a command that has the
group, or the fastest one for a group with many options."""
BY_OPTION = "by option"
HEADINGS = ("Key", "Default", "Type", "Description")


@dataclass(frozen=True, kw_only=True)
class DocumentedKey:
    """A key as a page shows it."""

    name: str
    default: str
    """As a command line writes it, or ``BY_OPTION``."""
    takes: str
    text: str
    options: tuple[str, ...] = ()
    """The options of its group that have it; empty if all do."""

    @property
    def section(self) -> str:
        """The first part of the name; empty for a key of the command itself."""
        return self.name.rpartition(".")[0].partition(".")[0]


@cache
def composed(name: str, *overrides: str) -> ComposedCommand:
    """Return a command as its defaults and overrides compose it."""
    return composed_command(name, overrides, subcommand(name).config, folders=[config_directory()])


@cache
def keys_of_command(name: str) -> tuple[DocumentedKey, ...]:
    """Return the keys of a command with the default options."""
    keys = composed(name).keys()
    return tuple(
        DocumentedKey(name=key.name, default=value_text(key), takes=key.takes, text=key.text)
        for key in keys
    )


def options_of(group: str) -> list[str]:
    """Return the options of a group of conf/."""
    return sorted(path.stem for path in (config_directory() / group).glob("*.yaml"))


@cache
def option_keys(group: str) -> dict[str, dict[str, Key]]:
    """Return the keys of each option of a group, by option and name."""
    keys = {
        option: composed(OWNERS.get(group, "train"), f"{group}={option}").keys()
        for option in options_of(group)
    }
    return {
        option: {key.name: key for key in found if key.name.startswith(f"{group}.")}
        for option, found in keys.items()
    }


@cache
def keys_of_group(group: str) -> tuple[DocumentedKey, ...]:
    """Return the keys of all options of a group, those of every option first.

    A key that has different descriptions or types in different options occurs once for each.
    """
    variants: dict[str, dict[tuple[str, str], dict[str, str]]] = {}
    for option, keys in option_keys(group).items():
        for key in keys.values():
            variant = variants.setdefault(key.name, {}).setdefault((key.takes, key.text), {})
            variant[option] = value_text(key)
    number = len(options_of(group))
    ordered = sorted(variants, key=lambda name: sum(map(len, variants[name].values())) < number)
    return tuple(
        DocumentedKey(
            name=name,
            default=_usual(list(values.values())),
            takes=takes,
            text=text,
            options=() if len(values) == number else tuple(values),
        )
        for name in ordered
        for (takes, text), values in variants[name].items()
    )


def changes(group: str, option: str) -> list[str]:
    """Return the values of an option that the table of the group's keys does not have."""
    values = {key.name: value_text(key) for key in option_keys(group)[option].values()}
    return [
        f"{key.name.removeprefix(f'{group}.')}={values[key.name]}"
        for key in keys_of_group(group)
        if option in (key.options or (option,)) and key.default != values[key.name]
    ]


def value_text(key: Key) -> str:
    """Return the value of a key as a command line writes it."""
    return "required" if key.value == MISSING else written(key.value)


def _usual(values: list[str]) -> str:
    value, times = Counter(values).most_common(1)[0]
    return value if times * 2 > len(values) else BY_OPTION


def key_table(keys: Iterable[DocumentedKey], anchor: str = "") -> str:
    """Return a table of keys.

    Args:
        keys: The keys.
        anchor: What the anchor of each key begins with.
    """
    seen: set[str] = set()
    rows = []
    for key in keys:
        name = code(key.name) if key.name in seen else anchored(f"{anchor}{key.name}", key.name)
        seen.add(key.name)
        default = key.default if key.default in (BY_OPTION, "required") else short(key.default)
        rows.append((name, default, code(key.takes), f"{prose(key.text)}{_condition(key)}"))
    return table(HEADINGS, rows)


def _condition(key: DocumentedKey) -> str:
    """Return for which options a key exists, unless all have it."""
    if not key.options:
        return ""
    others = [option for option in options_of(key.section) if option not in key.options]
    word, options = ("Not", others) if len(others) < len(key.options) else ("Only", key.options)
    return f" *{word} with {', '.join(code(f'{key.section}={option}') for option in options)}.*"
