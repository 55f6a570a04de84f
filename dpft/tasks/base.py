"""Base class of tasks: configuration, column names, and conversion of rows to examples.

A task never reads a file; ``dpft.data.sources`` does, and hands it rows one at a time.
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
    """Where one image is: a file, a stretch of one, or bytes in memory."""

    file: str = ""
    """The file's path; empty: the image is ``content``."""
    offset: int = 0
    """Where in the file a raw image begins."""
    shape: tuple[int, ...] = ()
    """Channels, height and width of a raw image, a byte a number, channel after channel; empty:
    the whole is an encoded image, such as PNG or JPEG."""
    content: bytes = b""

    @property
    def name(self) -> str:
        """How messages name it: the file, never what is in it."""
        if not self.file:
            return "an image in memory"
        number = f", byte {self.offset}" if self.shape else ""
        return f"{self.file}{number}"


@dataclass(frozen=True, kw_only=True)
class LabeledImage:
    """One record of a task of images, the unit of privacy."""

    image: ImagePlace
    answer: tuple[float, ...]
    """The number of its class; or 0 or 1 for each attribute."""

    @property
    def label(self) -> float:
        """The number of its class."""
        return self.answer[0]

    @property
    def shown(self) -> str:
        """The record in words, for predictions: its file's name."""
        return PurePath(self.image.file).name or "image"


@dataclass(frozen=True, kw_only=True)
class Example:
    """One record, the unit of privacy: a text to condition on and a text to learn."""

    prompt: str
    """Text the model conditions on, separator included; no loss on it unless ``learns_prompt``."""
    target: str
    """Text the loss is on, without the end-of-text token."""
    group: str
    """Evaluation writes one prediction per distinct group; its targets are the references."""
    separator: str = ""
    """The end of ``prompt`` that stays when a long prompt is cut; may be empty."""
    lead: str = ""
    """The beginning of ``prompt`` that stays when a long prompt is cut; may be empty."""
    cut_start: bool = False
    """Whether a long prompt loses the beginning of what is between the two, not the end."""
    cut_target_end: bool = False
    """Whether a target too long by itself loses its end, as plain text does, not its beginning."""
    after_start: bool = False
    """Whether a start token stands before the prompt, for its first token to be predicted from."""
    learns_prompt: bool = False
    """Whether the loss is on the prompt, too, after a start token."""
    rejected: str | None = None
    """A worse answer than ``target``, of preference data; None: there is none."""

    def __post_init__(self) -> None:
        if not self.prompt.endswith(self.separator):
            raise ValueError("prompt must end with separator.")
        if not self.prompt.startswith(self.lead) or len(self.prompt) < len(self.lead) + len(
            self.separator
        ):
            raise ValueError("prompt must start with lead, and separator follow it.")


@dataclass(frozen=True, kw_only=True)
class LabeledExample:
    """One record of a classification task, the unit of privacy: texts and their label."""

    texts: tuple[str, ...]
    """One sentence, or two."""
    label: float
    """Number of the class, or the score."""

    @property
    def shown(self) -> str:
        """The record in words, for predictions."""
        return " | ".join(self.texts)


@dataclass(frozen=True, kw_only=True)
class TemplateSegment:
    """A stretch of a filled template."""

    text: str
    """Its words, the blank before them included; empty for the mask."""
    is_mask: bool = False
    """Whether it is the place of the answer."""
    may_be_cut: bool = False
    """Whether it is the record's own text, which gives way where there is no room."""


Record = Example | LabeledExample | LabeledImage


def text_of(record: Record) -> str:
    """Return all of a record's text: prompt and target, or its sentences.

    Raises:
        InputError: It is an image.
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
    """Return a record whose texts have at most so many letters, each cut where tokens would be.

    Args:
        record: A text's record; any other is returned as it is.
        letters: Most letters of a prompt's own text, of a target, of a sentence.
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
    """Say whether every record is a text to learn, as those of a text task are."""
    return all(isinstance(record, Example) for record in records)


