"""Base class of tasks: configuration, column names, and conversion of rows to examples.

A task never reads a file. ``dpft.data.sources`` reads files and passes rows to the task one by one.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeGuard

from pydantic import Field

from dpft.config.section import Section
from dpft.constants import LABELS, NOTHING, OWN_DATA, PROMPTS, TEXTS
from dpft.errors import InputError
from dpft.registry import Registry
from dpft.strict_model import AtLeastOne


@dataclass(frozen=True, kw_only=True)
class ImagePlace:
    """The location of one image: a file, a segment of a file, or bytes in memory."""

    file: str = ""
    """Path of the file; empty if the image is in ``content``."""
    offset: int = 0
    """Offset in the file at which a raw image begins."""
    shape: tuple[int, ...] = ()
    """Channels, height and width of a raw image; empty if the file is an encoded image, such as PNG
    or JPEG. A raw image has one byte per number, channel after channel."""
    content: bytes = b""

    @property
    def name(self) -> str:
        """The name of the image in messages: its file, never its content."""
        if not self.file:
            return "an image in memory"
        number = f", byte {self.offset}" if self.shape else ""
        return f"{self.file}{number}"


@dataclass(frozen=True, kw_only=True)
class LabeledImage:
    """One record of an image task, which is the privacy unit."""

    image: ImagePlace
    answer: tuple[float, ...]
    """The number of the class, or 0 or 1 for each attribute."""

    @property
    def label(self) -> float:
        """The number of the class."""
        return self.answer[0]

    @property
    def shown(self) -> str:
        """The text that represents the record in predictions: its file name."""
        return PurePath(self.image.file).name or "image"


@dataclass(frozen=True, kw_only=True)
class Example:
    """One record, which is the privacy unit: a text to condition on and a text to learn."""

    prompt: str
    """Text that the model conditions on, including the separator; it has no loss unless
    ``learns_prompt`` is set."""
    target: str
    """Text on which the loss is computed, without the end-of-text token."""
    group: str
    """Text that all examples with the same input share. Evaluation generates one prediction for
    each distinct group; the targets of a group are its references."""
    separator: str = ""
    """The end of ``prompt``, which is kept when a long prompt is cut; may be empty."""
    lead: str = ""
    """The beginning of ``prompt``, which is kept when a long prompt is cut; may be empty."""
    cut_start: bool = False
    """Whether a long prompt loses the beginning of the text between lead and separator instead of
    its end."""
    cut_target_end: bool = False
    """Whether a target that is too long loses its end instead of its beginning, as plain text
    does."""
    after_start: bool = False
    """Whether a start token precedes the prompt, so that the first token of the prompt can be
    predicted."""
    learns_prompt: bool = False
    """Whether the loss also covers the prompt, after a start token."""
    rejected: str | None = None
    """For preference data, an answer that is worse than ``target``; else None."""

    def __post_init__(self) -> None:
        if not self.prompt.endswith(self.separator):
            raise ValueError("prompt must end with separator.")
        if not self.prompt.startswith(self.lead) or len(self.prompt) < len(self.lead) + len(
            self.separator
        ):
            raise ValueError("prompt must start with lead, and separator follow it.")


@dataclass(frozen=True, kw_only=True)
class LabeledExample:
    """One record of a classification task, which is the privacy unit: texts and their label."""

    texts: tuple[str, ...]
    """One sentence or two sentences."""
    label: float
    """The number of the class, or the score."""

    @property
    def shown(self) -> str:
        """The text that represents the record in predictions."""
        return " | ".join(self.texts)


@dataclass(frozen=True, kw_only=True)
class TemplateSegment:
    """A segment of a filled template."""

    text: str
    """The text of the segment, including the blank before it; empty for the mask."""
    is_mask: bool = False
    """Whether the segment is the position of the answer."""
    may_be_cut: bool = False
    """Whether the segment is the record's own text, which is cut if there is no room."""


Record = Example | LabeledExample | LabeledImage


def text_of(record: Record) -> str:
    """Return the whole text of a record: prompt and target, or its sentences.

    Raises:
        InputError: The record is an image.
    """
    if isinstance(record, LabeledImage):
        raise InputError(
            "This command needs a task with text records, but the records are images.", key="task"
        )
    if isinstance(record, LabeledExample):
        return " ".join(record.texts)
    rejected = "" if record.rejected is None else f" {record.rejected}"
    return f"{record.prompt} {record.target}{rejected}"


