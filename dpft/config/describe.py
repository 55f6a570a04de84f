"""Every key of a composed configuration: its value, what it takes and what it is for.

The dataclasses say what a key takes and is for, the YAMLs what it is where nobody says otherwise.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from dpft.config.convert import ClassChoice, describe
from dpft.config.field_docs import field_texts, first_sentence
from dpft.config.keys import configuration_fields, dataclass_in, join_key, key_name


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


def purpose(file: Path) -> str:
    """Returns what a YAML is for: its first comment, without the command that shows its use."""
    with file.open(encoding="utf-8") as stream:
        comments = [line[1:].strip() for line in stream if line.startswith("#")]
    first = next((line for line in comments if not line.startswith("@package")), "")
    for mark in (" Run: ", ": dpft "):
        first = first.partition(mark)[0]
    return first if first.endswith(".") or not first else f"{first}."


def options(folders: list[Path], group: str) -> dict[str, str]:
    """Returns the options of a group and what each is for.

    Args:
        folders: Where YAMLs are looked for.
        group: A folder of theirs.
    """
    files = [file for folder in folders for file in (folder / group).glob("*.yaml")]
    return {file.stem: purpose(file) for file in sorted(files, key=lambda file: file.stem)}
