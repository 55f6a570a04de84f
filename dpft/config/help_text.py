"""Text of ``dpft COMMAND --help``: groups, keys, values and descriptions.

The configuration classes define the type of each key. The docstring below a field describes the
key. The YAML files contain the default values.
"""

import json
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf
from pydantic import BaseModel

from dpft.config.hydra_compose import compose
from dpft.config.keys import MISSING, join_key, key_of, nearest, quoted
from dpft.config.section import Section, section_class
from dpft.errors import Fault, InputError
from dpft.strict_model import description, type_text

_END = re.compile(r"(?<!\bal)(?<!\be\.g)\.(?=\s|$)")
"""The end of a sentence; the periods of "et al." and "e.g." do not end a sentence."""


def first_sentence(text: str) -> str:
    """Return a text up to its first full stop, on one line.

    >>> first_sentence("Also biases (Bu et al. 2022).  As they are.")
    'Also biases (Bu et al. 2022).'
    """
    line = " ".join(text.split())
    end = _END.search(line)
    return line if end is None else line[: end.end()]


@dataclass(frozen=True, kw_only=True)
class Key:
    """Key that a command line may set."""

    name: str
    """Dotted name."""
    value: Any
    """Value in the composed configuration."""
    takes: str
    """Accepted values, such as "a number or null"."""
    text: str
    """Whole description from the class."""

    @property
    def sentence(self) -> str:
        """The first sentence of the description."""
        return first_sentence(self.text)


def keys_of(root: type[BaseModel], values: Mapping[str, Any], *, parent: str = "") -> Iterator[Key]:
    """Yield the keys that have a value, in the order of the fields.

    Args:
        root: The class of the configuration, or of the section under ``parent``.
        values: The composed values of the section.
        parent: Dotted key of the section.
    """
    for attribute, field in root.model_fields.items():
        name = field.alias or attribute
        key, value = join_key(parent, name), values.get(name)
        section = section_class(field, value)
        if section is None or not isinstance(value, Mapping):
            text = description(root, attribute)
            yield Key(
                name=key, value=value, takes=type_text(field.annotation, field.metadata), text=text
            )
        else:
            yield from keys_of(section, value, parent=key)


def options(folders: list[Path], group: str) -> dict[str, str]:
    """Return the options of a group, each with its description."""
    files = [file for folder in folders for file in (folder / group).glob("*.yaml")]
    return {file.stem: purpose(file) for file in sorted(files, key=lambda file: file.stem)}


COLUMN = 34
"""Width of the left column, in characters."""
MANY = 16
"""A group with at least this many options lists only their names, without descriptions."""
LONGEST_VALUE = 40
ALL = "all"
"""Argument of ``--help`` that explains every group and every key."""
FLAGS = (
    ("--help SECTION", "options and keys of one section; --help GROUP=OPTION: of that option"),
    ("--help KEY", "description of one key; --help all: of every key"),
    ("--cfg job", "print the composed configuration and stop"),
    ("--multirun", "run once for every combination of comma-separated values"),
    ("--config-dir DIR", "look for configuration files in DIR too"),
    ("--shell-completion install=bash", "print a script for tab completion in bash"),
    ("--hydra-help", "more about these flags"),
)


@dataclass(frozen=True, kw_only=True)
class ComposedCommand:
    """Composed configuration of a command."""

    name: str
    root: type[Section]
    """Class of the configuration."""
    values: Mapping[str, Any]
    """Values of the configuration."""
    choices: Mapping[str, str | None]
    """Name of each group, and its chosen option."""
    folders: Sequence[Path]
    """Folders that contain the YAML files."""

    def keys(self) -> list[Key]:
        """Return the command's keys, except for keys that ``GROUP=OPTION`` sets."""
        chosen = {f"{group}.name" for group in self.choices}
        all_keys = keys_of(self.root, self.values)
        return [key for key in all_keys if key.name not in chosen]


def command_help(
    name: str,
    words: Sequence[str],
    root: type[Section],
    *,
    folders: Sequence[Path],
) -> str:
    """Return the text that ``dpft NAME --help WORDS`` prints.

    Args:
        name: The name of the command.
        words: Overrides (``key=value``, ``group=option``) to compose, and names to explain. Without
            names, the help explains the groups whose option the overrides choose.
        root: The class of the command's configuration.
        folders: Folders that contain YAML files, dpft's own folder first.
    """
    changes = [word for word in words if "=" in word or word[:1] in "~+"]
    names = [word for word in words if word not in changes]
    command = composed_command(name, changes, root, folders=folders)
    return help_text(
        command, names or [key for key in map(key_of, changes) if key in command.choices]
    )


def composed_command(
    name: str,
    changes: Sequence[str],
    root: type[Section],
    *,
    folders: Sequence[Path],
) -> ComposedCommand:
    """Return a command with the configuration that the overrides compose."""
    searched = ",".join(quoted(f"file://{folder}") for folder in folders[1:])
    composed = compose(name, [*changes, f"hydra.searchpath=[{searched}]"], root)
    choices = composed.hydra.runtime.choices
    groups = [group for group in reversed(list(choices)) if not group.startswith("hydra")]
    return ComposedCommand(
        name=name,
        root=root,
        values=cast(dict[str, Any], OmegaConf.to_container(composed.values, resolve=True)),
        choices={group: choices[group] for group in groups},
        folders=folders,
    )