def shortened(record: Record, letters: int) -> Record:
    """Return a record whose texts have at most ``letters`` letters.

    A text is cut on the side on which its tokens would be cut.

    Args:
        record: A record. A record without text is returned unchanged.
        letters: Maximum number of letters of the prompt's own text, of a target, and of a sentence.
    """
    if isinstance(record, LabeledExample):
        if all(len(text) <= letters for text in record.texts):
            return record
        return replace(record, texts=tuple(text[:letters] for text in record.texts))
    if not isinstance(record, Example):
        return record
    target, lead, separator = record.target, record.lead, record.separator
    text_length = len(record.prompt) - len(lead) - len(separator)
    if max(len(target), text_length, len(record.rejected or "")) <= letters:
        return record
    text = record.prompt[len(lead) : len(lead) + text_length]
    text = text[-letters:] if record.cut_start else text[:letters]
    return replace(
        record,
        prompt=lead + text + separator,
        target=target[:letters] if record.cut_target_end else target[-letters:],
        group=record.group[:letters],
        rejected=None if record.rejected is None else record.rejected[-letters:],
    )


def are_texts(records: Sequence[Record]) -> TypeGuard[Sequence[Example]]:
    """Return whether every record is an ``Example``, as in a text task."""
    return all(isinstance(record, Example) for record in records)


