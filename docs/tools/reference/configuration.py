"""The page of the configuration: keys and options of each group of conf/."""

import yaml

from docs.tools.reference.keys import (
    OWNERS,
    changes,
    composed,
    key_table,
    keys_of_group,
    options_of,
)
from docs.tools.reference.markup import code, head, prose, short, table
from docs.tools.reference.words import GROUPS
from dpft.config.help_text import purpose, written
from dpft.config.load import config_directory

INTRO = """
This page lists every group of settings. `GROUP=OPTION` selects an option, and `GROUP.KEY=VALUE`
changes one key. Each option changes the keys in its row and keeps the other defaults of the group.
A default "by option" differs in most options.
"""
TASK_DEFAULTS = "train/task"
"""Folder of the settings of ``train`` that a task changes."""


def configuration_page() -> str:
    """Return the page of the configuration."""
    parts = [head("Configuration", ["conf/"], INTRO)]
    for group, intro in GROUPS.items():
        command = OWNERS.get(group, "train")
        default = code(f"{group}={composed(command).choices[group]}")
        parts += [f"## {group}\n", f"{intro.strip()} The default is {default}.\n"]
        parts.append(key_table(keys_of_group(group)))
        rows = [_row(group, option, changes(group, option)) for option in options_of(group)]
        parts.append(table(("Option", "Description", "Values"), rows))
        if group == "train":
            rows = [
                _row(TASK_DEFAULTS, task, _settings(task)) for task in options_of(TASK_DEFAULTS)
            ]
            parts.append(table(("Task", "Description", "Defaults of `train`"), rows))
    return "\n".join(parts)


def _row(group: str, option: str, values: list[str]) -> tuple[str, str, str]:
    name = f"{group.rpartition('/')[2]}={option}"
    file = config_directory() / group / f"{option}.yaml"
    anchor = "" if group == TASK_DEFAULTS else f'<span id="{name}"></span>'
    return f"{anchor}{code(name)}", prose(purpose(file)), ", ".join(map(short, values))


def _settings(task: str) -> list[str]:
    text = (config_directory() / TASK_DEFAULTS / f"{task}.yaml").read_text(encoding="utf-8")
    return [f"{key}={written(value)}" for key, value in yaml.safe_load(text).items()]