def is_unicode(text: str) -> bool:
    """Say whether the text has no lone surrogates, which JSON can spell and no one can encode."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


LONGEST_DEFAULT = 512
"""Tokens of the longest example where neither the configuration nor the model says fewer."""
TYPICAL_SHARE = 0.75
"""Of the longest row: how long one is taken to be where nothing is known of them."""
SPLITS = ("train", "validation", "test")
Source = Literal["hub", "url", "local", "embedded", "memory"]
REFUSED: Final = "error"
SKIPPED: Final = "skip"
MISSING: Final = "missing"
INVALID = (REFUSED, SKIPPED, MISSING)
"""Treatments of a faulty row; each is decided by that row alone."""


@dataclass(frozen=True, kw_only=True)
class CorpusForm:
    """How the local files of a corpus are read: of any names, and text files among them."""

    column: str
    """The column under which a text of a text file stands, which has no columns itself."""
    by_document: bool
    """Whether a text file is one text; else each of its lines is one."""


class Task(Section, ABC):
    """Base of every task; its fields are the task's configuration, ``conf/task/<name>.yaml``."""

    name: str
    """Which task; chosen by task=NAME."""
    source: Source = "hub"
    """Where rows come from: hub, url, local or embedded (a given data_dir means local); or memory,
    the rows that a program gives."""
    data_dir: str | None = None
    """Folder with train|validation|test, a file each in one of the formats that are read."""
    num_train_examples: AtLeastOne | None = None
    """The public number of training records, as published."""
    hub_name: str | None = None
    """Data set on the Hugging Face hub."""
    hub_config: str | None = None
    """Configuration of that data set, where it has several."""
    hub_revision: str | None = None
    """Branch, tag or commit on the hub."""
    urls: dict[str, str] = Field(default_factory=dict)
    """Split name to the address of its file, for source=url."""
    embedded_num_train_examples: AtLeastOne | None = None
    """Rows of the embedded training sample, for source=embedded."""
    column_aliases: dict[str, str] = Field(default_factory=dict)
    """Other names of the columns: the name in a file to the name in ``columns``."""

    eval_split: str = "test"
    """The split that is scored unless eval.split says otherwise."""
    split_parts: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Split to the parts that it is stored in and scored by; a split without parts is one."""
    metrics: tuple[str, ...] = ()
    """Names of the metrics that score it."""
    default_delta: Literal["published", "own_data"] = OWN_DATA
    """Delta where privacy.delta is null: own_data, 1 / (10 * num_examples) rounded down to one
    digit; or published, 1 / (2 * num_examples), as in the papers."""

    modality: ClassVar[str]
    """Kind of its records, text or image; says how they reach a model."""
    has_canaries: ClassVar[bool] = False
    """Whether ``canary`` makes records of words."""
    rows_key: ClassVar[str | None] = None
    """The key of ``most_rows``; None: a record is one row."""
    ships_sample: ClassVar[bool] = False
    """Whether a sample of its data comes with dpft, for source=embedded."""
    takes_file: ClassVar[bool] = False
    """Whether ``data_dir`` may also be one file, the training split."""
    published_hub_name: ClassVar[str | None] = None
    """The hub data set whose splits are published; another one is the user's own."""
    published_urls: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """The addresses of published splits; another address is the user's own."""
    local_form: ClassVar[str | None] = None
    """Form of its data on disk, named in ``dpft.data.sources``; None: a table for each split."""
    streams_hub: ClassVar[bool] = False
    """Whether rows of the hub are read over the network as they are needed, and kept nowhere."""
    averages_parts: ClassVar[bool] = False
    """Whether the mean of the scores of a split's parts is a score, too."""
    own_defaults: ClassVar[bool] = False
    """Whether a batch is chosen for few records of a user's own, where none is configured."""
    is_checked_by_model: ClassVar[bool] = False
    """Whether only a model can tell which rows are valid, such as by its chat template."""
    scores_rows: ClassVar[bool] = False
    """Whether every row is scored apart, though another has the same input."""

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
        """Return the class that values of its keys stand for: this one, unless it has forms."""
        return cls

    @property
    def lacks(self) -> str | None:
        """A sentence that asks for a missing key; evaluation of a run takes it from there."""
        return None

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Columns every row must have."""

    def column_key(self, column: str) -> str | None:
        """Return the configuration key that names a column; None where the task itself does."""
        return None

    @property
    def corpus_form(self) -> CorpusForm | None:
        """How local files are read where they are a corpus; None where they are tables by split."""
        return None

    @property
    def on_invalid(self) -> str:
        """Treatment of a faulty row, one of ``INVALID``."""
        return REFUSED

    @property
    def optional_columns(self) -> tuple[str, ...]:
        """Columns that are read where a row has them; ``examples`` says which it misses."""
        return ()

    @property
    def untyped_columns(self) -> tuple[str, ...]:
        """Columns, required or optional, whose values need not be text."""
        return ()

    @property
    def answers(self) -> str:
        """Kind of answers, which says how they are scored: ``TEXTS``, ``LABELS`` and others."""
        return TEXTS

    @property
    def written_from(self) -> str | None:
        """Source of a trained model's texts, ``NOTHING`` or ``PROMPTS``; None: it writes none.

        Which commands can be of use after a run follows from it: ``dpft generate`` refuses by it,
        and the end of a run advises by it.
        """
        return None

    @property
    def answers_how(self) -> str:
        """The work of a trained model that writes no texts, in words."""
        return "chooses labels"

    @property
    def confusable(self) -> tuple[str, ...]:
        """Name of the classes of which reports show which is taken for which; none: not shown."""
        return ()

    @property
    def longest(self) -> int:
        """The length of the longest row: of a text, in tokens; 1 where rows have no length."""
        return 1

    @property
    def typical(self) -> int:
        """The length of the rows on which ``dpft plan`` measures the time of a run."""
        return max(1, round(TYPICAL_SHARE * self.longest))

    @property
    def most_rows(self) -> int:
        """How many rows a record may become."""
        return 1

    def members(self, part: str) -> "Sequence[Member]":
        """Return the tasks whose rows a part has: the task itself, unless it is a mixture."""
        return (Member(task=self, part=part),)

    def parts(self, split: str) -> tuple[str, ...]:
        """Return the names under which a split is stored, in the order they are scored."""
        return self.split_parts.get(split, (split,))

    @property
    def all_parts(self) -> list[str]:
        """The names under which any split is stored."""
        return [part for split in SPLITS for part in self.parts(split)]

    @property
    def effective_source(self) -> str:
        """The source rows are read from: ``data_dir`` means local, whatever ``source`` says."""
        return "local" if self.data_dir is not None else self.source

    @property
    def public_num_train_examples(self) -> int | None:
        """The number of training records that stands in public configuration, if one does."""
        by_source = {"embedded": self.embedded_num_train_examples, "local": None, "memory": None}
        return by_source.get(self.effective_source, self.num_train_examples)

    def is_published(self, split: str) -> bool:
        """Return whether the split's rows are published, so that showing them harms no one."""
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
        """Return the task as a run that begins on a day, such as 2026-11-29, keeps it."""
        return self

    @property
    def unit_definition(self) -> str:
        """One record in words that follow "one": the unit that ``privacy.unit=example`` hides."""
        return "row of the data; equal rows are records of their own"

    @abstractmethod
    def examples(self, row: Mapping[str, Any]) -> Sequence[Record]:
        """Return the examples one row stands for, each a record of its own.

        Args:
            row: Column name to text, or to whatever an untyped column holds; every name in
                ``columns`` is present, and those of ``optional_columns`` that the row has.

        Raises:
            InputError: The row's text does not have the task's form. The message never quotes
                it: rows are private (docs/dev/design.md, rule 7). The caller adds file and line.
        """

    @abstractmethod
    def canary(self, read: Sequence[str], learned: Sequence[str], *, number: int) -> Record:
        """Return a record of the task's form that nobody gave, for audits.

        Args:
            read: Words that the model reads.
            learned: Words that it learns to write after them; of a task of labels it reads them,
                too.
            number: Chooses the label, where there is one.
        """

    def repair(self, text: str) -> str:
        """Return text as the data set's official reader reads it; by default, as it is.

        Outputs files are joined to references on repaired text.
        """
        return text