def is_unicode(text: str) -> bool:
    """Return whether the text has no lone surrogates, which JSON allows but UTF-8 cannot encode."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


LONGEST_DEFAULT = 512
"""Tokens of the longest example if neither the configuration nor the model sets a lower limit."""
TYPICAL_SHARE = 0.75
"""Assumed length of a typical row relative to the longest row, if nothing else is known."""
SPLITS = ("train", "validation", "test")
Source = Literal["hub", "url", "local", "embedded", "memory"]
REFUSED: Final = "error"
SKIPPED: Final = "skip"
MISSING: Final = "missing"
INVALID = (REFUSED, SKIPPED, MISSING)
"""Treatments of an invalid row. Each treatment depends only on that row."""


@dataclass(frozen=True, kw_only=True)
class CorpusForm:
    """How the local files of a corpus are read. The files may have any names."""

    column: str
    """The column name for the text of a text file, which has no columns itself."""
    by_document: bool
    """Whether a whole text file is one text; otherwise each of its lines is one text."""


class Task(Section, ABC):
    """Base class of tasks; its fields are the task's configuration, ``conf/task/<name>.yaml``."""

    name: str
    """Name of the task, which task=NAME selects."""
    source: Source = "hub"
    """Source of the rows: hub, url, local, embedded (the bundled sample), or memory (rows that a
    Python program passes); data_dir implies local."""
    data_dir: str | None = None
    """Folder with one file for each of train, validation and test, in a supported format."""
    num_train_examples: AtLeastOne | None = None
    """The published, public number of training records."""
    hub_name: str | None = None
    """Name of the data set on the Hugging Face Hub."""
    hub_config: str | None = None
    """Configuration of that data set, if it has several."""
    hub_revision: str | None = None
    """Branch, tag or commit on the Hub."""
    urls: dict[str, str] = Field(default_factory=dict)
    """Address of the file of each split, for source=url."""
    embedded_num_train_examples: AtLeastOne | None = None
    """Number of rows in the bundled training sample, for source=embedded."""
    column_aliases: dict[str, str] = Field(default_factory=dict)
    """Other names of columns: a name in your file, mapped to a name in ``columns``."""

    eval_split: str = "test"
    """The split that is scored by default; eval.split overrides it."""
    split_parts: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """The parts in which each split is stored and by which it is scored; a split without parts is
    one part."""
    metrics: tuple[str, ...] = ()
    """Names of the metrics that score the task."""
    default_delta: Literal["published", "own_data"] = OWN_DATA
    """Rule for delta if privacy.delta is null: own_data takes 1 / (10 * num_examples) rounded down
    to one digit, and published takes 1 / (2 * num_examples), as in the papers."""

    modality: ClassVar[str]
    """Type of its records, text or image, which determines how they reach a model."""
    has_canaries: ClassVar[bool] = False
    """Whether ``canary`` can make records from words."""
    rows_key: ClassVar[str | None] = None
    """The configuration key of ``most_rows``; None if a record is always one row."""
    ships_sample: ClassVar[bool] = False
    """Whether dpft contains a sample of the task's data, for source=embedded."""
    takes_file: ClassVar[bool] = False
    """Whether ``data_dir`` may also be one file, which is then the training split."""
    published_hub_name: ClassVar[str | None] = None
    """The Hub data set whose splits are published. Any other data set counts as the user's own
    data."""
    published_urls: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """The addresses of published splits. Any other address counts as the user's own data."""
    local_form: ClassVar[str | None] = None
    """Format of the task's data on disk, as named in ``dpft.data.sources``; None for one table per
    split."""
    streams_hub: ClassVar[bool] = False
    """Whether rows of the Hub are read over the network as needed, without storing them."""
    averages_parts: ClassVar[bool] = False
    """Whether the mean of the scores of a split's parts is a score too."""
    own_defaults: ClassVar[bool] = False
    """Whether defaults for a small data set of the user's own apply if none are configured."""
    is_checked_by_model: ClassVar[bool] = False
    """Whether only a model can determine which rows are valid, for example by its chat template."""
    scores_rows: ClassVar[bool] = False
    """Whether every row is scored separately, even if another row has the same input."""

    def _check_fields(self) -> None:
        all_columns = (*self.columns, *self.optional_columns)
        unknown = sorted(set(self.column_aliases.values()) - set(all_columns))
        if unknown:
            raise InputError(
                f"task.column_aliases must point to {', '.join(all_columns)}, got {unknown[0]!r}.",
                key="task.column_aliases",
                value=unknown[0],
            )

    @classmethod
    def chosen(cls, values: Mapping[str, Any]) -> "type[Task]":
        """Return the class that the given key values select.

        This is the class itself, unless it has several forms.
        """
        return cls

    @property
    def lacks(self) -> str | None:
        """A message that asks for a missing key, or None.

        The message is shown only for new runs, because ``run=RUN`` provides the key.
        """
        return None

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Columns that every row must have."""

    def column_key(self, column: str) -> str | None:
        """Return the configuration key that names a column, or None if the task names it."""
        return None

    @property
    def corpus_form(self) -> CorpusForm | None:
        """How local files of a corpus are read; None if local files are one table per split."""
        return None

    @property
    def on_invalid(self) -> str:
        """Treatment of an invalid row, one of ``INVALID``."""
        return REFUSED

    @property
    def optional_columns(self) -> tuple[str, ...]:
        """Columns that are read if a row has them; ``examples`` may reject a row without them."""
        return ()

    @property
    def untyped_columns(self) -> tuple[str, ...]:
        """Required or optional columns whose values need not be text."""
        return ()

    @property
    def answers(self) -> str:
        """Type of the answers, which determines their scores: ``TEXTS``, ``LABELS`` and others."""
        return TEXTS

    @property
    def written_from(self) -> str | None:
        """Input for generation, ``NOTHING`` or ``PROMPTS``; None if the model generates no text.

        This value determines which commands are useful after a run. ``dpft generate`` rejects runs
        that cannot generate, and the end of a run recommends only useful commands.
        """
        return None

    @property
    def answers_how(self) -> str:
        """Description of the output of a model that generates no text, for messages."""
        return "chooses labels"

    @property
    def confusable(self) -> tuple[str, ...]:
        """Names of the classes for which reports show a confusion matrix; empty to show none."""
        return ()

    @property
    def longest(self) -> int:
        """The length of the longest row, in tokens for texts; 1 if rows have no length."""
        return 1

    @property
    def typical(self) -> int:
        """The length of the rows with which ``dpft plan`` measures the time of a run."""
        return max(1, round(TYPICAL_SHARE * self.longest))

    @property
    def most_rows(self) -> int:
        """The largest number of rows that a record may become."""
        return 1

    def members(self, part: str) -> "Sequence[Member]":
        """Return the tasks whose rows a part contains: the task itself, unless it is a mixture."""
        return (Member(task=self, part=part),)

    def parts(self, split: str) -> tuple[str, ...]:
        """Return the names under which a split is stored, in the order in which they are scored."""
        return self.split_parts.get(split, (split,))

    @property
    def all_parts(self) -> list[str]:
        """The names under which the splits are stored."""
        return [part for split in SPLITS for part in self.parts(split)]

    @property
    def effective_source(self) -> str:
        """The source that rows are read from: local if ``data_dir`` is set, else ``source``."""
        return "local" if self.data_dir is not None else self.source

    @property
    def public_num_train_examples(self) -> int | None:
        """The number of training records in the public configuration, or None."""
        by_source = {"embedded": self.embedded_num_train_examples, "local": None, "memory": None}
        return by_source.get(self.effective_source, self.num_train_examples)

    def is_published(self, split: str) -> bool:
        """Return whether the split's rows are published, so that showing them harms nobody."""
        by_source = {
            "embedded": True,
            "hub": self.hub_name is not None and self.hub_name == self.published_hub_name,
            "url": self.urls.get(split, "") == self.published_urls.get(split),
        }
        return by_source.get(self.effective_source, False)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Tokens that the task adds to the tokenizer and writes into prompts, in order."""
        return ()

    def begun(self, date: str) -> Self:
        """Return the task with the start day of a run filled in, such as 2026-11-29."""
        return self

    @property
    def unit_definition(self) -> str:
        """Description of the record that ``privacy.unit=example`` protects, as text after "one"."""
        return "row of the data; equal rows are records of their own"

    @abstractmethod
    def examples(self, row: Mapping[str, Any]) -> Sequence[Record]:
        """Return the examples of one row, each of which is a separate record.

        Args:
            row: The value of each column: text, or any value in an untyped column. Every name in
                ``columns`` is present. A name in ``optional_columns`` is present if the row has it.

        Raises:
            InputError: The text of the row does not have the form that the task needs. The message
                never quotes the text, because rows are private (docs/dev/design.md, rule 7). The
                caller adds file and line.
        """

    @abstractmethod
    def canary(self, read: Sequence[str], learned: Sequence[str], *, number: int) -> Record:
        """Return an artificial record in the task's form, for audits.

        Args:
            read: Words that the model reads.
            learned: Words that the model learns to generate after them. For a task with labels, the
                model reads these words too.
            number: Selects the label, if there is one.
        """

    def repair(self, text: str) -> str:
        """Return text as the data set's official reader reads it; by default unchanged.

        Files of outputs are matched to references by the repaired text.
        """
        return text


@dataclass(frozen=True, kw_only=True)
class Member:
    """A task of a mixture, and the part and number of its rows that are read."""

    task: Task
    part: str
    limit: int | None = None
    """Maximum number of rows, taken from the start; None for all rows."""


_LANGUAGES = """
    aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de
    dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia
    id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo
    lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl
    ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk
    tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
