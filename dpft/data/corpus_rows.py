"""A corpus's texts as rows: cut into chunks within a record, and read by an objective.

Records are never packed together: a chunk is of one record, and a record has no more chunks than
are asked for, so that what hides a record hides all of them (Ponomareva et al. 2022 concatenate).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import shake_256

import numpy as np
from numpy.typing import NDArray

from dpft.data.encoding import TokenEncoding
from dpft.data.token_rows import TokenRows
from dpft.data.tokenization import TokenizedExample, start_id, token_ids
from dpft.data.views import (
    Bits,
    MaskedTokens,
    SpanCorruption,
    View,
    corrupted_lengths,
    noise_of,
    raw_length,
)
from dpft.errors import InputError
from dpft.kinds import CAUSAL, GAP, IGNORED_LABEL, MASKED
from dpft.tasks.records import Example

NOISE_DENSITY, MEAN_SPAN = 0.15, 3.0
"""T5's (Raffel et al. 2020), and BERT's share of masked tokens."""


@dataclass(frozen=True, kw_only=True)
class CorpusEncoding(TokenEncoding):
    """Texts without prompts, in chunks, by an objective."""

    span_corruption: bool = False
    """For a seq2seq model: hide spans, in place of reading a beginning and writing what follows."""
    chunks: int = 1
    """Most chunks of a record; what is left of a longer one is cut."""

    def __post_init__(self) -> None:
        """Refuses a tokenizer that cannot name what is hidden.

        Raises:
            InputError: It has too few sentinels.
        """
        if self.span_corruption and len(self.sentinels) < self._most_spans:
            raise InputError(
                f"task.objective=span_corruption needs {self._most_spans} sentinels, <extra_id_0>"
                f" and so on, for task.max_length={self.max_length}, got a tokenizer with"
                f" {len(self.sentinels)}; make one by dpft tokenizer, or lower task.max_length."
            )

    @property
    def raw_length(self) -> int:
        """Tokens of the longest chunk."""
        kind = self.layout.kind
        if self.span_corruption:
            return raw_length(self.max_length, density=NOISE_DENSITY, mean_span=MEAN_SPAN)
        if kind == CAUSAL:
            return self.max_length - 1
        if kind == MASKED:
            return self.max_length - len(self.around[0]) - len(self.around[1])
        return self.max_length + self._written

    @property
    def view(self) -> View | None:
        """What is read of a row, drawn anew each time; None where it is the row itself."""
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
        """Returns the first chunk of each text as it is read to be scored: one view, always."""
        rows = [chunks[0] for chunks in self._chunks(examples)]
        view = self.view
        if view is None:
            return rows
        return [view(row, public_bits(row)) for row in rows]

    def rows_together(self, examples: Sequence[Example]) -> TokenRows:
        """Returns the first chunk of each text, of which ``view`` makes what is read."""
        return TokenRows([chunks[0] for chunks in self._chunks(examples)])

    def rows_in_chunks(self, examples: Sequence[Example]) -> tuple[TokenRows, NDArray[np.int64]]:
        """See ``Encoding.rows_in_chunks``."""
        chunked = self._chunks(examples)
        counts = np.fromiter(map(len, chunked), np.int64, len(chunked))
        return TokenRows([row for chunks in chunked for row in chunks]), counts

    def prompts(
        self, examples: Sequence[Example], *, max_length: int, max_new_tokens: int
    ) -> list[list[int]]:
        """Returns what a model that writes reads before it does, in tokens.

        A beginning that is too long loses its own beginning. A text with gaps (``GAP``) has a
        sentinel in the place of each; words before a gap lose the blank that a filling begins
        with.

        Args:
            examples: Their targets are not read.
            max_length: Most tokens of prompt and answer together, of a causal model.
            max_new_tokens: Most tokens of the answer.

        Raises:
            InputError: A text with gaps is too long, or has more of them than sentinels.
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
        """Tokens that stand for the gaps of a prompt, in order; none where it has no gaps."""
        return self.sentinels if self.span_corruption else ()

    def _with_gaps(self, text: str) -> list[int]:
        pieces = GAP.split(text)
        gaps = len(pieces) - 1
        if not gaps:
            raise InputError(
                "a model of task.objective=span_corruption writes in the gaps (____) of a text"
                " alone, got a text without; score it by task.metrics=[perplexity,token_accuracy]."
            )
        if gaps > len(self.sentinels):
            raise InputError(
                "prompts must have no more gaps (____) in a text than the model learned to fill,"
                f" {len(self.sentinels)} with task.max_length={self.max_length}, got {gaps}; give"
                " fewer."
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
                f" with gaps, got {len(read)}; shorten it."
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
            del pieces[-1]  # An end alone teaches nothing.
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
        """Tokens that follow a beginning of ``max_length``: as many as hidden spans would give."""
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
        """Tokens that stand for hidden spans, in order, as many as a text may have."""
        names = [f"<extra_id_{number}>" for number in range(self._most_spans)]
        known = self.tokenizer.get_added_vocab()
        return tuple(known[name] for name in names if name in known)

    @property
    def around(self) -> tuple[list[int], list[int]]:
        """What stands before and after a text, such as [CLS] and [SEP]."""
        whole: list[int] = self.tokenizer("")["input_ids"]
        half = len(whole) // 2
        return whole[:half], whole[half:]


def public_bits(row: TokenizedExample) -> Bits:
    """Returns bits that depend on the row alone, so that a score does not change by chance."""
    content = np.array(row.input_ids, np.int64).tobytes()
    return lambda size: shake_256(content).digest(size)
