"""``dpft COMMAND --help``: the groups and keys of a command, with what each takes and is for.

The dataclasses say what a key takes and, in the text below a field in their source, what it is for;
the YAMLs say what it is where nobody says otherwise.
"""

import json
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_type_hints

from omegaconf import OmegaConf

from dpft.config.composing import compose, purpose
from dpft.config.keys import (
    MISSING,
    configuration_fields,
    dataclass_in,
    join_key,
    key_name,
    key_of,
    nearest,
    quoted,
)
from dpft.config.load import ClassChoice, describe
from dpft.errors import InputError
from dpft.records.form import texts_of

_END = re.compile(r"(?<!\bal)(?<!\be\.g)\.(?=\s|$)")
"""The end of a sentence, which "et al." is not."""


def field_texts(cls: type) -> dict[str, str]:
    """Returns the text on every field of a dataclass that a configuration may set, on one line.

    A field that a subclass gives another default keeps the text of its base; one without any text
    has an empty one.
    """
    texts = texts_of(cls)
    return {entry.name: texts.get(entry.name, "") for entry in configuration_fields(cls)}


def first_sentence(text: str) -> str:
    """Returns a text as far as its first full stop, on one line.

    >>> first_sentence("Also biases (Bu et al. 2022).  As they are.")
    'Also biases (Bu et al. 2022).'
    """
    line = " ".join(text.split())
    end = _END.search(line)
    return line if end is None else line[: end.end()]


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key that a command line may set."""

    name: str
    """Dotted."""
    value: Any
    """What it is as composed."""
    takes: str
    """What it may be, such as "a number or null"."""
    text: str
    """What it is for: all that its dataclass says of it."""

    @property
    def sentence(self) -> str:
        """What it is for, in one sentence."""
        return first_sentence(self.text)


def keys_of(
    root: type,
    values: Mapping[str, Any],
    polymorphic: Mapping[str, ClassChoice],
    *,
    parent: str = "",
) -> Iterator[Key]:
    """Yields the keys that hold a value, in the order of the dataclasses' fields.

    Args:
        root: The dataclass of the configuration, or of the section under ``parent``.
        values: The section as composed.
        polymorphic: As for ``dpft.config.load.load``.
        parent: Dotted key of the section.
    """
    hints, texts = get_type_hints(root), field_texts(root)
    for entry in configuration_fields(root):
        key, hint = join_key(parent, key_name(entry)), hints[entry.name]
        value = values.get(key_name(entry))
        nested = dataclass_in(hint)
        if nested is None or not isinstance(value, Mapping):
            yield Key(name=key, value=value, takes=describe(hint), text=texts[entry.name])
            continue
        if key in polymorphic:
            nested = polymorphic[key](value)
        yield from keys_of(nested, value, polymorphic, parent=key)


def options(folders: list[Path], group: str) -> dict[str, str]:
    """Returns the options of a group and what each is for."""
    files = [file for folder in folders for file in (folder / group).glob("*.yaml")]
    return {file.stem: purpose(file) for file in sorted(files, key=lambda file: file.stem)}


COLUMN = 34
"""Width of the left column."""
MANY = 16
"""Options from which a group's are named alone, not explained."""
LONGEST_VALUE = 40
TWO_SCREENS = 100
"""Lines beyond which the help of a command names the keys of its sections alone."""
ALL = "all"
"""What ``--help all`` explains: every group and every key."""
FLAGS = (
    ("--help SECTION", "options and keys of one section; --help GROUP=OPTION: of that option"),
    ("--help KEY", "what one key is for; --help all: every key"),
    ("--cfg job", "print the composed configuration and stop"),
    ("--multirun", "run once for every combination of comma-separated values"),
    ("--config-dir DIR", "look for configuration files in DIR too"),
    ("--shell-completion install=bash", "print what completes keys and options in bash"),
    ("--hydra-help", "more about these flags"),
)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command as it is composed."""

    name: str
    root: type
    """The dataclass of its configuration."""
    values: Mapping[str, Any]
    """Its configuration."""
    polymorphic: Mapping[str, ClassChoice]
    """As for ``dpft.config.load.load``."""
    choices: Mapping[str, str | None]
    """Group to the option that is taken."""
    folders: Sequence[Path]
    """Where its YAMLs are looked for."""

    def keys(self) -> list[Key]:
        """Returns its keys, but for those that ``GROUP=OPTION`` sets."""
        chosen = {f"{group}.name" for group in self.choices}
        found = keys_of(self.root, self.values, self.polymorphic)
        return [key for key in found if key.name not in chosen]


def command_help(
    name: str,
    words: Sequence[str],
    root: type,
    polymorphic: Mapping[str, ClassChoice],
    *,
    folders: Sequence[Path],
) -> str:
    """Returns what ``dpft NAME --help WORDS`` prints.

    Args:
        name: The command's.
        words: ``key=value`` and ``group=option``, which are composed, and names to explain alone;
            without names, groups whose option is chosen are.
        root: The dataclass of the command's configuration.
        polymorphic: As for ``dpft.config.load.load``.
        folders: Where YAMLs are looked for, dpft's own first.
    """
    changes = [word for word in words if "=" in word or word[:1] in "~+"]
    names = [word for word in words if word not in changes]
    command = composed_command(name, changes, root, polymorphic, folders=folders)
    return help_text(
        command, names or [key for key in map(key_of, changes) if key in command.choices]
    )


def composed_command(
    name: str,
    changes: Sequence[str],
    root: type,
    polymorphic: Mapping[str, ClassChoice],
    *,
    folders: Sequence[Path],
) -> Command:
    """Returns a command as ``key=value`` and ``group=option`` compose it."""
    searched = ",".join(quoted(f"file://{folder}") for folder in folders[1:])
    composed = compose(name, [*changes, f"hydra.searchpath=[{searched}]"], root)
    choices = composed.hydra.runtime.choices
    own = [group for group in reversed(list(choices)) if not group.startswith("hydra")]
    return Command(
        name=name,
        root=root,
        values=cast(dict[str, Any], OmegaConf.to_container(composed.values, resolve=True)),
        polymorphic=polymorphic,
        choices={group: choices[group] for group in own},
        folders=folders,
    )


def help_text(command: Command, about: Sequence[str] = ()) -> str:
    """Returns the help of a command.

    Args:
        command: As composed.
        about: Groups, sections or keys to explain alone, or ``ALL``; none: all too, but where that
            is more than two screens, the keys' names alone.
    """
    keys = command.keys()
    if not about or list(about) == [ALL]:
        groups = [_groups(command)] if command.choices else []
        parts = [_usage(command), *groups, _keys(keys), _table("Flags", FLAGS)]
        text = "\n\n".join(parts)
        if about or text.count("\n") < TWO_SCREENS:
            return text
        parts = [_usage(command), _choices(command), _sections(command, keys)]
        return "\n\n".join([*parts, _table("Flags", FLAGS)])
    parts = []
    for name in about:
        under = [key for key in keys if key.name == name or key.name.startswith(f"{name}.")]
        if name not in command.choices and not under:
            raise InputError(_unknown(name, command, keys))
        if name in command.choices:
            parts.append(_options(command, name))
        if under:
            parts.append(_keys(under))
    return "\n\n".join(parts)


def _usage(command: Command) -> str:
    files = [folder / f"{command.name}.yaml" for folder in command.folders]
    purposes = [line for line in (purpose(file) for file in files if file.is_file()) if line]
    return "\n".join(
        [f"usage: dpft {command.name} [GROUP=OPTION ...] [KEY=VALUE ...]", "", *purposes[:1]]
    )


def _groups(command: Command) -> str:
    """Returns every group with its options, explained where they are few."""
    lines = ["Groups (choose with GROUP=OPTION; * is taken unless you say otherwise):"]
    for group, taken in command.choices.items():
        found = options(list(command.folders), group)
        if len(found) < MANY:
            lines += _option_lines(group, found, taken)
            continue
        names = ", ".join(f"{name}*" if name == taken else name for name in found)
        lines += _row(group, f"{names}; what each is: dpft {command.name} --help {group}")
    return "\n".join(lines)


def _choices(command: Command) -> str:
    """Returns every group with its options, by name alone; of many, with their number."""
    lines = ["Groups (choose with GROUP=OPTION; * is taken unless you say otherwise):"]
    for group, taken in command.choices.items():
        if "@" in group:  # What a recipe or a task puts into another group.
            continue
        found = options(list(command.folders), group)
        names = ", ".join(f"{name}*" if name == taken else name for name in found)
        many = f"{taken or 'none'}* of {len(found)}; all: dpft {command.name} --help {group}"
        lines += _row(group, names if len(found) < MANY else many)
    return "\n".join(lines)


def _sections(command: Command, keys: Sequence[Key]) -> str:
    """Returns the names of all keys, a section's together; those without one are explained."""
    under: dict[str, list[str]] = {}
    for key in keys:
        section, _, name = key.name.partition(".")
        if name:
            under.setdefault(section, []).append(name)
    # A group's choice stands among the groups.
    alone = (key for key in keys if "." not in key.name)
    of_their_own = [key for key in alone if key.name not in command.choices]
    lines = [
        "Sections (change with SECTION.KEY=VALUE; what each key is for, and its value:"
        f" dpft {command.name} --help SECTION):"
    ]
    for section, names in under.items():
        lines += _row(section, ", ".join(names))
    own = ["", _keys(of_their_own)] if of_their_own else []
    return "\n".join([*lines, *own])