LANGUAGES = frozenset(_LANGUAGES.split())
"""The ISO 639-1 language codes."""


class TextualTask(Task):
    """A task whose records are text."""

    max_length: Annotated[int, Field(ge=2)] | None = None
    """Maximum number of tokens of an example; null means 512, or the number of positions of the
    model if that is less. Longer prompts are cut, but never the end of the target."""

    language: str | None = None
    """Language of the texts as an ISO 639-1 code such as zh, which determines the words that
    metrics compare; null splits texts by script."""

    typical_length: AtLeastOne | None = None
    """Tokens of a typical example (public), with which ``dpft plan`` measures time; null takes
    three quarters of max_length."""

    modality: ClassVar[str] = "text"
    has_canaries: ClassVar[bool] = True

    def _check_fields(self) -> None:
        super()._check_fields()
        if self.language is not None and self.language not in LANGUAGES:
            raise InputError(
                "task.language must be an ISO 639-1 code such as en, zh, ja or ko, or null for"
                f" any other language, got {self.language!r}.",
                key="task.language",
                value=self.language,
                hint="task.language=null",
            )

    @property
    def longest(self) -> int:
        """See ``Task.longest``; ``fitted`` replaces the default when the model is known."""
        return LONGEST_DEFAULT if self.max_length is None else self.max_length

    @property
    def typical(self) -> int:
        """See ``Task.typical``: the configured length, but at most ``longest``."""
        if self.typical_length is None:
            return super().typical
        return min(self.typical_length, self.longest)

    def fitted(self, positions: int | None) -> Self:
        """Return the task with a maximum length: the model's if none is configured."""
        if self.max_length is not None:
            return self
        longest = self.longest if positions is None else min(self.longest, positions)
        return self.replace(max_length=longest)


