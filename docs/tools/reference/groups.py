"""A page for each group of conf/: its options, what each sets, and the keys of the group."""

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from docs.tools.reference.key_tables import key_table
from docs.tools.reference.keys import OWNERS, composed, keys_of_group, options_of, varies
from docs.tools.reference.markup import code, commands, head, prose
from docs.tools.reference.words import GROUPS
from dpft.config.help_text import purpose, written
from dpft.config.load import config_directory

NOT_GROUPS = ("hydra", "experiment")
"""Folders of conf/ that have pages of their own, or none."""
FOLLOWING = "train/task"
"""Settings of train that follow the task."""


def groups() -> list[str]:
    """Returns the groups that have a page."""
    folders = (path.name for path in config_directory().iterdir() if path.is_dir())
    return sorted(set(folders) - set(NOT_GROUPS))


def group_page(group: str) -> str:
    """Returns the page of a group."""
    command = OWNERS.get(group, "train")
    intro = GROUPS[group].strip()
    if command != "train":
        intro += f" Choose an option with `{group}=OPTION` of `dpft {command}`."
    taken = composed(command).choices.get(group)
    parts = [
        head(group, [f"conf/{group}/"], intro),
        f"The default is {code(f'{group}={taken}')}.\n",
        *_keys(group),
        "## What each option sets\n",
        *(_option(group, option) for option in options_of(group)),
    ]
    if group == FOLLOWING.partition("/")[0]:
        parts += _following()
    return "\n".join(parts)


def comments(file: Path) -> list[str]:
    """Returns the sentences at the top of a YAML that follow its first line, without commands."""
    lines = [line for line in _top(file) if not line.startswith("@package")][1:]
    text = " ".join(line for line in lines if not re.match(r"(Then: |.*: )?dpft ", line))
    return [text] if text else []


def command_of(file: Path) -> str:
    """Returns the command that a YAML's first line names; empty where it names none."""
    for line in _top(file):
        for mark in (" Run: ", ": dpft "):
            before, found, command = line.partition(mark)
            if found:
                return command if mark == " Run: " else f"dpft {command}"
        if not line.startswith("@package"):
            break
    return ""


def _top(file: Path) -> list[str]:
    """Returns the comments with which a file begins."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        found.append(line.lstrip("# ").rstrip())
    return found


def _file(group: str, option: str) -> Path:
    return config_directory() / group / f"{option}.yaml"


def _keys(group: str) -> Iterator[str]:
    keys = keys_of_group(group)
    if keys:
        yield "## Keys\n"
        yield key_table(keys, group)


def _option(group: str, option: str) -> str:
    file = _file(group, option)
    parts = [f"### {option}\n", f"{prose(purpose(file))}\n"]
    parts += [f"{prose(text)}\n" for text in comments(file)]
    command = command_of(file)
    if command:
        parts += commands([command])
    parts.append(settings(file, group))
    return "\n".join(parts)


def settings(file: Path, group: str = "") -> str:
    """Returns the keys that a YAML sets, with their values.

    Args:
        file: The YAML.
        group: Where it is given, the keys alone that other options of it set to something else:
            what all of them set is the default in the table of keys.
    """
    values = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    said = [
        code(f"{key}={written(value)}")
        for key, value in values.items()
        if key not in ("defaults", "name") and (not group or varies(f"{group}.{key}"))
    ]
    return f"Sets {', '.join(said)}.\n" if said else ""


def _following() -> list[str]:
    """Returns what the settings of train become where a task needs others."""
    parts = ["## What a task changes\n", "These values are taken with the task of the same name.\n"]
    for option in options_of(FOLLOWING):
        file = config_directory() / FOLLOWING / f"{option}.yaml"
        parts += [f"### task={option}\n", f"{prose(purpose(file))}\n", settings(file)]
    return parts
