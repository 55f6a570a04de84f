"""The E2E task: from a restaurant's attributes to a sentence (Novikova et al. 2017).

A record ("meaning representation") has the form ``name[The Punter], eatType[restaurant]``. It is
linearized in its own order, as in Li et al. 2022 (arXiv 2110.05679), Table 11:

>>> linearise("name[The Punter], eatType[restaurant], priceRange[£20-25]")
'name : The Punter | Type : restaurant | price : £20-25'
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from types import MappingProxyType
from typing import Any, ClassVar

from dpft.errors import InputError
from dpft.tasks.base import TASKS, Example, TextTask

FIELD_NAMES = {"eatType": "Type", "priceRange": "price", "familyFriendly": "family friendly"}
"""Fields that have another name in the prompt; other names stay unchanged."""

_FIELD = r"([^\[\],]+)\[([^\[\]]*)\]\s*"
_RECORD = re.compile(f"{_FIELD}(?:,{_FIELD})*")
_NEXT_FIELD = re.compile(_FIELD)
_REPAIRS = {"\ufeff": "", "Â£": "£", "Ã©": "é", "Ł": "£"}

OFFICIAL_FILES = {"train": "trainset", "validation": "devset", "test": "testset_w_refs"}
"""Names of the published files, by split."""


@TASKS.register("e2e")
class E2ETask(TextTask):
    """The configuration of E2E, ``conf/task/e2e.yaml``."""

    separator: str = "\n"
    """Text between the linearized record and the target."""
    language: str | None = "en"
    metrics: tuple[str, ...] = (
        "bleu",
        "nist",
        "meteor",
        "rouge_l",
        "cider",
        "perplexity",
        "distinct_1",
        "distinct_2",
        "mean_length",
    )

    ships_sample: ClassVar[bool] = True
    published_hub_name: ClassVar[str | None] = "tuetschek/e2e_nlg"
    published_urls: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            split: f"https://raw.githubusercontent.com/tuetschek/e2e-dataset/master/{name}.csv"
            for split, name in OFFICIAL_FILES.items()
        }
    )
    columns: ClassVar[tuple[str, ...]] = ("meaning_representation", "human_reference")
    """A record, and a sentence about it."""
    prompt_columns: ClassVar[tuple[str, ...]] = ("meaning_representation",)
    """The record."""
    unit_definition: ClassVar[str] = (
        "pair of a meaning representation and a reference; equal pairs are records apart"
    )
    """One record is one pair of a meaning representation and a sentence, even if other pairs
    contain the same representation or sentence."""

    def examples(self, row: Mapping[str, Any]) -> tuple[Example, ...]:
        """Return the example of a row: prompt (the linearized record) and target (the reference).

        Raises:
            InputError: The meaning representation does not have the form ``field[value], …``.
        """
        target = self.repair(row["human_reference"]).strip()
        return (replace(self.prompt(row), target=target),)

    def prompt(self, row: Mapping[str, Any]) -> Example:
        """See ``TextTask.prompt``."""
        record = self.repair(row["meaning_representation"]).strip()
        return Example(
            prompt=linearise(record) + self.separator,
            target="",
            group=record,
            separator=self.separator,
        )

    def canary(self, read: Sequence[str], learned: Sequence[str], *, number: int) -> Example:
        """Return the canary of Li et al. 2022, Appendix M: name, type and area, then a suffix."""
        fields = zip(cycle(("name", "eatType", "area")), read, strict=False)
        record = ", ".join(f"{name}[{word}]" for name, word in fields)
        row = {"meaning_representation": record, "human_reference": " ".join(learned)}
        return self.examples(row)[0]

    def record(self, row: Mapping[str, Any], text: str) -> dict[str, Any]:
        """See ``TextTask.record``."""
        record = row["meaning_representation"]
        return {"meaning_representation": record, "human_reference": text}

    def repair(self, text: str) -> str:
        """Return text with the encoding errors of the E2E files fixed, as the E2E reader does.

        Some E2E files contain a byte-order mark, or a pound sign or accent that was decoded with
        the wrong character set. tuetschek/e2e-metrics fixes the same characters.

        >>> E2ETask(name="e2e").repair("near[CafÃ© Rouge], priceRange[less than Â£20]")
        'near[Café Rouge], priceRange[less than £20]'
        """
        for broken, mended in _REPAIRS.items():
            text = text.replace(broken, mended)
        return text


def linearise(record: str) -> str:
    """Return the record as ``name : value | name : value``, with its fields in their own order.

    Raises:
        InputError: The record does not have this form. The message does not quote it.
    """
    if not _RECORD.fullmatch(record):
        raise InputError(
            "meaning_representation must have the form 'field[value], field[value], …'.",
            key="meaning_representation",
        )
    fields = [(name.strip(), value.strip()) for name, value in _NEXT_FIELD.findall(record)]
    return " | ".join(f"{FIELD_NAMES.get(name, name)} : {value}" for name, value in fields)
