"""Rows of records, split into a visible prompt and a hidden part, for audit=memorization.

A record is tested as the rows of tokens that were trained on, without the end-of-text token. Each
chunk of a record in chunks is a row.

- **continuation**: the model receives the first ``prefix_tokens`` tokens. All tokens that the model
  did not learn to generate (the prompt, unless ``task.learn_prompt``) are always part of the
  prefix. If a row has no more than ``prefix_tokens`` tokens, the prefix is its first half. A
  seq2seq model reads the prompt as in training, and its decoder receives the rest of the prefix as
  already generated tokens. Texts of a corpus have no prompt, so a seq2seq model reads the whole
  prefix. If such a text is short, the model reads the same part of the text as in training.
- **spans**: the model reads the row without some hidden spans. Their positions are drawn as in T5,
  from randomness that depends only on the row's tokens. A seq2seq model generates each span after
  its sentinel. A masked model fills all masks at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dpft.audit.base import CONTINUATION, SPANS, HiddenPart
from dpft.constants import (
    IGNORED_LABEL,
    MASKED,
    SEQ2SEQ,
)
from dpft.data.corpus_objectives import (
    MEAN_SPAN,
    NOISE_DENSITY,
    CorpusEncoding,
    hidden_spans,
    public_bits,
)
from dpft.data.encoding import TokenEncoding
from dpft.data.tokenization import TokenizedExample
from dpft.errors import InputError
from dpft.generation.decoding import DecodingPrompt
from dpft.tasks.base import Example

Tokens = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PromptedRow:
    """A row that is split into a visible part and a hidden part."""

    record: int
    """Index of the record of the row."""
    beginning: DecodingPrompt
    """The tokens that the model reads, with the maximum number of tokens to generate."""
    targets: tuple[Tokens, ...]
    """The spans that the model must generate, in order: one continuation, or the hidden spans.
    There is at least one span, and no span is empty."""
    sentinels: Tokens = ()
    """Tokens that precede each span in the model's output; empty if the spans follow each other
    directly."""

    def written(self, tokens: Sequence[int]) -> list[Tokens]:
        """Return the tokens that a model generated for each span; empty for a skipped span."""
        if not self.sentinels:
            starts = [sum(map(len, self.targets[:at])) for at in range(len(self.targets))]
            stops = [*starts[1:], len(tokens)]
            return [tuple(tokens[a:b]) for a, b in zip(starts, stops, strict=True)]
        places = [at for at, token in enumerate(tokens) if token in self.sentinels]
        by_sentinel: dict[int, Tokens] = {}
        for start, stop in zip(places, [*places, len(tokens)][1:], strict=True):
            by_sentinel.setdefault(tokens[start], tuple(tokens[start + 1 : stop]))
        return [by_sentinel.get(sentinel, ()) for sentinel in self.sentinels[: len(self.targets)]]


def hidden_part(hidden: HiddenPart | None, encoding: TokenEncoding) -> HiddenPart:
    """Return the part of a record to hide from the model; None means the part hidden in training.

    Raises:
        InputError: The model has not learned to generate this part.
    """
    is_masked = encoding.layout.kind == MASKED
    fills_spans = is_masked or (isinstance(encoding, CorpusEncoding) and encoding.span_corruption)
    hidden = hidden or (SPANS if fills_spans else CONTINUATION)
    if hidden == SPANS and not fills_spans:
        raise InputError(
            "audit.hidden=spans needs a model that fills spans, trained with"
            " task.objective=span_corruption or mlm.",
            key="audit.hidden",
            value=hidden,
            hint="audit.hidden=null",
        )
    if hidden == CONTINUATION and is_masked:
        raise InputError(
            "audit.hidden=continuation needs a generative model, got a masked language model,"
            " which fills spans.",
            key="audit.hidden",
            value=hidden,
            hint="audit.hidden=null",
        )
    return hidden


def prompted_rows(
    records: Sequence[Example],
    encoding: TokenEncoding,
    *,
    hidden: HiddenPart | None = None,
    prefix_tokens: int,
    continuation_tokens: int,
    rows: Sequence[Sequence[int]] | None = None,
) -> list[PromptedRow]:
    """Return the rows of records, each split into two parts; skip rows with nothing to generate.

    Args:
        records: Records of a text task.
        encoding: The encoding of records as rows in training.
        hidden: See ``hidden_part``.
        prefix_tokens: Number of tokens that a model receives to continue.
        continuation_tokens: Maximum number of tokens of a row that the model must generate.
        rows: Numbers of the rows of each record to use; None for all rows.
    """
    hides_spans = hidden_part(hidden, encoding) == SPANS
    encoded, counts = encoding.rows_in_chunks(records)
    ends = counts.cumsum()
    prompted: list[PromptedRow] = []
    for number in range(len(records)):
        chunks = range(int(ends[number] - counts[number]), int(ends[number]))
        chosen = chunks if rows is None else [chunks[at] for at in rows[number]]
        for row in (encoded[at] for at in chosen):
            if hides_spans:
                assert isinstance(encoding, CorpusEncoding)
                prompted += _for_spans(number, row, encoding, continuation_tokens)
            else:
                prompted += _for_continuation(
                    number, row, encoding, prefix_tokens, continuation_tokens
                )
    return prompted


def _for_continuation(
    number: int, row: TokenizedExample, encoding: TokenEncoding, prefix: int, most: int
) -> list[PromptedRow]:
    """Return a row to continue, or an empty list if nothing is left to generate."""
    is_seq2seq = encoding.layout.kind == SEQ2SEQ
    end = encoding.tokenizer.eos_token_id
    labels = [int(label) for label in row.labels]
    target = [label for label in labels if label != IGNORED_LABEL]
    read = row.input_ids
    if not is_seq2seq:
        num_read = len(labels) - len(target)
        read, target = row.input_ids[:num_read], row.input_ids[num_read:]
    target = target[:-1] if target[-1:] == [end] else target
    begun: list[int] = []
    if is_seq2seq and isinstance(encoding, CorpusEncoding):
        whole = target if encoding.span_corruption else read + target
        half = len(whole) // 2 if encoding.span_corruption else len(read)
        ends = [end] if encoding.span_corruption else []
        place = prefix if len(whole) > prefix else half
        place = max(1, min(place, encoding.max_length - len(ends)))
        read, rest = whole[:place] + ends, whole[place : place + encoding.max_length]
    else:
        source = len(read) - is_seq2seq  # A source ends with its own end-of-text token.
        # A causal model reads at least one token.
        min_prefix = source if is_seq2seq else max(1, source)
        length = source + len(target)
        place = max(min_prefix, prefix if length > prefix else length // 2) - source
        begun, rest = target[:place], target[place:]
    continuation = tuple(rest[:most])
    if not continuation:
        return []
    beginning = DecodingPrompt(
        read=tuple(read if is_seq2seq else read + begun),
        decoder_tokens=tuple(begun) if is_seq2seq else (),
        max_new_tokens=len(continuation),
    )
    return [PromptedRow(record=number, beginning=beginning, targets=(continuation,))]


def _for_spans(
    number: int, row: TokenizedExample, encoding: CorpusEncoding, most: int
) -> list[PromptedRow]:
    """Return a row with spans to fill, or an empty list if it has no spans."""
    is_masked = encoding.layout.kind == MASKED
    ids, before = row.input_ids, 0
    if is_masked:
        before = len(encoding.around[0])
        ids = ids[before : len(ids) - len(encoding.around[1])]
    bits = public_bits(row)
    places = hidden_spans(len(ids), density=NOISE_DENSITY, mean_span=MEAN_SPAN, bits=bits)
    spans: list[Tokens] = []
    for start, stop in places:
        room = most - sum(map(len, spans))
        if stop > start and room > 0:
            spans.append(tuple(ids[start : min(stop, start + room)]))
    if not spans:
        return []
    count = sum(map(len, spans))
    if is_masked:
        read = list(row.input_ids)
        for (start, _), span in zip(places, spans, strict=False):
            masks = slice(before + start, before + start + len(span))
            read[masks] = [int(encoding.tokenizer.mask_token_id)] * len(span)
        beginning = DecodingPrompt(read=tuple(read), max_new_tokens=count)
        return [PromptedRow(record=number, beginning=beginning, targets=tuple(spans))]
    view = encoding.view
    assert view is not None
    # Each span is written after its sentinel.
    beginning = DecodingPrompt(
        read=tuple(view(row, bits).input_ids), max_new_tokens=count + len(spans)
    )
    return [
        PromptedRow(
            record=number, beginning=beginning, targets=tuple(spans), sentinels=encoding.sentinels
        )
    ]
