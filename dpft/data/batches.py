"""Collation of rows into tensors, and division of a logical batch into micro-batches.

An encoding converts a record to a row. Only a `Layout` reads the content of a row, so training,
checks and planning do not depend on the kind of row. `TextLayout` is in this module; the module
``images`` contains the layout of images. Position ids are always expanded to (b, t). A model that
creates its own position ids broadcasts one row of them over the batch (GPT-2, BERT). Its position
embedding then has no per-example gradient.

A `RowView` computes the model's input from a row each time the row is used. The input depends only
on the row and on secret bits of the step. The input from one record therefore does not depend on
the other records of the batch (docs/dev/design.md, rule 3). `micro_batches` affects only speed and
memory. The clipped sum is the same for every division of a logical batch, because clipping is per
unit and no unit is divided.

Shapes: b examples, t tokens of the longest example, k label words or outputs of a classifier.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from transformers import PreTrainedTokenizerBase

from dpft.constants import (
    CAUSAL,
    CLASSES,
    CLASSIFIER,
    IGNORED_LABEL,
    LABEL_WORDS,
    MASKED,
    SCORE,
    SEQ2SEQ,
    TEXT,
)
from dpft.data.preference_loss import PreferenceLoss
from dpft.data.tokenization import TokenizedExample
from dpft.data.training_records import LazySequence
from dpft.devices import moved
from dpft.parallel.ranks import EVERYTHING, RankShare


@dataclass(frozen=True)
class _Place:
    """State of the JSON parser at the first character of a token of a target."""

    stretch: int = 0
    in_string: bool = False
    escaped: bool = False

    def after(self, letter: str) -> "_Place":
        if self.in_string:
            if self.escaped:
                return _Place(self.stretch, True)
            return _Place(self.stretch, letter != '"', letter == "\\")
        return _Place(self.stretch + (letter in ",:"), letter == '"')


@dataclass(frozen=True, kw_only=True)
class JsonWeights:
    r"""Public loss weights of the tokens of a JSON target, one weight per segment.

    A comma or colon outside of strings begins a segment, so each name and each value is one
    segment:

        "age" | :42 | ,"note" | :"says \"no\""}     or, without names,     42 | ,"says \"no\""]

    A token has the weight of the segment of its first character. Tokens of segments beyond
    ``weights``, and the end-of-text token, have weight 1. The weights of a row depend only on the
    tokens of that row, and its loss is still one number, so clipping is unchanged.
    """

    weights: tuple[float, ...]
    tokenizer: PreTrainedTokenizerBase = field(compare=False, repr=False)
    _steps: dict[tuple[_Place, int], tuple[int, _Place]] = field(
        default_factory=dict, compare=False, repr=False, init=False
    )

    def of(self, labels: Sequence[int]) -> list[float]:
        """Return the weight of each token of a row, which is 0 if the token has no loss.

        Args:
            labels: Token ids of the target, with -100 before and after it.
        """
        token_weights, place = [], _Place()
        for token in labels:
            if token == IGNORED_LABEL:
                token_weights.append(0.0)
                continue
            stretch, place = self._step(place, token)
            token_weights.append(self.weights[stretch] if stretch < len(self.weights) else 1.0)
        return token_weights

    def _step(self, place: _Place, token: int) -> tuple[int, _Place]:
        """Return the segment of a token that begins at ``place``, and the place after the token."""
        step = self._steps.get((place, token))
        if step is None:
            if token == self.tokenizer.eos_token_id:
                return len(self.weights), place
            text = str(self.tokenizer.decode([token], clean_up_tokenization_spaces=False))
            after = place
            stretch = place.after(text[:1]).stretch if text else place.stretch
            for letter in text:
                after = after.after(letter)
            step = self._steps[place, token] = stretch, after
        return step


Bits = Callable[[int], bytes]
"""Function that returns the requested number of random bytes; called once for each view of a
row."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Inputs and labels of some examples.

    A batch is a pytree whose leaves are its row tensors. ``tree_map(lambda tensor: tensor[index],
    batch)`` selects a subset of its rows. ``words`` and the other fields without rows are part of
    the structure of the tree.
    """

    inputs: Mapping[str, Tensor]
    """Keyword arguments of the model: ``input_ids`` and others, each of shape (b, t) and int64; or
    ``pixel_values``, shape (b, channels, height, width), float32."""
    labels: Tensor
    """For texts: token ids, with -100 for tokens without a loss, shape (b, t). Otherwise:
    probabilities of the label words or classes, or the score, shape (b, k), float32."""
    kind: str = CAUSAL
    """Kind of the model that the batch is for."""
    answer: str = TEXT
    """Kind of the labels: a text, a label word, a class, a score or attributes."""
    positions: Tensor | None = None
    """Position at which the label word is predicted, shape (b,), int64."""
    words: Tensor | None = None
    """Token ids of the label words, shape (k,), int64."""
    weights: Tensor | None = None
    """Factor of each example's loss, shape (b,), float32; None means 1. A filler row
    (``is_filler``) has the factor 0."""
    token_weights: Tensor | None = None
    """Weight of each label in the mean of its example's token losses, shape (b, t), float32. The
    weight is 0 for tokens without a loss. None: equal weights."""
    references: Tensor | None = None
    """Log-probability of each answer under the reference model, shape (b,), float32, for
    ``pair_loss``."""
    pair_loss: PreferenceLoss | None = None
    """Loss of each pair of rows (chosen and rejected answer); None if each row has its own loss."""
    rows_per_unit: int = 1
    """Number of rows of each privacy unit. The rows of a unit are contiguous."""
    is_padded: bool = False
    """Whether some input text is shorter than the longest text of the batch, so that its attention
    mask has zeros."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_filler(self) -> Tensor | None:
        """Mask of the filler rows, shape (b,), bool; None if no row is a filler row.

        Filler rows give each unit the same number of rows. A filler row repeats another row of the
        unit with weight 0, so it adds nothing to the gradient of the unit.
        """
        return None if self.rows_per_unit == 1 or self.weights is None else self.weights == 0

    def to(self, device: torch.device | str) -> "Batch":
        """Return the batch with its tensors on the device, without waiting for the copies."""
        where = torch.device(device)

        def moved_if_set(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else moved(tensor, where)

        return replace(
            self,
            inputs={name: moved(tensor, where) for name, tensor in self.inputs.items()},
            labels=moved(self.labels, where),
            positions=moved_if_set(self.positions),
            words=moved_if_set(self.words),
            weights=moved_if_set(self.weights),
            token_weights=moved_if_set(self.token_weights),
            references=moved_if_set(self.references),
        )


OPTIONAL_ROWS = ("positions", "weights", "token_weights", "references")
WITHOUT_ROWS = ("kind", "answer", "words", "pair_loss", "rows_per_unit", "is_padded")
_Structure = tuple[tuple[str, ...], dict[str, Any]]


def _row_tensors(batch: Batch) -> tuple[dict[str, Any], _Structure]:
    """Return the fields that contain row tensors, and the other fields as their structure."""
    optional = {name: getattr(batch, name) for name in OPTIONAL_ROWS}
    rows = {"inputs": dict(batch.inputs), "labels": batch.labels} | {
        # The pytree module treats None as a leaf.
        name: tensor for name, tensor in optional.items() if tensor is not None
    }  # fmt: skip
    return rows, (tuple(rows), {name: getattr(batch, name) for name in WITHOUT_ROWS})


def _flatten(batch: Batch) -> tuple[list[Any], _Structure]:
    rows, structure = _row_tensors(batch)
    return list(rows.values()), structure


def _flatten_with_names(batch: Batch) -> tuple[list[tuple[pytree.KeyEntry, Any]], _Structure]:
    rows, structure = _row_tensors(batch)
    return [(pytree.GetAttrKey(name), tensor) for name, tensor in rows.items()], structure


def _unflatten(rows: Iterable[Any], structure: _Structure) -> Batch:
    names, others = structure
    return Batch(**dict(zip(names, rows, strict=True)), **others)


pytree.register_pytree_node(Batch, _flatten, _unflatten, flatten_with_keys_fn=_flatten_with_names)


@dataclass(frozen=True, kw_only=True)
class Layout(ABC):
    """Layout of rows in a batch; public configuration."""

    kind: str = CAUSAL
    """Kind of the model."""
    answer: str = TEXT
    """See ``Batch.answer``."""
    outputs: int = 1
    """Number of outputs of a classifier."""
    pad_to_multiple_of: int = 1
    """Batch lengths are multiples of this number, up to the longest allowed length. The padding
    changes no loss."""

    rows_per_record: ClassVar[int] = 1
    """Number of batch rows that a record becomes; these rows are contiguous."""

    @abstractmethod
    def length(self, row: Any) -> int:
        """Return the length that rows are sorted by; for a text, the number of input tokens."""

    @abstractmethod
    def longest(self, rows: Sequence[Any]) -> int:
        """Return the length of the longest input or target among the rows."""

    @abstractmethod
    def padded_length(self, longest: int) -> int:
        """Return the length of a batch whose longest row has length ``longest``."""

    @abstractmethod
    def cost(self, row: Any) -> int:
        """Return the total length of the inputs that a model processes for a row."""

    @abstractmethod
    def collate(self, rows: Sequence[Any]) -> Batch:
        """Return the rows as one batch."""

    def for_training(self, *, multiple: int, longest: int) -> Self:
        """Return the layout for training, which may pad rows to a multiple, up to ``longest``."""
        return self

    def unpadded(self) -> Self:
        """Return the layout without padding beyond the longest row of a batch."""
        return replace(self, pad_to_multiple_of=1)

    @abstractmethod
    def synthetic(
        self, model: nn.Module, count: int, longest: int, *, ragged: bool = True
    ) -> Sequence[Any]:
        """Return random rows, the same on every call, to test a model before it reads a record."""


class EncodedRows(LazySequence[Any]):
    """A sequence of encoded rows, each created on access."""

    @property
    @abstractmethod
    def has_label(self) -> NDArray[np.bool_]:
        """Whether each row has an answer to learn."""

    @property
    @abstractmethod
    def truncated(self) -> NDArray[np.bool_]:
        """Whether a part of each row's record did not fit; private."""

    @property
    def unreadable(self) -> list[str]:
        """Names of the records that could not be read and are therefore skipped; private."""
        return []

    @property
    def converted(self) -> int:
        """Number of images converted between gray and color for the model; private."""
        return 0

    @abstractmethod
    def only(self, places: NDArray[np.bool_]) -> Self:
        """Return the rows at the positions that are True."""

    @abstractmethod
    def add(self, rows: Self) -> None:
        """Append other rows."""

    @abstractmethod
    def content(self) -> Iterator[bytes]:
        """Yield the whole content of the rows in order, in an unambiguous form."""


class ViewBits(Protocol):
    """Source of the random bits of views."""

    def bits(self, step: int, record: int, size: int) -> bytes:
        """Return random bytes for the view of a record at a step, both counted from 0."""


class RowView(ABC):
    """View of a row: a function that computes the model's input from the row."""

    @abstractmethod
    def __call__(self, row: Any, bits: Bits) -> Any:
        """Return the row as the model reads it, with random choices from ``bits``."""


class ViewedRows(LazySequence[Any]):
    """Rows as the model reads them at one step."""

    def __init__(self, rows: Sequence[Any], view: RowView, source: ViewBits, step: int) -> None:
        """Apply ``view`` to ``rows`` with the bits that ``source`` draws for ``step``."""
        self._rows, self._view, self._source, self._step = rows, view, source, step

    def __len__(self) -> int:
        return len(self._rows)

    def _at(self, place: int) -> Any:
        bits = self._source.bits
        return self._view(self._rows[place], lambda size: bits(self._step, place, size))


@dataclass(frozen=True, kw_only=True)
class TextLayout(Layout):
    """Layout of rows of tokens in a batch; public configuration."""

    pad_token_id: int = 0
    """Token id of padding, which the attention mask excludes."""
    takes_position_ids: bool = True
    """Whether the model receives position ids; some models count the positions of each row
    themselves."""
    takes_token_types: bool = True
    """Whether the model receives the index of the sentence of each token, if the rows contain
    it."""
    decoder_start_token_id: int = 0
    """First decoder token of seq2seq models."""
    words: tuple[int, ...] = ()
    """Token ids of the label words."""
    max_length: int | None = None
    """Maximum length to which a batch is padded, because no row is longer; None: no limit."""
    token_weights: JsonWeights | None = None
    """Weights of the tokens of a text in its loss; None: equal weights."""

    def length(self, row: TokenizedExample) -> int:
        """See ``Layout.length``."""
        return len(row.input_ids)

    def cost(self, row: TokenizedExample) -> int:
        """See ``Layout.cost``; a seq2seq model also processes the target, in its decoder."""
        apart = len(row.labels) if (self.kind, self.answer) == (SEQ2SEQ, TEXT) else 0
        return len(row.input_ids) + apart

    def longest(self, rows: Sequence[TokenizedExample]) -> int:
        """Return the number of tokens of the longest input, or target of a seq2seq model."""
        writes_apart = self.kind == SEQ2SEQ and self.answer == TEXT
        written = [len(row.labels) for row in rows] if writes_apart else []
        return max([len(row.input_ids) for row in rows] + written)

    def padded_length(self, longest: int) -> int:
        """Return the length of a batch whose longest row has ``longest`` tokens."""
        multiple = -(-longest // self.pad_to_multiple_of) * self.pad_to_multiple_of
        if self.max_length is not None:
            multiple = min(multiple, self.max_length)
        return max(longest, multiple)

    def for_training(self, *, multiple: int, longest: int) -> "TextLayout":
        """See ``Layout.for_training``."""
        return replace(self, pad_to_multiple_of=multiple, max_length=longest)

    def synthetic(
        self, model: Any, count: int, longest: int, *, ragged: bool = True
    ) -> Sequence[TokenizedExample]:
        """See ``Layout.synthetic``; random tokens of the model's vocabulary, and random labels."""
        size = model.config.get_text_config().vocab_size
        return synthetic_rows(self, count, longest, vocab_size=size, ragged=ragged)

    def collate(self, rows: Sequence[TokenizedExample]) -> Batch:
        """Return the rows as one batch, padded on the right to ``padded_length``."""
        inputs = self._inputs(rows)
        longest = len(inputs["input_ids"][0])
        is_padded = any(len(row.input_ids) < longest for row in rows)
        if self.answer == TEXT:
            labels, decoder = self._text(rows, longest)
            weights = self.token_weights
            counted = None if weights is None else [weights.of(row) for row in labels.tolist()]
            return Batch(
                inputs=inputs | decoder,
                labels=labels,
                kind=self.kind,
                token_weights=None if counted is None else torch.tensor(counted),
                is_padded=is_padded,
            )
        batch = Batch(
            inputs=inputs,
            labels=torch.tensor([row.labels for row in rows], dtype=torch.float32),
            kind=self.kind,
            answer=self.answer,
            is_padded=is_padded,
        )
        if self.kind == CLASSIFIER:
            return batch
        # Add the position of the answer, and the words to choose from.
        inputs = dict(batch.inputs)
        positions = torch.tensor([row.answer or 0 for row in rows])
        if self.kind == SEQ2SEQ:
            inputs["decoder_input_ids"] = torch.full((len(rows), 1), self.decoder_start_token_id)
            positions = torch.zeros_like(positions)
        return replace(batch, inputs=inputs, positions=positions, words=torch.tensor(self.words))

    def _inputs(self, rows: Sequence[TokenizedExample]) -> dict[str, Tensor]:
        lengths = [len(row.input_ids) for row in rows]
        longest = self.padded_length(max(lengths))
        inputs = {
            "input_ids": _padded([row.input_ids for row in rows], longest, self.pad_token_id),
            "attention_mask": _padded([[1] * length for length in lengths], longest, 0),
        }
        if self.takes_position_ids:
            inputs["position_ids"] = torch.arange(longest).repeat(len(rows), 1)
        types = [row.token_type_ids for row in rows if row.token_type_ids is not None]
        if types and self.takes_token_types:
            inputs["token_type_ids"] = _padded(types, longest, 0)
        return inputs

    def _text(
        self, rows: Sequence[TokenizedExample], longest: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the labels of texts, and the decoder input: the labels shifted by one position."""
        targets = [[int(label) for label in row.labels] for row in rows]
        if self.kind != SEQ2SEQ:
            return _padded(targets, longest, IGNORED_LABEL), {}
        longest = self.padded_length(max(len(target) for target in targets))
        shifted = [[self.decoder_start_token_id, *target[:-1]] for target in targets]
        decoder = {"decoder_input_ids": _padded(shifted, longest, self.pad_token_id)}
        return _padded(targets, longest, IGNORED_LABEL), decoder


def _padded(rows: Sequence[list[int]], length: int, value: int) -> Tensor:
    """Return the rows as one int64 tensor, shape (b, length), padded with ``value``."""
    return torch.tensor([row + [value] * (length - len(row)) for row in rows])


def synthetic_rows(
    layout: TextLayout, count: int, longest: int, *, vocab_size: int, ragged: bool = True
) -> list[TokenizedExample]:
    """Return ``count`` random rows of at most ``longest`` tokens, the same on every call.

    A model is tested with these rows before it reads any record. The rows need no tokenizer, and
    depend on the data only through the layout. If ``ragged``, the rows have different lengths.
    """
    generator = torch.Generator().manual_seed(0)
    rows = []
    for number in range(count):
        shortened = number * longest // (count + 1) if ragged else 0
        length = max(2, longest - shortened)
        ids = torch.randint(0, vocab_size, (length,), generator=generator).tolist()
        ids = [token if token != layout.pad_token_id else (token + 1) % vocab_size for token in ids]
        row = _row(layout, ids, generator)
        if layout.kind == CLASSIFIER and layout.takes_token_types:  # two sentences
            first = len(row.input_ids) // 2
            types = [0] * first + [1] * (len(row.input_ids) - first)
            row = replace(row, token_type_ids=types)
        rows.append(row)
    return rows


def _row(layout: TextLayout, ids: list[int], generator: torch.Generator) -> TokenizedExample:
    half = len(ids) // 2
    if layout.answer in (LABEL_WORDS, CLASSES):
        count = len(layout.words) if layout.answer == LABEL_WORDS else layout.outputs
        labels = torch.rand(count, generator=generator).softmax(0).tolist()
        answer = half if layout.kind == MASKED else len(ids) - 1
        return TokenizedExample(input_ids=ids, labels=labels, answer=answer)
    if layout.answer == SCORE:
        labels = torch.rand(1, generator=generator).tolist()
        return TokenizedExample(input_ids=ids, labels=labels)
    if layout.kind == SEQ2SEQ:
        return TokenizedExample(input_ids=ids, labels=ids[half:])
    return TokenizedExample(input_ids=ids, labels=[IGNORED_LABEL] * half + ids[half:])


def micro_batches(
    examples: Sequence[Any],
    indices: Iterable[int],
    *,
    micro_batch_size: int,
    layout: Layout,
    micro_batch_tokens: int | None = None,
    units: Sequence[Sequence[int]] | None = None,
    share: RankShare = EVERYTHING,
) -> Iterator[Batch]:
    """Yield the drawn examples as micro-batches, sorted to reduce padding.

    Filler rows (``Batch.is_filler``) give each unit of a micro-batch as many rows as the largest
    unit of the micro-batch has. Units are sorted by their number of rows and then by length, in
    descending order.

    Args:
        examples: The data set.
        indices: The logical batch: positions in ``units`` or, without ``units``, in ``examples``.
            An empty batch yields nothing. The indices are private and never stored.
        micro_batch_size: Maximum number of rows in a micro-batch, including filler rows; a
            micro-batch may have fewer. Must be at least the size of the largest unit.
        layout: Layout of rows in a batch, which also determines the padded length.
        micro_batch_tokens: Maximum number of rows times tokens of a padded row in a micro-batch, in
            addition to ``micro_batch_size``. Must be large enough for the largest unit with rows of
            maximum length. None: no limit.
        units: Positions in ``examples`` of each privacy unit's records; a unit without records is
            skipped. None: each example is a unit.
        share: Share of the micro-batches to yield, which are distributed by their padded tokens.
    """
    if units is None:
        drawn = [[examples[int(index)]] for index in indices]
    else:
        drawn = [[examples[at] for at in units[int(index)]] for index in indices]
    drawn = [rows for rows in drawn if rows]
    drawn.sort(key=lambda rows: (len(rows), max(map(layout.length, rows))), reverse=True)

    def fits(rows: int, longest: int) -> bool:
        tokens = rows * layout.rows_per_record * layout.padded_length(longest)
        return rows <= micro_batch_size and tokens <= (micro_batch_tokens or tokens)

    pieces = list(_pieces(drawn, layout.longest, fits))
    for at in share.of([_tokens(piece, layout) for piece in pieces]):
        yield collated_units(pieces[at], layout)


def collated_units(units: Sequence[Sequence[Any]], layout: Layout) -> Batch:
    """Return the rows of privacy units as one batch, with filler rows in smaller units.

    Args:
        units: Rows of each unit, at least one.
        layout: Layout of rows in a batch.

    Returns:
        Batch of ``len(units) * rows_per_unit`` rows. The rows of a unit are contiguous, and its
        filler rows come last.
    """
    rows, each = layout.collate([row for unit in units for row in unit]), layout.rows_per_record
    counts, most = [len(unit) for unit in units], max(map(len, units))
    rows = replace(rows, rows_per_unit=most * each)
    if min(counts) == most:
        return rows
    ends = accumulate(counts)
    places = [
        each * (end - count + min(record, count - 1)) + row
        for end, count in zip(ends, counts, strict=True)
        for record in range(most)
        for row in range(each)
    ]
    is_filler = torch.tensor(
        [record >= count for count in counts for record in range(most) for _ in range(each)]
    )
    index = torch.tensor(places)
    batch: Batch = pytree.tree_map(lambda tensor: tensor[index], rows)
    weights = torch.ones(len(batch)) if batch.weights is None else batch.weights
    return replace(batch, weights=weights.masked_fill(is_filler, 0.0))


def _tokens(piece: Sequence[list[Any]], layout: Layout) -> int:
    """Return the number of tokens of a micro-batch, including padding and filler rows."""
    rows = [row for unit in piece for row in unit]
    records = len(piece) * max(map(len, piece))
    return records * layout.rows_per_record * layout.padded_length(layout.longest(rows))


def _pieces(
    units: Sequence[list[Any]],
    longest_of: Callable[[Sequence[Any]], int],
    fits: Callable[[int, int], bool],
) -> Iterator[list[list[Any]]]:
    """Yield the units in order, in pieces with as many units as ``fits`` allows."""
    piece: list[list[Any]] = []
    most = longest = 0
    for unit in units:
        larger, longer = max(most, len(unit)), max(longest, longest_of(unit))
        if piece and not fits((len(piece) + 1) * larger, longer):
            yield piece
            piece, larger, longer = [], len(unit), longest_of(unit)
        piece.append(unit)
        most, longest = larger, longer
    if piece:
        yield piece
