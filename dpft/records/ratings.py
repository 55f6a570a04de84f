"""What people rate, and what their ratings say: a sheet's key, and ``dpft report ratings=``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from dpft.records.form import Limits
from dpft.records.values import AtLeastOne, Count, Positive, Rate, Versioned

MeanRating = Annotated[float, Limits(minimum=1, maximum=5)]


@dataclass(frozen=True, kw_only=True)
class RatedSystem:
    """A system."""

    system: str
    """Folder of the run, or the reference."""
    ratings: Count
    """Ratings of it."""
    items: Count
    """Inputs that were rated."""
    mean: MeanRating | None
    """Mean rating; null without any."""
    interval: tuple[float, float] | None
    """Ends of the 95 % interval of the mean; null of fewer than two ratings."""
    mean_over_items: MeanRating | None
    """Mean over inputs of their means; null without any."""


@dataclass(frozen=True, kw_only=True)
class RatingsReport(Versioned):
    """What people's ratings say of each system."""

    task: str
    """The task."""
    split: str
    """The split, or held out."""
    split_is_public: bool
    """Whether the split may be shown."""
    note: str | None = None
    """That epsilon does not cover ratings of a private split."""
    ratings: Count
    """Ratings that were given."""
    raters: Count
    """People who gave them."""
    not_rated: Count
    """Rows without a rating."""
    interval: str
    """How the intervals are made, in words."""
    systems: tuple[RatedSystem, ...]
    """Each system."""


@dataclass(frozen=True, kw_only=True)
class SheetDecoding:
    """How texts were chosen."""

    strategy: Literal["beam", "greedy", "nucleus"]
    """How."""
    num_beams: AtLeastOne
    """Beams."""
    max_new_tokens: AtLeastOne
    """Most tokens of a text."""
    length_penalty: float
    """Of beams."""
    no_repeat_ngram_size: Count | None = None
    """So many tokens in a row are written at most once; 0: no limit."""
    repetition_penalty: Positive | None = None
    """Above 1, what a text has already becomes less likely."""
    top_p: Rate
    """Of nucleus sampling."""
    temperature: Positive
    """Of nucleus sampling."""
    seed: Count | None
    """Of nucleus sampling; null: fresh randomness."""


@dataclass(frozen=True, kw_only=True)
class RatedResponse:
    """A response."""

    item: Count
    """Number of its input."""
    system: str
    """Whose it is."""


@dataclass(frozen=True, kw_only=True)
class SheetKey(Versioned):
    """Whose each response of a rating sheet is. Keep it from the raters."""

    task: str
    """The task."""
    split: str
    """The split, or held out."""
    split_is_public: bool
    """Whether the split may be shown."""
    seed: int
    """Chose the inputs and shuffled the responses."""
    decode: SheetDecoding
    """How texts were chosen."""
    scale: tuple[int, int]
    """Least and largest rating."""
    systems: tuple[str, ...]
    """The systems, in the order of reports."""
    responses: Mapping[str, RatedResponse]
    """Each response by its id."""
