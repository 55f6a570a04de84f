"""Decoding held to a schema's grammar: every row that a model writes is one, each value in range.

llguidance turns the pattern of a row into the tokens that may come next (chosen of three: it has no
dependencies, where xgrammar brings a compiler and outlines-core builds an index of the whole
vocabulary first). What may come next depends on little: where in which column the text is, and what
stands there so far. So the tokens are computed once for each such place and kept, and a token's
mask costs a look into a table.

A text ends where its room does: then only a quote may come, once an escape or a letter of several
bytes is whole. In columns of values the whole distribution is drawn from, since what is rare must
stay as rare as it is; in texts its nucleus.

Shapes: b rows, t tokens so far, v tokens of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedTokenizerFast, TopPLogitsWarper

from dpft.errors import InputError, RunError
from dpft.synthesis.columns import Text
from dpft.synthesis.rows import RowFormat

NEVER = float("-inf")
QUOTE, BACKSLASH = b'"'[0], b"\\"[0]
HEX_DIGITS = 4
CACHED_BYTES, CACHED_STEPS = 256 * 2**20, 10**6
Mask = NDArray[np.uint8]


@dataclass(frozen=True)
class Place:
    """Where in a row a text is: what may follow depends on this alone."""

    column: int = 0
    """Of those that are written; their number after the last one."""
    in_value: bool = False
    """Whether it is in the value, and not in what stands before it."""
    written: bytes = b""
    """What stands there so far; of a text only what is not a whole letter yet."""
    in_text: bool = False
    """Whether it is between the quotes of a text."""
    begun: bool = False
    """Whether anything was written at all."""

    def __hash__(self) -> int:
        """Returns a number computed once: places are looked up with every token."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.column, self.in_value, self.written, self.in_text, self.begun))


class RowGrammar:
    """The grammar of a format's rows, for one tokenizer; built once."""

    def __init__(self, rows: RowFormat, tokenizer: Any) -> None:
        """Compiles the grammar.

        Raises:
            InputError: The tokenizer is not a fast one, or llguidance is not installed.
            RunError: The schema's pattern is too large for llguidance.
        """
        try:
            import llguidance
            import llguidance.hf
        except ImportError:
            raise InputError(
                "dpft synthesize needs llguidance, which is not installed; install it with pip"
                " install 'dpft[synthesis]'."
            ) from None
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise InputError(
                "dpft synthesize needs a model whose tokenizer has a tokenizer.json; choose another"
                " model."
            )
        self._literals = [text.encode() for text in rows.literals]
        self._texts = [isinstance(column, Text) for column in rows.written]
        self.rooms = [c.room if isinstance(c, Text) else 0 for c in rows.written]
        self._tokens = llguidance.hf.from_tokenizer(tokenizer)
        self.end = int(tokenizer.eos_token_id)
        grammar = llguidance.grammar_from("regex", rows.pattern)
        self._start = llguidance.LLMatcher(self._tokens, grammar)
        if self._start.is_error():
            reason = " ".join(self._start.get_error().split())
            raise RunError(f"the schema makes too large a grammar ({reason[:200]}); simplify it.")
        self.size = int(self._tokens.vocab_size)
        self.bytes = [self._tokens.decode_bytes([token]) for token in range(self.size)]
        self._quotes = self._packed([text[:1] == b'"' for text in self.bytes])
        self._single = self._packed([len(text) == 1 for text in self.bytes])
        self._ends = self._packed([token == self.end for token in range(self.size)])
        self.start = Place(in_value=not self._literals[0])
        self._masks: dict[tuple[Place, bool], Mask] = {}
        self._known: dict[Place, Place] = {}
        self._after: dict[tuple[Place, int], Place] = {}
        self._room = max(64, CACHED_BYTES // (self.size // 8 + 1))

    def _packed(self, flags: Sequence[bool]) -> Mask:
        return np.packbits(np.array(flags, np.bool_), bitorder="little")

    def mask(self, place: Place, *, is_full: bool, so_far: Sequence[int]) -> Mask:
        """Returns which tokens may follow, packed, the first in the lowest bit.

        Args:
            place: Where the row is.
            is_full: Whether it is in a text that has no room left.
            so_far: The row's tokens, by which a place not seen before is found.
        """
        key = (place, is_full)
        found = self._masks.get(key)
        if found is None:
            if len(self._masks) >= self._room:
                self._masks.clear()
            found = self._masks[key] = self._computed(place, is_full, so_far)
        return found

    def _computed(self, place: Place, is_full: bool, so_far: Sequence[int]) -> Mask:
        if place.column == len(self._texts) and place.written == self._literals[-1]:
            return self._ends
        matcher = self._start.deep_copy()
        if not matcher.consume_tokens(list(so_far)) and so_far:
            raise RunError(f"the grammar refused what it allowed: {matcher.get_error()}")
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)[: len(self._ends)].copy()
        if is_full:
            held = mask & (self._single if place.written else self._quotes)
            mask = held if held.any() else mask
        return mask

    def after(self, place: Place, token: int) -> Place:
        """Returns where a row is once a token is written."""
        key = (place, token)
        found = self._after.get(key)
        if found is None:
            if len(self._after) >= CACHED_STEPS:
                self._after.clear()
            found = place
            for byte in self.bytes[token]:
                found = self._after_byte(found, byte)
            self._after[key] = found = self._known.setdefault(found, found)
        return found

    def _after_byte(self, place: Place, byte: int) -> Place:
        one = bytes([byte])
        if not place.begun:
            place = replace(place, begun=True)
            if one == b" ":
                return place
        if not place.in_value:
            written = place.written + one
            is_whole = written == self._literals[place.column]
            if is_whole and place.column < len(self._texts):
                return Place(column=place.column, in_value=True, begun=True)
            return replace(place, written=written)
        if place.in_text:
            return self._in_text(place, one)
        if self._texts[place.column] and not place.written and byte == QUOTE:
            return replace(place, in_text=True)
        following = self._literals[place.column + 1]
        if one == following[:1] and (place.written[:1] != b'"' or _is_closed(place.written)):
            return self._after_byte(Place(column=place.column + 1, begun=True), byte)
        return replace(place, written=place.written + one)

    def _in_text(self, place: Place, one: bytes) -> Place:
        """Returns where a row is after a byte of a text, of which only a torn letter is kept."""
        torn = place.written
        if not torn and one[0] == QUOTE:
            return Place(column=place.column, in_value=True, written=b'""', begun=True)
        torn += one
        if torn[0] == BACKSLASH:
            is_whole = len(torn) == 2 + HEX_DIGITS if torn[1:2] == b"u" else len(torn) == 2
        else:
            is_whole = _is_letter(torn)
        return replace(place, written=b"" if is_whole else torn)


