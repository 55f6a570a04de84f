"""The page of the commands: introduction, examples, groups and keys of each."""

from collections.abc import Iterator

from docs.tools.reference.keys import (
    composed,
    key_table,
    keys_of_command,
    keys_of_group,
    option_keys,
    value_text,
)
from docs.tools.reference.markup import code, commands, head, prose, table
from docs.tools.reference.words import COMMANDS, GROUPS
from dpft.cli.main import SUBCOMMANDS
from dpft.config.help_text import FLAGS

INTRO = """
This page lists every command with its arguments. Call a command as
`dpft COMMAND GROUP=OPTION KEY=VALUE`. `GROUP=OPTION` selects a file of settings, and `KEY=VALUE`
changes one setting; `null` means no value. Quote arguments that contain brackets or spaces. The
[configuration](configuration.md) lists the keys of each group. With `output=json`, a command prints
one [JSON object](files.md#json-output-of-commands). Each command ends with an
[exit code](files.md#exit-codes).
"""
LIKE_TRAIN = ("plan", "tune")
"""Commands that take every key of ``dpft train``."""


def commands_page() -> str:
    """Return the page of the commands."""
    flags = [(code(flag), prose(text)) for flag, text in FLAGS]
    parts = [
        head("Commands", ["dpft/cli/", "conf/*.yaml"], INTRO),
        "## Flags\n\nEvery command takes these flags.\n",
        table(("Flag", "Description"), flags),
    ]
    for name in SUBCOMMANDS:
        intro, examples = COMMANDS[name]
        parts += [f"## dpft {name}\n", f"{intro.strip()}\n", *commands(examples), *_keys(name)]
    return "\n".join(parts)


def _keys(name: str) -> Iterator[str]:
    """Yield the groups of a command and its own keys."""
    keys, choices = keys_of_command(name), composed(name).choices
    of_train: set[str] = set()
    if name in LIKE_TRAIN:
        of_train = {key.name for key in keys_of_command("train")}
        yield "This command takes every key of [dpft train](#dpft-train).\n"
    groups = {
        group: option
        for group, option in choices.items()
        if group in GROUPS and not (of_train and group in composed("train").choices)
    }
    links = [f"[{code(f'{group}={option}')}]({_page(group)})" for group, option in groups.items()]
    if links:
        yield f"Groups and their default options: {', '.join(links)}.\n"
    if "experiment" in choices and not of_train:
        yield "`experiment=NAME` selects a [recipe](recipes.md).\n"
    documented = {(key.name, key.text) for group in GROUPS for key in keys_of_group(group)}
    shared = [key for key in keys if (key.name, key.text) in documented]
    single = [key for key in shared if key.section not in choices]
    if single and not of_train:
        names = ", ".join(f"[{code(key.name)}]({_page(key.name)})" for key in single)
        yield f"Keys of other groups: {names}.\n"
    defaults = [
        code(f"{key.name}={key.default}")
        for key in shared
        if key.section in choices and key.default != _default(key.name, choices[key.section])
    ]
    if defaults:
        yield f"Defaults that differ from the configuration: {', '.join(defaults)}.\n"
    own = [key for key in keys if key not in shared and key.name not in of_train]
    if own:
        yield key_table(sorted(own, key=lambda key: bool(key.section)), f"dpft-{name}-")


def _page(anchor: str) -> str:
    return f"configuration.md#{anchor}"


def _default(name: str, option: str | None) -> str:
    """Return the value of a key in an option of its group."""
    return value_text(option_keys(name.partition(".")[0])[option or ""][name])
