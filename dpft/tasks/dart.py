"""The DART task: from a set of triples to a sentence (Nan et al. 2021, arXiv 2007.02871).

A row is a tripleset with one or more texts. For training, each text gives one pair. For scoring, a
row is one input with all its texts as references. The tripleset is linearized as in Li et al. 2022
(arXiv 2110.05679), Table 12:

>>> linearise([("Hawaii Five-O", "NOTES", "Pilot"), ("[TABLECONTEXT]", "TITLE", "Hawaii Five-O")])
'Hawaii Five-O : NOTES : Pilot | [TABLECONTEXT] : TITLE : Hawaii Five-O'
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

from dpft.errors import InputError
from dpft.tasks.base import TASKS, Example, TextTask
from dpft.tasks.templates import list_of, objects_of, text_of, texts_of

Triple = tuple[str, ...]
"""Subject, predicate and object."""
PARTS = 3

OFFICIAL_NAMES = {"train": "train", "validation": "dev", "test": "test"}
"""Names of the splits in the published files."""


@TASKS.register("dart")
class DartTask(TextTask):
    """The configuration of DART, ``conf/task/dart.yaml``."""

    separator: str = "\n"
    """Text between the linearized tripleset and the target."""
    lower_predicates: bool = False
    """Whether predicates are converted to lower case, as in Li et al. 2022, Table 12."""
    language: str | None = "en"
    metrics: tuple[str, ...] = (
        "bleu",
        "meteor_plain",
        "rouge_1",
        "rouge_2",
        "rouge_score_l",
        "bertscore",
        "bleurt",
        "perplexity",
        "distinct_1",
        "distinct_2",
        "mean_length",
    )

    scores_rows: ClassVar[bool] = True
    published_urls: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            split: "https://raw.githubusercontent.com/Yale-LILY/dart/master/data/v1.1.1/"
            f"dart-v1.1.1-full-{name}.json"
            for split, name in OFFICIAL_NAMES.items()
        }
    )
    columns: ClassVar[tuple[str, ...]] = ("tripleset", "annotations")
    """A tripleset, and the texts about it."""
    holds_lists: ClassVar[bool] = True
    prompt_columns: ClassVar[tuple[str, ...]] = ("tripleset",)
    """The tripleset."""
    unit_definition: ClassVar[str] = (
        "pair of a tripleset and a text; the texts of one tripleset are records apart"
    )
    """One record is one pair of a tripleset and a text, as in the published size."""

    @property
    def untyped_columns(self) -> tuple[str, ...]:
        """Both columns, because they contain lists."""
        return self.columns

    def examples(self, row: Mapping[str, Any]) -> tuple[Example, ...]:
        """Return one example for each text.

        An annotation without a text (the published test split contains one: null) becomes an
        example without a target.

        Args:
            row: ``tripleset``, a list of lists of three texts, and ``annotations``, a list of
                objects with ``text``.

        Raises:
            InputError: The row does not have this form.
        """
        prompt = self.prompt(row)
        annotations = objects_of(row["annotations"], "annotations")
        if not annotations:
            raise InputError(
                "annotations must contain at least one object with a text.", key="annotations"
            )
        return tuple(replace(prompt, target=_target(annotation)) for annotation in annotations)

    def prompt(self, row: Mapping[str, Any]) -> Example:
        """See ``TextTask.prompt``."""
        tripleset = list_of(row["tripleset"], "tripleset", "triples")
        split = [texts_of(triple, "each triple") for triple in tripleset]
        if not split or any(len(triple) != PARTS for triple in split):
            raise InputError(
                "tripleset must be a non-empty list of [subject, predicate, object].",
                key="tripleset",
            )
        triples: list[Triple] = [tuple(part.strip() for part in triple) for triple in split]
        shown = [(s, p.lower(), o) for s, p, o in triples] if self.lower_predicates else triples
        return Example(
            prompt=linearise(shown) + self.separator,
            target="",
            group=linearise(triples),
            separator=self.separator,
        )

    def record(self, row: Mapping[str, Any], text: str) -> dict[str, Any]:
        """See ``TextTask.record``."""
        return {"tripleset": row["tripleset"], "annotations": [{"text": text}]}


def linearise(triples: Sequence[Triple]) -> str:
    """Return triples as ``subject : predicate : object | …``, in the given order."""
    return " | ".join(" : ".join(triple) for triple in triples)


def _target(annotation: Mapping[str, Any]) -> str:
    if "text" not in annotation:
        raise InputError("each value of annotations must have a text.", key="annotations")
    text = annotation["text"]
    return "" if text is None else text_of(text, "text in annotations").strip()