@dataclass(frozen=True, kw_only=True)
class Member:
    """A task whose rows are read, and which of them."""

    task: Task
    part: str
    limit: int | None = None
    """Most rows, the first ones; None: all."""


_LANGUAGES = """
    aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de
    dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia
    id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo
    lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl
    ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk
    tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
LANGUAGES = frozenset(_LANGUAGES.split())
"""The codes of ISO 639-1."""


class TextualTask(Task):
    """A task whose records are made of text."""

    max_length: Annotated[int, Field(ge=2)] | None = None
    """Longest tokenized example; the prompt is cut, never the target's end; null takes 512, or what
    the model has positions for where that is less."""

    language: str | None = None
    """Language of the texts as an ISO 639-1 code such as zh, which chooses the words that metrics
    compare; null splits texts by script."""

    typical_length: AtLeastOne | None = None
    """Tokens of a typical example, a public number, on which ``dpft plan`` measures time; null
    takes three quarters of max_length."""

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
        """See ``Task.longest``; known once a model is (``fitted``)."""
        return LONGEST_DEFAULT if self.max_length is None else self.max_length

    @property
    def typical(self) -> int:
        """See ``Task.typical``: the stated length, as far as there is room for it."""
        if self.typical_length is None:
            return super().typical
        return min(self.typical_length, self.longest)

    def fitted(self, positions: int | None) -> Self:
        """Return the task with a length of its examples: the model's where none is given."""
        if self.max_length is not None:
            return self
        longest = self.longest if positions is None else min(self.longest, positions)
        return self.replace(max_length=longest)


