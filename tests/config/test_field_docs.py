from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_type_hints

import pytest

from dpft.config.help_text import field_texts, first_sentence
from dpft.config.keys import configuration_fields, dataclass_in
from dpft.methods.base import METHODS
from dpft.privacy.privacy_config import PRIVACY_CHOICES
from dpft.tasks.base import TASKS
from dpft.tasks.custom import CustomFields
from dpft.training.optimizers import OPTIMIZERS
from dpft.training.trackers import TRACKING
from tests.config.test_conf import ROOTS


@dataclass
class Base:
    rank: int = 1
    """Rank of the change.

    It is small.
    """
    bare: int = 0


@dataclass
class Special(Base):
    rank: int = 2
    own: str = ""
    """See Li et al. 2022. Then more."""


def test_a_field_keeps_the_text_of_its_base() -> None:
    texts = field_texts(Special)
    assert {name: first_sentence(text) for name, text in texts.items()} == {
        "rank": "Rank of the change.",
        "bare": "",
        "own": "See Li et al. 2022.",
    }


def test_a_sentence_ends_at_its_full_stop() -> None:
    assert first_sentence("Above 0.5, e.g. one. Or two.") == "Above 0.5, e.g. one."
    assert first_sentence("no stop") == "no stop"


def classes() -> Iterator[type]:
    """Yields every dataclass whose fields are keys."""
    chosen = (METHODS, TASKS, TRACKING)
    waiting = [*ROOTS.values(), *(cls for names in chosen for cls in names.entries().values())]
    waiting += [*PRIVACY_CHOICES.values(), *OPTIMIZERS.entries().values(), CustomFields]
    seen: set[type] = set()
    while waiting:
        cls = waiting.pop()
        if cls in seen:
            continue
        seen.add(cls)
        yield cls
        hints = get_type_hints(cls)
        nested = (dataclass_in(hints[entry.name]) for entry in configuration_fields(cls))
        waiting += [inner for inner in nested if inner is not None]


@pytest.mark.parametrize("cls", list(classes()), ids=lambda cls: cls.__name__)
def test_every_key_says_what_it_is_for(cls: type) -> None:
    hints = get_type_hints(cls)
    silent = [
        name
        for name, text in field_texts(cls).items()
        if dataclass_in(hints[name]) is None and not first_sentence(text).endswith(".")
    ]
    assert silent == []
