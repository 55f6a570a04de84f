"""What each key allows, in the words with which the code refuses other values.

A range is written once, where it is checked. So each key is given a few values that are likely to
be wrong, and what the refusal says of it (``KEY must be at least 1, got 0``) is what it allows.
"""

import copy
import re
from collections.abc import Iterable, Mapping
from typing import Any

from dpft.config.help_text import Command, Key
from dpft.config.keys import in_keys
from dpft.config.load import from_values
from dpft.errors import InputError

WRONG: dict[str, tuple[object, ...]] = {
    "a whole number": (0, -1),
    "a number": (-1.0, 0.0, 2.0),
    "text": ("?",),
}
"""Values that are often refused, by what a key takes."""
ALTERNATIVES = (
    {"privacy.eps", "privacy.noise_multiplier", "privacy.total_eps"},
    {"eps", "noise_multiplier"},
    {"epochs", "steps"},
    {"expected_batch_size", "sample_rate"},
    {"prompts", "num"},
    {"privacy.eps", "tokenizer.noise_std"},
)
"""Keys of which one is given: to ask for one's limits, the others are taken away."""
SHORTER = {
    "not be negative": "at least 0",
    "not be positive": "at most 0",
    "hold <S1> once": "with <S1> once",
}
CHECKED_LATER = {
    "delta": "in (0, 1)",
    "sample_rate": "in (0, 1]",
    "task.eval_split": "one of train, validation, test",
    "what": "one of tasks, models, methods, recipes, metrics",
}
"""Limits that are checked where a value is used, or whose refusal has other words."""
_OF_OTHER_KEYS = re.compile(r"\(\d+\)|num_examples=")
"""A limit that another key's value gave; it is no limit of the key itself."""


def allowed_values(command: Command, key: Key, needed: Mapping[str, object]) -> str:
    """Returns what a key allows, in words; empty where the code refuses none of the values tried.

    Args:
        command: As composed.
        key: One of its keys.
        needed: Values of other keys without which the command is refused.
    """
    if key.name in CHECKED_LATER:
        return CHECKED_LATER[key.name]
    wrong = [value for kind in key.takes.split(" or ") for value in WRONG.get(kind, ())]
    said = dict.fromkeys(
        one for value in wrong for one in _said_of(command, key.name, value, needed)
    )
    return "; ".join(said)


def _said_of(
    command: Command, key: str, value: object, needed: Mapping[str, object]
) -> Iterable[str]:
    """Yields what refusals of a value say that the key must be."""
    values = copy.deepcopy(dict(command.values))
    for other, needs in needed.items():
        _set(values, other, needs)
    for others in ALTERNATIVES:
        for other in others - {key} if key in others else ():
            _set(values, other, None)
    _set(values, key, value)
    try:
        from_values(values, command.root, polymorphic=command.polymorphic)
    except InputError as error:
        for fault in map(in_keys, error.faults):
            said = re.match(rf"{re.escape(key)} must (?:be )?(.+?),? (?:but )?got ", fault)
            if said and not said[1].startswith("null for ") and not _OF_OTHER_KEYS.search(said[1]):
                yield SHORTER.get(said[1], said[1])


def _set(values: dict[str, Any], key: str, value: object) -> None:
    """Sets a key that is there; another one stays out."""
    section: Any = values
    *path, name = key.split(".")
    for part in path:
        section = section.get(part, {})
    if name in section:
        section[name] = value