class OwnRows(TextualTask):
    """A task of a user's own rows, some of which may be faulty."""

    invalid: Literal["error", "skip", "missing"] = REFUSED
    """A faulty row: error, it is refused; skip, it is left out; missing, what it lacks is read as
    an empty text, and it is left out if it is still faulty. Sizes and rates count it as before."""

    @property
    def on_invalid(self) -> str:
        """See ``Task.on_invalid``."""
        return self.invalid


class TextTask(TextualTask):
    """A task whose answers are texts."""

    @property
    def holds_lists(self) -> bool:
        """Whether rows hold lists, for which a .csv file has no place."""
        return False

    @property
    @abstractmethod
    def prompt_columns(self) -> tuple[str, ...]:
        """Those of ``columns`` that a prompt is made from; none where records have no prompt."""

    @property
    def given_columns(self) -> tuple[str, ...]:
        """Columns of the rows that a user has a trained model write from: the prompt's."""
        return self.prompt_columns

    @property
    def given_form(self) -> str:
        """Such rows, in words."""
        return ", ".join(self.given_columns)

    @property
    def written_from(self) -> str | None:
        """See ``Task.written_from``."""
        return PROMPTS if self.from_nothing is None else NOTHING

    @property
    def written_columns(self) -> tuple[str, ...]:
        """Columns that a template reads a written text back into; none where none does."""
        return ()

    @property
    def from_nothing(self) -> "TextTask | None":
        """The task of writing a whole record from nothing; None where a prompt must be given."""
        return None if self.prompt_columns else self

    @abstractmethod
    def examples(self, row: Mapping[str, Any]) -> Sequence[Example]:
        """See ``Task.examples``."""

    @abstractmethod
    def prompt(self, row: Mapping[str, Any]) -> Example:
        """Return the prompt of a row, as an example without a target.

        Args:
            row: Column name to value; every name in ``given_columns`` is present, or none where
                whole records are written from nothing.
        """

    def canary(self, read: Sequence[str], learned: Sequence[str], *, number: int) -> Example:
        """See ``Task.canary``."""
        prompt = " ".join(read) + "\n" if self.prompt_columns else ""
        target = " ".join(learned if prompt else (*read, *learned))
        return Example(prompt=prompt, target=target, group=prompt or target)

    def spelt_labels(self, texts: Sequence[str]) -> list[float] | None:
        """Return the label that each text spells; None where answers are no labels in words.

        Args:
            texts: References, or what a model wrote; one that spells no label gives -1.
        """
        return None

    @abstractmethod
    def record(self, row: Mapping[str, Any], text: str) -> dict[str, Any] | None:
        """Return a row in the task's own format, with the text as its answer.

        None where the text does not have the form of an answer, as a template may give one.

        Args:
            row: What ``prompt`` read; other columns are left out.
            text: What a model wrote after that prompt.
        """


class SeqToSeqTask(TextTask):
    """A task of texts whose prompt ends with no separator: a decoder apart writes the answer."""


class LabelTask(Task):
    """A task whose answers are labels: classes, or scores."""

    @property
    def answers(self) -> str:
        """See ``Task.answers``."""
        return LABELS

    @abstractmethod
    def label(self, value: Any) -> float:
        """Return the number that a label stands for.

        Raises:
            InputError: It is not one of the task's; the message does not quote it.
        """

    @abstractmethod
    def prediction(self, text: str) -> float:
        """Return the label that a file of predictions spells, as ``label_text`` or ``label`` do.

        Raises:
            InputError: It is none; the message does not quote it.
        """

    @abstractmethod
    def label_text(self, value: float) -> str:
        """Return a label as predictions spell it."""

    @abstractmethod
    def predicted(self, outputs: Sequence[float]) -> float:
        """Return the label that a model's outputs for a record stand for.

        Args:
            outputs: Probabilities of label words or classes, or one number, a score.
        """


TASKS: Registry[type[Task]] = Registry("dpft.tasks", key="task.name")
"""Every task by name; a module of this package registers its class, or one class for several."""


def chosen_task_class(values: Mapping[str, Any]) -> type[Task]:
    """Return the class of the task that the values of its keys, ``name`` among them, stand for.

    Raises:
        InputError: There is no such task, or the keys do not go together.
    """
    return TASKS.named(values["name"]).chosen(values)