def help_text(command: ComposedCommand, about: Sequence[str] = ()) -> str:
    """Return the help of a command.

    Args:
        command: The composed command.
        about: Groups, sections or keys to explain, or ``ALL``. If empty, the help explains the
            command's main keys, or all keys if there are no main keys.
    """
    keys = command.keys()
    if not about and command.root.main_keys:
        return "\n\n".join([_usage(command), _main_keys(command, keys), _table("Flags", FLAGS)])
    if not about or list(about) == [ALL]:
        groups = [_groups(command)] if command.choices else []
        return "\n\n".join([_usage(command), *groups, _keys(keys), _table("Flags", FLAGS)])
    parts = []
    for name in about:
        under = [key for key in keys if key.name == name or key.name.startswith(f"{name}.")]
        if name not in command.choices and not under:
            raise InputError(_unknown(name, command, keys))
        if name in command.choices:
            descriptions = options(list(command.folders), name)
            lines = _option_lines(name, descriptions, command.choices[name])
            parts.append("\n".join([f"Options of {name} (* marks the selected option):", *lines]))
        if under:
            parts.append(_keys(under))
    return "\n\n".join(parts)


def _usage(command: ComposedCommand) -> str:
    files = [folder / f"{command.name}.yaml" for folder in command.folders]
    purposes = [line for line in (purpose(file) for file in files if file.is_file()) if line]
    usage = f"usage: dpft {command.name} [GROUP=OPTION ...] [KEY=VALUE ...]"
    examples = [f"  dpft {command.name} {example}" for example in command.root.command_examples]
    return "\n".join(
        [usage, "", *purposes[:1], *(["", "Examples:", *examples] if examples else [])]
    )


def _groups(command: ComposedCommand) -> str:
    """Return all groups with their options; a group with few options also has descriptions."""
    lines = ["Groups (choose with GROUP=OPTION; * marks the selected option):"]
    for group, chosen in command.choices.items():
        descriptions = options(list(command.folders), group)
        if len(descriptions) < MANY:
            lines += _option_lines(group, descriptions, chosen)
            continue
        names = ", ".join(f"{name}*" if name == chosen else name for name in descriptions)
        lines += _row(group, f"{names}; descriptions: dpft {command.name} --help {group}")
    return "\n".join(lines)


def _main_keys(command: ComposedCommand, keys: Sequence[Key]) -> str:
    """Return the lines for a command's main groups and keys, and the names of all sections."""
    key_by_name = {key.name: key for key in keys}
    lines = ["Main keys (change with KEY=VALUE):"]
    for name in command.root.main_keys:
        if name in key_by_name:
            lines += _key_row(key_by_name[name])
            continue
        descriptions = options(list(command.folders), name)
        choices = " | ".join(descriptions)
        if len(descriptions) >= MANY:
            choices = (
                f"one of {len(descriptions)}; list them with dpft {command.name} --help {name}"
            )
        lines += _row(f"{name}={command.choices[name]}", choices)
    sections = dict.fromkeys(key.name.partition(".")[0] for key in keys if "." in key.name)
    names = ", ".join(dict.fromkeys([*(g for g in command.choices if "@" not in g), *sections]))
    return "\n".join([*lines, "", "All groups and sections:", *_row("", names)])


def _option_lines(group: str, descriptions: Mapping[str, str], chosen: str | None) -> list[str]:
    return [
        line
        for name, what in descriptions.items()
        for line in _row(f"{group}={name}{'*' if name == chosen else ''}", what)
    ]


def _keys(keys: Sequence[Key]) -> str:
    lines = ["Configuration (change with KEY=VALUE):"]
    return "\n".join([*lines, *(line for key in keys for line in _key_row(key))])


def _key_row(key: Key) -> list[str]:
    sentence = key.sentence.replace("``", "").replace("None", "null")
    value = "VALUE" if key.value == MISSING else written(key.value)
    if len(value) > LONGEST_VALUE:
        value = f"{value[: LONGEST_VALUE - 1]}…"
    return _row(f"{key.name}={value}", f"{sentence} ({key.takes})".lstrip())


def _table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join([f"{title}:", *(line for row in rows for line in _row(*row))])


def _row(left: str, right: str) -> list[str]:
    """Return the lines of two columns, the right one wrapped to the width of the terminal."""
    width = max(shutil.get_terminal_size((100, 24)).columns - COLUMN - 4, 30)
    wrapped = textwrap.wrap(right, width, break_on_hyphens=False) or [""]
    first = [f"  {left}"] if len(left) > COLUMN else []
    lead = [""] if first else [left]
    padded = [*lead, *[""] * len(wrapped)]
    return first + [
        f"  {label:<{COLUMN}}  {line}".rstrip()
        for label, line in zip(padded, wrapped, strict=False)
    ]


def written(value: Any) -> str:
    """Return a value in the syntax of a command line."""
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{name}: {written(inner)}' for name, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, str) and value:
        return value.replace("\n", "\\n")
    return json.dumps(value)


def _unknown(name: str, command: ComposedCommand, keys: Sequence[Key]) -> Fault:
    sections = {key.name.partition(".")[0] for key in keys}
    near = nearest(name, {*command.choices, *sections, *(key.name for key in keys)})
    groups = ", ".join(group for group in command.choices if "@" not in group)
    return Fault(
        f"dpft {command.name} --help {name}: there is no such group or key."
        + ("" if near else f" Its groups are {groups}."),
        key=name,
        hint=near and f"dpft {command.name} --help {near}",
    )


def purpose(file: Path) -> str:
    """Return the description of a YAML file: its first comment, without an example command."""
    with file.open(encoding="utf-8") as stream:
        comments = [line[1:].strip() for line in stream if line.startswith("#")]
    first = next((line for line in comments if not line.startswith("@package")), "")
    for mark in (" Run: ", ": dpft "):
        first = first.partition(mark)[0]
    return first if first.endswith(".") or not first else f"{first}."
