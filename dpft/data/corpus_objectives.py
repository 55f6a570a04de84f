"""Training objectives on a corpus: causal, prefix, span corruption (T5), masked tokens (BERT).

Records are never packed together. A chunk belongs to one record, and the number of chunks per
record is limited, so that hiding a record hides all its chunks. Ponomareva et al. 2022 concatenate
records instead. The objectives `SpanCorruption` (T5) and `MaskedTokens` (BERT) hide new spans or
tokens each time a record is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import shake_256

import numpy as np
from numpy.typing import NDArray

from dpft.constants import CAUSAL, GAP, IGNORED_LABEL, MASKED
from dpft.data.batches import Bits, RowView
from dpft.data.encoding import TokenEncoding, TokenRows
from dpft.data.tokenization import TokenizedExample, special_ids, start_id, token_ids
from dpft.errors import InputError
from dpft.tasks.base import Example

WORD_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class SpanCorruption(RowView):
    """T5's objective: hidden spans of a text are learned (Raffel et al. 2020, section 3.3.4).

    In the input, a sentinel replaces each hidden span. The target contains each sentinel followed
    by its span. Input and target end with the end-of-text token. Hidden spans and the text between
    them are cut at places drawn uniformly among all possible places. The first span is visible and
    the last span is hidden, as in T5.
    """

    noise_density: float
    """Fraction of the tokens that are hidden."""
    mean_span: float
    """Average number of tokens of a hidden span."""
    sentinels: tuple[int, ...]
    """Token ids of the sentinels, in the order of their occurrence in a text."""
    end: int
    """The end-of-text token."""

    def __call__(self, row: TokenizedExample, bits: Bits) -> TokenizedExample:
        """See ``RowView.__call__``."""
        ids = row.input_ids
        spans = hidden_spans(
            len(ids), density=self.noise_density, mean_span=self.mean_span, bits=bits
        )
        read: list[int] = []
        target: list[int] = []
        at = 0
        for sentinel, (start, stop) in zip(self.sentinels, spans, strict=False):
            read += [*ids[at:start], sentinel]
            target += [sentinel, *ids[start:stop]]
            at = stop
        return TokenizedExample(
            input_ids=[*read, self.end], labels=[*target, self.end], truncated=row.truncated
        )


@dataclass(frozen=True, kw_only=True)
class MaskedTokens(RowView):
    """BERT's objective: hidden tokens of a text are learned (Devlin et al. 2019, section 3.1).

    Among the chosen tokens, 80 % are masked, 10 % are replaced by a random token, and 10 % stay.
    """

    noise_density: float
    """Probability with which a token is chosen; at least one token is chosen."""
    mask: int
    special: frozenset[int]
    """Tokens that are never chosen."""
    vocab_size: int

    def __call__(self, row: TokenizedExample, bits: Bits) -> TokenizedExample:
        """See ``RowView.__call__``."""
        ids = np.array(row.input_ids)
        words = np.frombuffer(bits(3 * WORD_BYTES * len(ids)), np.uint64).reshape(3, len(ids))
        chance, kind = (words[:2] >> np.uint64(11)) * 2.0**-53
        free = np.array([token not in self.special for token in row.input_ids])
        chance = np.where(free, chance, 2.0)
        chosen = (chance < self.noise_density) | (free & (chance == chance.min()))
        others = (words[2] % np.uint64(self.vocab_size)).astype(np.int64)
        read = np.where(kind < 0.8, self.mask, np.where(kind < 0.9, others, ids))
        return TokenizedExample(
            input_ids=np.where(chosen, read, ids).tolist(),
            labels=np.where(chosen, ids, IGNORED_LABEL).tolist(),
            truncated=row.truncated,
        )


def hidden_spans(
    length: int, *, density: float, mean_span: float, bits: Bits
) -> list[tuple[int, int]]:
    """Return the start and end of T5's hidden spans in order; the last span ends the text."""
    hidden, count = noise_of(length, density=density, mean_span=mean_span)
    words = np.frombuffer(bits(WORD_BYTES * length), np.uint64)
    kept = _segments(length - hidden, count, words[hidden:])
    gone = _segments(hidden, count, words[:hidden])
    stops = np.cumsum(np.add(kept, gone)).tolist()
    return [(stop - goes, stop) for stop, goes in zip(stops, gone, strict=True)]


def noise_of(length: int, *, density: float, mean_span: float) -> tuple[int, int]:
    """Return the number of hidden tokens of a text, and the number of hidden spans.

    >>> noise_of(568, density=0.15, mean_span=3.0)
    (85, 28)
    """
    if length < 2:
        return length, 1
    hidden = min(max(round(length * density), 1), length - 1)
    spans = max(round(hidden / mean_span), 1)
    return hidden, min(spans, length - hidden)


def corrupted_lengths(length: int, *, density: float, mean_span: float) -> tuple[int, int]:
    """Return the number of tokens of the input and of the target, for a text of ``length`` tokens.

    >>> corrupted_lengths(568, density=0.15, mean_span=3.0)
    (512, 114)
    """
    hidden, spans = noise_of(length, density=density, mean_span=mean_span)
    return length - hidden + spans + 1, hidden + spans + 1