def _options(command: Command, group: str) -> str:
    found = options(list(command.folders), group)
    lines = _option_lines(group, found, command.choices[group])
    return "\n".join([f"Options of {group} (* is taken):", *lines])


def _option_lines(group: str, found: Mapping[str, str], taken: str | None) -> list[str]:
    return [
        line
        for name, what in found.items()
        for line in _row(f"{group}={name}{'*' if name == taken else ''}", what)
    ]


def _keys(keys: Sequence[Key]) -> str:
    lines = ["Configuration (change with KEY=VALUE):"]
    for key in keys:
        sentence = key.sentence.replace("``", "").replace("None", "null")
        lines += _row(f"{key.name}={_shown(key.value)}", f"{sentence} ({key.takes})".lstrip())
    return "\n".join(lines)


def _table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join([f"{title}:", *(line for row in rows for line in _row(*row))])


def _row(left: str, right: str) -> list[str]:
    """Returns the lines of two columns, the right one wrapped to the terminal."""
    width = max(shutil.get_terminal_size((100, 24)).columns - COLUMN - 4, 30)
    wrapped = textwrap.wrap(right, width, break_on_hyphens=False) or [""]
    first = [f"  {left}"] if len(left) > COLUMN else []
    lead = [""] if first else [left]
    padded = [*lead, *[""] * len(wrapped)]
    return first + [
        f"  {label:<{COLUMN}}  {line}".rstrip()
        for label, line in zip(padded, wrapped, strict=False)
    ]


def _shown(value: Any) -> str:
    """Returns a value as a command line writes it, a long one cut short."""
    text = "VALUE" if value == MISSING else written(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def written(value: Any) -> str:
    """Returns a value as a command line writes it."""
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{name}: {written(inner)}' for name, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, str) and value:
        return value.replace("\n", "\\n")
    return json.dumps(value)


def _unknown(name: str, command: Command, keys: Sequence[Key]) -> str:
    sections = {key.name.partition(".")[0] for key in keys}
    near = nearest(name, {*command.choices, *sections, *(key.name for key in keys)})
    groups = ", ".join(group for group in command.choices if "@" not in group)
    hint = f"did you mean {near}?" if near else f"groups are {groups}."
    return f"dpft {command.name} --help {name}: there is no such group or key; {hint}"