def _is_closed(written: bytes) -> bool:
    """Returns whether a JSON string is over, of a value that is no free text."""
    if len(written) < 2 or written[-1] != QUOTE:
        return False
    before = written[1:-1]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 0


def _is_letter(torn: bytes) -> bool:
    try:
        torn.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


@dataclass
class _RowState:
    place: Place
    tokens: list[int] = field(default_factory=list)
    in_text: int = 0
    """Tokens of the text that the row is in."""
    is_over: bool = False


class RowConstraint(LogitsProcessor):
    """Lets a batch's rows be nothing but rows, and draws texts from their nucleus."""

    def __init__(self, grammar: RowGrammar, rows: int, *, before: int, top_p: float) -> None:
        """Takes a batch that begins."""
        self._grammar, self._before = grammar, before
        self._states = [_RowState(grammar.start) for _ in range(rows)]
        self._nucleus = TopPLogitsWarper(top_p) if top_p < 1 else None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Returns the logits, shape (b, v), minus infinity for what cannot follow.

        Args:
            input_ids: All tokens so far, shape (b, t).
            scores: Logits of the next one, shape (b, v).
        """
        if input_ids.shape[1] > self._before:
            for state, token in zip(self._states, input_ids[:, -1].tolist(), strict=True):
                self._advance(state, token)
        packed = np.stack([self._mask(state) for state in self._states])
        allowed = np.zeros(scores.shape, np.bool_)
        bits = np.unpackbits(packed, axis=1, bitorder="little", count=self._grammar.size)
        width = min(scores.shape[1], self._grammar.size)
        allowed[:, :width] = bits[:, :width]
        held = scores.masked_fill(~torch.from_numpy(allowed).to(scores.device), NEVER)
        if self._nucleus is None:
            return held
        in_text = torch.tensor([state.place.in_text for state in self._states])
        if not in_text.any():
            return held
        cut = self._nucleus(input_ids, held)
        return torch.where(in_text[:, None].to(scores.device), cut, held)

    def _advance(self, state: _RowState, token: int) -> None:
        if state.is_over:
            return
        if token == self._grammar.end:
            state.is_over = True
            return
        state.tokens.append(token)
        before, state.place = state.place, self._grammar.after(state.place, token)
        stays = state.place.in_text and before.column == state.place.column
        state.in_text = state.in_text + 1 if stays and before.in_text else int(stays)

    def _mask(self, state: _RowState) -> Mask:
        grammar = self._grammar
        if state.is_over:
            return grammar._ends
        place = state.place
        is_full = place.in_text and state.in_text >= grammar.rooms[place.column]
        return grammar.mask(place, is_full=is_full, so_far=state.tokens)
