"""Encodings of labeled texts for a classification head, or for text infilling with label words.

`SentenceEncoding` encodes one or two sentences for a model with a classification head.
`LabelWordEncoding` fills a template that has a place for a label word (Li et al. 2022, section 4
and Table 10).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from dpft.constants import CAUSAL, MASKED, SCORE
from dpft.data.encoding import TokenEncoding
from dpft.data.tokenization import TokenizedExample, lost_a_part, special_ids, token_ids
from dpft.errors import InputError
from dpft.tasks.base import LabeledExample, TemplateSegment


@dataclass(frozen=True, kw_only=True)
class SentenceEncoding(TokenEncoding):
    """Encoding of sentences with the tokenizer's special tokens around and between them."""

    def rows(self, examples: Sequence[LabeledExample]) -> list[TokenizedExample]:
        """See ``Encoding.rows``; a long row loses tokens at the end of its longer sentence."""
        if not examples:
            return []
        if self.tokenizer.sep_token_id is None:  # no separator token: join the sentences as lines
            columns = [["\n".join(example.texts) for example in examples]]
        else:
            columns = [list(column) for column in zip(*(e.texts for e in examples), strict=True)]
        texts = len(columns)
        least = self.tokenizer.num_special_tokens_to_add(pair=texts > 1) + texts
        if self.max_length < least:
            raise InputError(
                f"task.max_length must be at least {least}, because each text needs a token and the"
                f" tokenizer adds special tokens, got {self.max_length}.",
                key="task.max_length",
                value=self.max_length,
                hint=f"task.max_length={least}",
            )
        options: dict[str, Any] = {"padding": False, "split_special_tokens": True, "verbose": False}
        encoded = self.tokenizer(
            *columns, truncation="longest_first", max_length=self.max_length, **options
        )
        types = encoded.get("token_type_ids", [None] * len(examples))

        def read_whole(places: Sequence[int]) -> Any:
            subset = ([column[at] for at in places] for column in columns)
            return self.tokenizer(*subset, **options)["input_ids"]

        return [
            TokenizedExample(
                # Without special tokens, an empty text gives no token, but a row needs at least
                # one.
                input_ids=ids or [self.layout.pad_token_id],
                labels=self._labels(example.label),
                token_type_ids=kind,
                truncated=is_cut,
            )
            for example, ids, kind, is_cut in zip(
                examples,
                encoded["input_ids"],
                types,
                lost_a_part(encoded["input_ids"], self.max_length, read_whole),
                strict=True,
            )
        ]

    def _labels(self, label: float) -> list[float]:
        if self.layout.answer == SCORE:
            return [label]
        return [float(index == label) for index in range(self.layout.outputs)]


BLANKS = ("\u2581", "\u0120")
"""Prefixes of a token for the blank before a word, in SentencePiece and byte-level tokenizers."""


@dataclass(frozen=True, kw_only=True)
class LabelWordEncoding(TokenEncoding):
    """Encoding of filled templates, for language models."""

    pieces: Callable[[LabeledExample], Sequence[TemplateSegment]]
    """Function that returns the filled template of a record."""
    distribution: Callable[[float], Sequence[float]]
    """Function that maps a label to the probabilities of the label words."""

    def rows(self, examples: Sequence[LabeledExample]) -> list[TokenizedExample]:
        """See ``Encoding.rows``."""
        filled = [
            [p for p in self.pieces(e) if (self.layout.kind == MASKED or not p.is_mask)]
            for e in examples
        ]
        texts = [piece.text for pieces in filled for piece in pieces]
        ids = iter(token_ids(texts, self.tokenizer))
        around = special_ids(self.tokenizer)
        return [
            self._row(example, pieces, [next(ids) for _ in pieces], around)
            for example, pieces in zip(examples, filled, strict=True)
        ]

    def _row(
        self,
        example: LabeledExample,
        pieces: Sequence[TemplateSegment],
        ids: list[list[int]],
        around: tuple[list[int], list[int]],
    ) -> TokenizedExample:
        start, end = around
        # The answer of a causal model follows the text directly, without a token in between.
        end = [] if self.layout.kind == CAUSAL else end
        mask = self.tokenizer.mask_token_id
        ids = [[mask] if p.is_mask else part for p, part in zip(pieces, ids, strict=True)]
        room = self.max_length - len(start) - len(end)
        cut = cut_longest(pieces, ids, room)
        whole = start + sum(cut, []) + end or [self.layout.pad_token_id]
        answer = len(whole) - 1
        if self.layout.kind == MASKED:
            before = next(index for index, piece in enumerate(pieces) if piece.is_mask)
            answer = len(start) + sum(map(len, cut[:before]))
        labels = [float(share) for share in self.distribution(example.label)]
        return TokenizedExample(
            input_ids=whole, labels=labels, answer=answer, truncated=sum(map(len, ids)) > room
        )


def cut_longest(
    pieces: Sequence[TemplateSegment], ids: Sequence[list[int]], room: int
) -> list[list[int]]:
    """Return the tokens of the pieces; while they exceed ``room``, the longest text loses its end.

    Raises:
        InputError: The template without its texts is longer than ``room``.
    """
    texts = [index for index, piece in enumerate(pieces) if piece.may_be_cut]
    lengths = [len(part) for part in ids]
    fixed = sum(lengths) - sum(lengths[index] for index in texts)
    if fixed > room:
        raise InputError(
            f"task.max_length must leave room for the {fixed} tokens of the template, got room for"
            f" {room}. Increase task.max_length.",
            key="task.max_length",
        )
    while sum(lengths) > room:
        longest = max(texts, key=lambda index: lengths[index])
        lengths[longest] -= 1
    return [part[:length] for part, length in zip(ids, lengths, strict=True)]


def label_word_ids(
    words: Sequence[str], tokenizer: PreTrainedTokenizerBase, *, after_blank: bool
) -> tuple[int, ...]:
    """Return the token of each label word, as it occurs in the template.

    Raises:
        InputError: A word splits into several tokens, is unknown, or shares its token with another
            word.
    """
    ids: dict[int, str] = {}
    for word in words:
        token = _single_token(word, tokenizer, after_blank)
        if token in ids:
            raise InputError(
                f"task.label_words must be different tokens, got {ids[token]!r} and {word!r}, which"
                " share one. Choose other words.",
                key="task.label_words",
                value=word,
            )
        ids[token] = word
    return tuple(ids)


def _single_token(word: str, tokenizer: PreTrainedTokenizerBase, after_blank: bool) -> int:
    spelled, bare = token_ids([f" {word}" if after_blank else word, word], tokenizer)
    if len(spelled) == 1 and spelled[0] != tokenizer.unk_token_id:
        return spelled[0]
    names = tokenizer.convert_ids_to_tokens(bare)
    # Some tokenizers put a blank before every text. A second blank would be a separate token.
    if len(bare) == 1 and names[0].startswith(BLANKS):
        return bare[0]
    names = tokenizer.convert_ids_to_tokens(spelled)
    raise InputError(
        f"each of task.label_words must be one token of the model's tokenizer, got {word!r}, which"
        f" is {' + '.join(map(repr, names)) or 'no token'}. Choose a shorter or more common word.",
        key="task.label_words",
        value=word,
    )