def raw_length(longest: int, *, density: float, mean_span: float) -> int:
    """Return the length of the longest text whose input and target have at most ``longest`` tokens.

    >>> raw_length(512, density=0.15, mean_span=3.0)
    568
    """
    length = 1
    while max(corrupted_lengths(length + 1, density=density, mean_span=mean_span)) <= longest:
        length += 1
    return length


def _segments(items: int, count: int, words: NDArray[np.uint64]) -> list[int]:
    """Return the lengths of ``count`` segments into which ``items`` items are cut.

    No segment is empty unless ``items`` is 0. All ways of cutting are equally likely.
    """
    if items == 0:
        return [0] * count
    cuts = np.sort(np.argsort(words[: items - 1], kind="stable")[: count - 1]) + 1
    lengths: list[int] = np.diff(np.concatenate(([0], cuts, [items]))).tolist()
    return lengths


NOISE_DENSITY, MEAN_SPAN = 0.15, 3.0
"""Fraction of hidden tokens, in T5 (Raffel et al. 2020) and in BERT, and mean span of T5."""


@dataclass(frozen=True, kw_only=True)
class CorpusEncoding(TokenEncoding):
    """Encoding of texts without prompts, in chunks, for one objective."""

    span_corruption: bool = False
    """For a seq2seq model: hide spans instead of predicting the rest of a text from its
    beginning."""
    chunks: int = 1
    """Maximum number of chunks of a record; the rest of a longer record is cut."""

    def __post_init__(self) -> None:
        """Reject a tokenizer that has too few sentinels for the hidden spans."""
        if self.span_corruption and len(self.sentinels) < self._most_spans:
            raise InputError(
                f"task.objective=span_corruption needs {self._most_spans} sentinels (<extra_id_0>"
                f" and so on) for task.max_length={self.max_length}, but the tokenizer has"
                f" {len(self.sentinels)}. Make a tokenizer with dpft tokenizer, or lower"
                " task.max_length.",
                key="task.objective",
                value="span_corruption",
            )

    @property
    def raw_length(self) -> int:
        """Number of tokens of the longest chunk."""
        kind = self.layout.kind
        if self.span_corruption:
            return raw_length(self.max_length, density=NOISE_DENSITY, mean_span=MEAN_SPAN)
        if kind == CAUSAL:
            return self.max_length - 1
        if kind == MASKED:
            return self.max_length - len(self.around[0]) - len(self.around[1])
        return self.max_length + self._written

    @property
    def view(self) -> RowView | None:
        """Random view of a row, drawn for each use; None if the model reads the row itself."""
        if self.span_corruption:
            return SpanCorruption(
                noise_density=NOISE_DENSITY,
                mean_span=MEAN_SPAN,
                sentinels=self.sentinels,
                end=self.end,
            )
        if self.layout.kind != MASKED:
            return None
        return MaskedTokens(
            noise_density=NOISE_DENSITY,
            mask=int(self.tokenizer.mask_token_id),
            special=frozenset(self.tokenizer.all_special_ids),
            vocab_size=len(self.tokenizer),
        )

    def rows(self, examples: Sequence[Example]) -> list[TokenizedExample]:
        """Return the first chunk of each text for scoring, always in the same view."""
        rows = [chunks[0] for chunks in self._chunks(examples)]
        view = self.view
        if view is None:
            return rows
        return [view(row, public_bits(row)) for row in rows]

    def rows_together(self, examples: Sequence[Example]) -> TokenRows:
        """Return the first chunk of each text, from which ``view`` computes the model's input."""
        return TokenRows([chunks[0] for chunks in self._chunks(examples)])

    def rows_in_chunks(self, examples: Sequence[Example]) -> tuple[TokenRows, NDArray[np.int64]]:
        """See ``Encoding.rows_in_chunks``."""
        chunked = self._chunks(examples)
        counts = np.fromiter(map(len, chunked), np.int64, len(chunked))
        return TokenRows([row for chunks in chunked for row in chunks]), counts

    def prompts(
        self, examples: Sequence[Example], *, max_length: int, max_new_tokens: int
    ) -> list[list[int]]:
        """Return the token ids of prompts for generation.

        If a prompt is too long, its first tokens are cut. In a text with gaps (``GAP``), a sentinel
        replaces each gap. Text before a gap loses its trailing blanks, because a filling begins
        with a blank.

        Args:
            examples: Records, whose targets are not read.
            max_length: Maximum number of tokens of prompt and answer together, for a causal model.
            max_new_tokens: Maximum number of tokens of the answer.

        Raises:
            InputError: The model fills gaps, and a text is too long or has no gaps or more gaps
                than sentinels.
        """
        if self.span_corruption:
            return [self._with_gaps(example.prompt) for example in examples]
        prompts = token_ids([example.prompt for example in examples], self.tokenizer)
        if self.layout.kind != CAUSAL:
            return [prompt[-self.max_length :] for prompt in prompts]
        start, room = start_id(self.tokenizer), max_length - max_new_tokens - 1
        return [[start, *(prompt[-room:] if room > 0 else [])] for prompt in prompts]

    @property
    def asked_sentinels(self) -> tuple[int, ...]:
        """Sentinel tokens for the gaps of a prompt, in order; empty if prompts have no gaps."""
        return self.sentinels if self.span_corruption else ()

    def _with_gaps(self, text: str) -> list[int]:
        pieces = GAP.split(text)
        gaps = len(pieces) - 1
        if not gaps:
            raise InputError(
                "a model of task.objective=span_corruption generates only text for gaps (____), got"
                " a text without gaps. Score such texts by likelihood.",
                key="task.objective",
                value="span_corruption",
                hint="'task.metrics=[perplexity,token_accuracy]'",
            )
        if gaps > len(self.sentinels):
            raise InputError(
                f"prompts must have at most {len(self.sentinels)} gaps (____) in a text (the"
                f" maximum with task.max_length={self.max_length}), got {gaps}. Use fewer gaps.",
                key="prompts",
                value=gaps,
            )
        stripped = [*(piece.rstrip() for piece in pieces[:-1]), pieces[-1]]
        *before, last = token_ids(stripped, self.tokenizer)
        read = [
            token
            for piece, sentinel in zip(before, self.sentinels, strict=False)
            for token in (*piece, sentinel)
        ]
        read += [*last, self.end]
        if len(read) > self.max_length:
            raise InputError(
                f"prompts must have at most task.max_length ({self.max_length}) tokens in a text"
                f" with gaps, got {len(read)}. Shorten the text.",
                key="prompts",
                value=len(read),
            )
        return read

    def _chunks(self, examples: Sequence[Example]) -> list[list[TokenizedExample]]:
        texts = token_ids([example.target for example in examples], self.tokenizer)
        return [self._of_text(ids) for ids in texts]

    def _of_text(self, ids: Sequence[int]) -> list[TokenizedExample]:
        ends = self.layout.kind != MASKED and not self.span_corruption
        whole, size = [*ids, *([self.end] if ends else [])], self.raw_length
        pieces = [whole[at : at + size] for at in range(0, max(1, len(whole)), size)]
        if ends and len(pieces) > 1 and pieces[-1] == [self.end]:
            del pieces[-1]  # A chunk with only the end-of-text token teaches nothing.
        kept = pieces[: self.chunks]
        is_cut = len(kept) < len(pieces)
        return [
            self._row(piece, truncated=is_cut and number == len(kept) - 1)
            for number, piece in enumerate(kept)
        ]

    def _row(self, ids: list[int], *, truncated: bool) -> TokenizedExample:
        kind = self.layout.kind
        if self.span_corruption:
            return TokenizedExample(input_ids=ids, labels=ids, truncated=truncated)
        if kind == MASKED:
            before, after = self.around
            read = [*before, *ids, *after]
            return TokenizedExample(input_ids=read, labels=read, truncated=truncated)
        if kind == CAUSAL:
            start = start_id(self.tokenizer)
            learned = [IGNORED_LABEL] if ids == [self.end] else ids
            return TokenizedExample(
                input_ids=[start, *ids], labels=[IGNORED_LABEL, *learned], truncated=truncated
            )
        split = max(1, round(len(ids) * self.max_length / self.raw_length))
        split = min(split, max(1, len(ids) - 1))
        return TokenizedExample(
            input_ids=ids[:split], labels=ids[split:] or [IGNORED_LABEL], truncated=truncated
        )

    @property
    def _written(self) -> int:
        """Number of target tokens after a prefix: the same number as with span corruption."""
        longest = raw_length(self.max_length, density=NOISE_DENSITY, mean_span=MEAN_SPAN)
        return corrupted_lengths(longest, density=NOISE_DENSITY, mean_span=MEAN_SPAN)[1]

    @property
    def _most_spans(self) -> int:
        longest = raw_length(self.max_length, density=NOISE_DENSITY, mean_span=MEAN_SPAN)
        return noise_of(longest, density=NOISE_DENSITY, mean_span=MEAN_SPAN)[1]

    @property
    def end(self) -> int:
        """The end-of-text token."""
        return int(self.tokenizer.eos_token_id)

    @property
    def sentinels(self) -> tuple[int, ...]:
        """Tokens that represent hidden spans, in order, as many as the longest text may need."""
        names = [f"<extra_id_{number}>" for number in range(self._most_spans)]
        added_tokens = self.tokenizer.get_added_vocab()
        return tuple(added_tokens[name] for name in names if name in added_tokens)

    @property
    def around(self) -> tuple[list[int], list[int]]:
        """Tokens before and after a text, such as [CLS] and [SEP]."""
        return special_ids(self.tokenizer)


def public_bits(row: TokenizedExample) -> Bits:
    """Return bits that depend only on the row, so that a score does not change by chance."""
    content = np.array(row.input_ids, np.int64).tobytes()
    return lambda size: shake_256(content).digest(size)
