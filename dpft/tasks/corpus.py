"""The corpus task: learn whole texts, as in pre-training.

In contrast to ``task=custom``, the task reads a folder of many files as they were collected,
including text files. By default, it reads C4, the corpus of T5 (Raffel et al. 2020, arXiv
1910.10683).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from dpft.constants import CAUSAL, GAP, MASKED, PROMPTS, SENTINEL, SEQ2SEQ
from dpft.errors import InputError
from dpft.strict_model import AtLeastOne
from dpft.tasks.base import TASKS, CorpusForm, Example, OwnRows, TextTask

LINE: Final = "line"
DOCUMENT: Final = "document"
CHUNKS = "chunks_per_record"
C4_TEXTS = {"en": 364868892, "en.noblocklist": 393391519, "realnewslike": 13799838}
"""Number of texts in C4's training split, by hub_config. Source: num_examples in its data card on
the Hub.
"""
SPANS, PREFIX, NEXT, MASKS = "span_corruption", "prefix_lm", "causal", "mlm"
OBJECTIVES = {NEXT: CAUSAL, SPANS: SEQ2SEQ, PREFIX: SEQ2SEQ, MASKS: MASKED}
"""Kind of model that learns each objective. The first objective of a kind is its default."""


@TASKS.register("corpus")
class CorpusTask(OwnRows, TextTask):
    """Texts without prompts; a blank text is not a record."""

    data_dir: str | None = None
    """A file, or a folder of files and folders with any names: .txt, .txt.gz, .jsonl, .jsonl.gz,
    .parquet and .csv. The folder may instead contain files or folders named train, validation or
    test."""
    max_length: Annotated[int, Field(ge=2)] | None = None
    """Maximum number of tokens of a text; null means 512, or the number of positions of the model
    if that is less. A longer text loses its end."""
    text_column: str = Field(default="text", alias="text")
    """The column that contains the text, in files that have columns and on the Hub."""
    record_kind: Literal["line", "document"] = Field(default=LINE, alias="record")
    """Unit of one record in a .txt file: line for each line, or document for the whole file."""

    objective: Literal["span_corruption", "prefix_lm", "causal", "mlm"] | None = None
    """Training objective: causal (next tokens), span_corruption (T5's hidden spans), prefix_lm
    (text after its beginning) or mlm (masked tokens); null takes the model's own objective."""
    chunks_per_record: AtLeastOne = 1
    """Maximum number of chunks of a record that are trained on, each as long as max_length allows.
    They are clipped as one, unless privacy.unit=chunk."""

    rows_key: ClassVar[str | None] = CHUNKS
    takes_file: ClassVar[bool] = True
    local_form: ClassVar[str | None] = "corpus"
    streams_hub: ClassVar[bool] = True
    published_hub_name: ClassVar[str | None] = "allenai/c4"
    prompt_columns: ClassVar[tuple[str, ...]] = ()
    """No columns, because a text has no prompt."""
    answers_how: ClassVar[str] = "fills in single masked tokens"

    def _check_fields(self) -> None:
        super()._check_fields()
        if not self.text_column.strip():
            raise InputError(
                f"task.text must be the name of a column, got {self.text_column!r}.",
                key="task.text",
                value=self.text_column,
                hint="task.text=text",
            )

    @property
    def public_num_train_examples(self) -> int | None:
        """See ``Task.public_num_train_examples``; C4's published number if none is configured."""
        if self.num_train_examples is None and self.is_published("train"):
            return C4_TEXTS.get(self.hub_config or "")
        return super().public_num_train_examples

    @property
    def most_rows(self) -> int:
        """See ``Task.most_rows``: the chunks of a record."""
        return self.chunks_per_record

    def objective_for(self, kind: str) -> str:
        """Return the objective with which a model of the given kind learns a text.

        Raises:
            InputError: The objective is for another kind of model.
        """
        if self.objective is None:
            return next(name for name, of in OBJECTIVES.items() if of == kind)
        if OBJECTIVES[self.objective] != kind:
            suitable = next(name for name, of in OBJECTIVES.items() if of == kind)
            raise InputError(
                f"task.objective={self.objective} needs a {OBJECTIVES[self.objective]} model, but"
                f" this model is {kind}.",
                key="task.objective",
                value=self.objective,
                hint=f"task.objective={suitable}",
            )
        return self.objective

    @property
    def columns(self) -> tuple[str, ...]:
        """The column of the text."""
        return (self.text_column,)

    def column_key(self, column: str) -> str | None:
        """See ``Task.column_key``."""
        return "task.text"

    @property
    def given_columns(self) -> tuple[str, ...]:
        """See ``TextTask.given_columns``: the text, if the model continues a text."""
        return self.columns if self.written_from == PROMPTS else ()

    @property
    def given_form(self) -> str:
        """See ``TextTask.given_form``."""
        what = "texts with gaps, ____," if self.objective == SPANS else "beginnings of texts"
        return f"{what} under {self.text_column}"

    @property
    def from_nothing(self) -> "CorpusTask | None":
        """See ``TextTask.from_nothing``: this task, if the model has learned whole texts."""
        return self if self.objective in (None, NEXT) else None

    @property
    def written_from(self) -> str | None:
        """See ``Task.written_from``; a masked model generates no text."""
        return None if self.objective == MASKS else super().written_from

    @property
    def holds_lists(self) -> bool:
        """See ``TextTask.holds_lists``: true for gaps, whose filling texts are a list."""
        return self.objective == SPANS

    @property
    def written_columns(self) -> tuple[str, ...]:
        """The column of the text."""
        return self.columns

    @property
    def corpus_form(self) -> CorpusForm:
        """See ``Task.corpus_form``."""
        return CorpusForm(column=self.text_column, by_document=self.record_kind == DOCUMENT)

    @property
    def unit_definition(self) -> str:
        """See ``Task.unit_definition``."""
        text = "line of a text file" if self.record_kind == LINE else "text file as a whole"
        return (
            f"{text}, or row of a file that has columns; equal texts are records of their own, and"
            " blank ones none"
        )

    def examples(self, row: Mapping[str, Any]) -> Sequence[Example]:
        """Return the text as one example, whose end is cut if it is too long; empty if blank."""
        text: str = row[self.text_column]
        return (_whole(text),) if text.strip() else ()

    def prompt(self, row: Mapping[str, Any]) -> Example:
        """See ``TextTask.prompt``: a text with gaps, the beginning of a text, or nothing.

        Raises:
            InputError: The text has no gap, or the beginning is blank.
        """
        text = str(row.get(self.text_column, ""))
        if self.objective == SPANS and not GAP.search(text):
            raise InputError(
                f"{self.text_column} must have at least one gap for the model to fill, written as"
                " ____ (four or more underscores).",
                key=self.text_column,
            )
        if self.objective == PREFIX and not text.strip():
            raise InputError(
                f"{self.text_column} must not be blank, because the model continues it.",
                key=self.text_column,
            )
        return Example(prompt=text, target="", group=text, cut_target_end=True)

    def canary(self, read: Sequence[str], learned: Sequence[str], *, number: int) -> Example:
        """See ``Task.canary``: cut like other texts."""
        return _whole(" ".join((*read, *learned)))

    def record(self, row: Mapping[str, Any], text: str) -> dict[str, Any] | None:
        """See ``TextTask.record``; None for a blank text and for a text with an unfilled gap."""
        prompt = str(row.get(self.text_column, ""))
        if self.objective == SPANS:
            return self._filled(prompt, text)
        if not text.strip():
            return None
        if self.objective != PREFIX:
            return {self.text_column: text}
        blank = "" if prompt[-1:].isspace() else " "
        return {"prompt": prompt, self.text_column: f"{prompt}{blank}{text}"}

    def _filled(self, prompt: str, text: str) -> dict[str, Any] | None:
        """Return a text with its gaps filled by the output ``<extra_id_0> WORDS <extra_…``."""
        _, *named = SENTINEL.split(text)
        words_by_gap = {
            int(number): words.strip()
            for number, words in zip(named[::2], named[1::2])  # noqa: B905
        }
        gaps = GAP.findall(prompt)
        fills = [words_by_gap.get(number, "") for number in range(len(gaps))]
        if not all(fills):
            return None
        between = GAP.split(prompt)
        whole = "".join(a + b for a, b in zip(between, [*fills, ""], strict=True))
        return {"prompt": prompt, "fills": fills, self.text_column: whole}


def _whole(text: str) -> Example:
    return Example(prompt="", target=text, group=text, cut_target_end=True)