class OwnRows(TextualTask):
    """A task on the user's own rows, some of which may be invalid."""

    invalid: Literal["error", "skip", "missing"] = REFUSED
    """Treatment of invalid rows: error rejects the data, skip skips the row, and missing reads
    missing or invalid values as empty text. With missing, a row that is still invalid is skipped.
    Sizes and rates count all rows."""

    @property
    def on_invalid(self) -> str:
        """See ``Task.on_invalid``."""
        return self.invalid


class TextTask(TextualTask):
    """A task whose answers are texts."""

    @property
    def holds_lists(self) -> bool:
        """Whether rows contain lists, which a .csv file cannot represent."""
        return False

    @property
    @abstractmethod
    def prompt_columns(self) -> tuple[str, ...]:
        """The ``columns`` from which a prompt is made; empty if records have no prompt."""

    @property
    def given_columns(self) -> tuple[str, ...]:
        """Columns of the prompt, which a row must have for generation with a trained model."""
        return self.prompt_columns

    @property
    def given_form(self) -> str:
        """Description of the rows that generation needs, for messages."""
        return ", ".join(self.given_columns)

    @property
    def written_from(self) -> str | None:
        """See ``Task.written_from``."""
        return PROMPTS if self.from_nothing is None else NOTHING

    @property
    def written_columns(self) -> tuple[str, ...]:
        """Columns that a template extracts from a generated text; empty without such a template."""
        return ()

    @property
    def from_nothing(self) -> "TextTask | None":
        """The task that generates whole records without a prompt; None if a prompt is needed."""
        return None if self.prompt_columns else self

    @abstractmethod
    def examples(self, row: Mapping[str, Any]) -> Sequence[Example]:
        """See ``Task.examples``."""

    @abstractmethod
    def prompt(self, row: Mapping[str, Any]) -> Example:
        """Return the prompt of a row, as an example without a target.

        Args:
            row: The value of each column. Every name in ``given_columns`` is present; the mapping
                is empty if whole records are generated without a prompt.
        """

    def canary(self, read: Sequence[str], learned: Sequence[str], *, number: int) -> Example:
        """See ``Task.canary``."""
        prompt = " ".join(read) + "\n" if self.prompt_columns else ""
        target = " ".join(learned if prompt else (*read, *learned))
        return Example(prompt=prompt, target=target, group=prompt or target)

    def spelt_labels(self, texts: Sequence[str]) -> list[float] | None:
        """Return the label that each text spells, or None if the answers are not labels in words.

        Args:
            texts: References or generated texts. A text that spells no label gives -1.
        """
        return None

    @abstractmethod
    def record(self, row: Mapping[str, Any], text: str) -> dict[str, Any] | None:
        """Return a row in the task's own format with the text as its answer.

        Return None if the text does not have the form of an answer, for example of a template.

        Args:
            row: The values that ``prompt`` read; other columns are dropped.
            text: The text that a model generated after that prompt.
        """


class SeqToSeqTask(TextTask):
    """A text task for seq2seq models, whose prompts need no separator before the answer."""


class LabelTask(Task):
    """A task whose answers are labels: classes or scores."""

    @property
    def answers(self) -> str:
        """See ``Task.answers``."""
        return LABELS

    @abstractmethod
    def label(self, value: Any) -> float:
        """Return the number that a label represents.

        Raises:
            InputError: The label is not one of the task's labels. The message does not quote it.
        """

    @abstractmethod
    def prediction(self, text: str) -> float:
        """Return the label for a text in a file of predictions.

        The text has the form of ``label_text``, or any form that ``label`` accepts.

        Raises:
            InputError: The text is not a label. The message does not quote it.
        """

    @abstractmethod
    def label_text(self, value: float) -> str:
        """Return a label as it is written in predictions."""

    @abstractmethod
    def predicted(self, outputs: Sequence[float]) -> float:
        """Return the label that a model's outputs for a record represent.

        Args:
            outputs: Probabilities of the label words or classes, or one number, which is a score.
        """


TASKS: Registry[type[Task]] = Registry("dpft.tasks", key="task.name")
"""All tasks by name; each module of this package registers its classes."""


def chosen_task_class(values: Mapping[str, Any]) -> type[Task]:
    """Return the class of the task that the values of its keys, including ``name``, select.

    Raises:
        InputError: There is no such task, or the keys do not fit together.
    """
    return TASKS.named(values["name"]).chosen(values)
