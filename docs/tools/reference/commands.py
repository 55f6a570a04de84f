"""A page for each command: what it does, its groups and every key that it takes."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from docs.tools.reference.groups import groups
from docs.tools.reference.key_tables import key_table
from docs.tools.reference.keys import DocumentedKey, composed, keys_of_command, keys_of_group
from docs.tools.reference.markup import code, commands, head
from docs.tools.reference.words import COMMANDS, SECTIONS
from dpft.config.load import config_directory

OF_TRAIN = ("plan", "tune")
"""Commands that take all that ``dpft train`` takes."""


def command_page(name: str) -> str:
    """Returns the page of a command."""
    words = COMMANDS[name]
    sources = [f"dpft/cli/{name}.py", f"conf/{name}.yaml"]
    parts = [
        head(f"dpft {name}", sources, words.intro),
        *commands(words.examples),
        *_groups(name),
        *_keys(name),
        f"See [flags](../index.md#flags), [exit codes](../exit-codes.md){_answer(name)}.\n",
    ]
    return "\n".join(parts)


def _answer(name: str) -> str:
    if not any(key.name == "output" for key in keys_of_command(name)):
        return ""
    return " and [answers of output=json](../answers.md)"


def _groups(name: str) -> Iterator[str]:
    """Yields the groups that a command composes, each by its default, if there are any."""
    links = []
    if name in OF_TRAIN:
        return
    for group, taken in composed(name).choices.items():
        if group == "experiment":
            links.append("[`experiment`](../recipes.md), none")
        elif Path(config_directory(), group).is_dir():
            default = code(f"{group}={'none' if taken is None else taken}")
            keys = "#keys" if keys_of_group(group) else ""
            links.append(f"[{default}](../groups/{group}.md{keys})")
    if links:
        yield f"## Groups\n\nBy default {', '.join(links)}.\n"


def _keys(name: str) -> Iterator[str]:
    """Yields where a command's keys are described: its own here, a group's on the group's page."""
    keys = list(keys_of_command(name))
    yield "## Keys\n"
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
    whole = []
    for section in dict.fromkeys(key.section for key in keys if key.section):
        there = [key for key in keys if key.section == section]
        described = _described(section)
        new = [key for key in there if described.get(key.name) != key.text]
        elsewhere = _elsewhere(section, [key for key in there if key not in new], new)
        if elsewhere.startswith("["):
            whole.append(elsewhere)
            continue
        yield f"### {section}\n"
        yield f"{SECTIONS['canaries' if (name, section) == ('train', 'audit') else section]}\n"
        if new:
            yield key_table(new, section)
        if elsewhere:
            yield f"{elsewhere}\n"
    with_keys = [group for group in composed(name).choices if group in groups()]
    if len(whole) == sum(bool(keys_of_group(group)) for group in with_keys):
        yield "### Of groups\n\nAll keys of the groups above.\n"
    elif whole:
        yield f"### Of groups\n\nAll keys of {', '.join(whole)}.\n"


def _described(group: str) -> dict[str, str]:
    """Returns the keys of a group's page and what it says of them; none where there is no page."""
    return {key.name: key.text for key in keys_of_group(group)} if group in groups() else {}


def _elsewhere(group: str, keys: Sequence[DocumentedKey], new: Sequence[DocumentedKey]) -> str:
    """Returns which keys a command takes that are described on the page of their group.

    Where it takes all of them as they are, that is the link alone.
    """
    if not keys:
        return ""
    of_group = {key.name: key for key in keys_of_group(group)}
    page = f"[{group}](../groups/{group}.md#keys)"
    others = [
        code(f"{key.name}={key.default}")
        for key in keys
        if (key.default, key.varies) != (of_group[key.name].default, of_group[key.name].varies)
    ]
    default = f" Another default has {', '.join(others)}." if others else ""
    taken = [key.name for key in keys]
    left = [name for name in of_group if name not in {*taken, *(key.name for key in new)}]
    if not left and not default and not new:
        return page
    if len(left) < len(taken):
        but = f" but {', '.join(map(code, left))}" if left else ""
        return f"All {'other ' if new else ''}keys of {page}{but}.{default}"
    return f"Of the keys of {page} these: {', '.join(map(code, taken))}.{default}"


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
