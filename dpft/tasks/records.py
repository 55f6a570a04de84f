"""Records of a task: a text to learn, texts and their label, or an image and its answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TypeGuard

from dpft.errors import InputError


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
class Piece:
    """A stretch of a filled template."""

    text: str
    """Its words, the blank before them included; empty for the mask."""
    is_mask: bool = False
    """Whether it is the place of the answer."""
    may_be_cut: bool = False
    """Whether it is the record's own text, which gives way where there is no room."""


Record = Example | LabeledExample | LabeledImage


def text_of(record: Record) -> str:
    """Returns all of a record's text: prompt and target, or its sentences.

    Raises:
        InputError: It is an image.
    """
    if isinstance(record, LabeledImage):
        raise InputError("a record must have text, got one that is an image; choose another task.")
    if isinstance(record, LabeledExample):
        return " ".join(record.texts)
    return f"{record.prompt} {record.target}"


def shortened(record: Record, letters: int) -> Record:
    """Returns a record whose texts have at most so many letters, each cut where tokens would be.

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
    own = len(record.prompt) - len(lead) - len(separator)
    if len(target) <= letters and own <= letters:
        return record
    text = record.prompt[len(lead) : len(lead) + own]
    text = text[-letters:] if record.cut_start else text[:letters]
    return replace(
        record,
        prompt=lead + text + separator,
        target=target[:letters] if record.cut_target_end else target[-letters:],
        group=record.group[:letters],
    )


def are_texts(records: Sequence[Record]) -> TypeGuard[Sequence[Example]]:
    """Says whether every record is a text to learn, as those of a text task are."""
    return all(isinstance(record, Example) for record in records)


def is_unicode(text: str) -> bool:
    """Says whether the text has no lone surrogates, which JSON can spell and no one can encode."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
