"""A page for each command: what it does, its groups and every key that it takes."""

from collections.abc import Iterator
from pathlib import Path

from docs.tools.reference.key_tables import key_table
from docs.tools.reference.keys import DocumentedKey, composed, keys_of_command
from docs.tools.reference.markup import block, code, head, table
from docs.tools.reference.words import COMMANDS, SECTIONS
from dpft.cli.main import SUBCOMMANDS
from dpft.config.load import config_directory

OF_TRAIN = ("plan", "tune")
"""Commands that take all that ``dpft train`` takes."""
FLAGS = (
    ("--help", "Print every group and key with what it is for; `--help GROUP` those of one."),
    ("--cfg job", "Print the composed configuration, and stop."),
    ("--multirun", "Run once for every combination of values separated by commas."),
    ("--config-dir DIR", "Look for configuration files in `DIR`, too."),
)


def command_page(name: str) -> str:
    """Returns the page of a command."""
    words = COMMANDS[name]
    sources = [f"dpft/cli/{name}.py", f"conf/{name}.yaml", "the dataclasses of its keys"]
    parts = [
        head(f"dpft {name}", sources, words.intro),
        f"**{SUBCOMMANDS[name].capitalize()}.**\n",
        block(f"dpft {name} [GROUP=OPTION ...] [KEY=VALUE ...]", "text"),
        block("\n".join(words.examples), "bash"),
        *_groups(name),
        *_keys(name),
        "## Flags\n",
        table(("Flag", "What it does"), [(code(flag), what) for flag, what in FLAGS]),
        f"\nHow the command ends is in [exit codes](../exit-codes.md).{_answer(name)}\n",
    ]
    return "\n".join(parts)


def _answer(name: str) -> str:
    if not any(key.name == "output" for key in keys_of_command(name)):
        return ""
    return " What `output=json` prints is in [files](../files.md#answers)."


def _groups(name: str) -> Iterator[str]:
    """Yields the table of the groups that a command composes, if there are any."""
    choices = composed(name).choices
    rows = []
    for group, taken in choices.items():
        if group in ("experiment",):
            rows.append((code(group), "none", "[recipes](../recipes.md)"))
        elif Path(config_directory(), group).is_dir():
            default = "none" if taken is None else code(taken)
            rows.append((code(group), default, f"[options](../groups/{group}.md)"))
    if rows:
        yield "## Groups\n\nChoose an option of a group with `GROUP=OPTION`.\n"
        yield table(("Group", "Default", "Its options"), rows)


def _keys(name: str) -> Iterator[str]:
    """Yields the tables of a command's keys, its own first, then a section after the other."""
    keys = list(keys_of_command(name))
    yield "## Keys\n\nSet a key with `KEY=VALUE`; `null` means none.\n"
    if name in OF_TRAIN:
        known = {key.name for key in keys_of_command("train")}
        keys = [key for key in keys if key.name not in known]
        yield (
            "All keys of [dpft train](train.md#keys) are keys of this command, too, with the same"
            f" meaning.{_other_defaults(name)} These are its own:\n"
        )
    own = [key for key in keys if not key.section]
    if own:
        yield "### Of the command itself\n"
        yield key_table(own)
    for section in dict.fromkeys(key.section for key in keys if key.section):
        yield f"### {section}\n"
        yield _about(name, section)
        yield key_table([key for key in keys if key.section == section], section)


def _about(name: str, section: str) -> str:
    """Returns what a section is about, and where its options are."""
    said = SECTIONS[section if (name, section) != ("train", "audit") else "canaries"]
    if section in composed(name).choices:
        return f"{said} Options are on the page of [{section}](../groups/{section}.md).\n"
    return f"{said}\n"


def _other_defaults(name: str) -> str:
    """Returns which keys of ``dpft train`` have another default here."""
    theirs = {key.name: key for key in keys_of_command("train")}
    others: list[DocumentedKey] = [
        key
        for key in keys_of_command(name)
        if key.name in theirs and key.default != theirs[key.name].default
    ]
    if not others:
        return ""
    said = ", ".join(code(f"{key.name}={key.default}") for key in others)
    return f" Another default has {said}."
