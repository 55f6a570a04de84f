"""What a model is given of a record, and what it is to write: a continuation, or hidden spans.

A record is asked about as the rows of tokens that were trained on, without the end-of-text token;
of a record in chunks each chunk is a row.

- **continuation**: the model is given the first ``prefix_tokens`` tokens. Whatever it did not learn
  to write (the prompt, unless ``task.learn_prompt``) is always among them, however long it is; and
  of a row that is no longer, it is given the first half. A seq2seq model reads the prompt as in
  training; what the prefix holds beyond it, its decoder is given as written already. Of a corpus,
  whose texts have no prompt, a seq2seq model reads the whole prefix (Ponomareva et al. 2022,
  section 5: the prefix is in the encoder), and of a short text as much of it as in training.
- **spans**: the model reads the row but for spans that are hidden at places drawn from its own
  tokens alone, as T5 draws them, and fills them: each after its sentinel, or each token of them at
  once, in place of its mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dpft.audit.memorization import CONTINUATION, SPANS
from dpft.data.corpus_rows import MEAN_SPAN, NOISE_DENSITY, CorpusEncoding, public_bits
from dpft.data.encoding import TokenEncoding
from dpft.data.tokenization import TokenizedExample
from dpft.data.views import hidden_spans
from dpft.errors import InputError
from dpft.generation.continuations import Beginning
from dpft.kinds import IGNORED_LABEL, MASKED, SEQ2SEQ
from dpft.tasks.records import Example

Tokens = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class CutRow:
    """A row in two parts."""

    record: int
    """Which of the records it is of."""
    beginning: Beginning
    """What the model is given, with how many tokens it may write."""
    asked: tuple[Tokens, ...]
    """The stretches that it is to write, in order: one continuation, or the hidden spans. At least
    one, and none empty."""
    sentinels: Tokens = ()
    """Tokens that part what is written, each stretch after its own; none: they follow each
    other."""

    def written(self, tokens: Sequence[int]) -> list[Tokens]:
        """Returns what a model wrote of each stretch; nothing of one that it left out."""
        if not self.sentinels:
            starts = [sum(map(len, self.asked[:at])) for at in range(len(self.asked))]
            stops = [*starts[1:], len(tokens)]
            return [tuple(tokens[a:b]) for a, b in zip(starts, stops, strict=True)]
        places = [at for at, token in enumerate(tokens) if token in self.sentinels]
        found: dict[int, Tokens] = {}
        for start, stop in zip(places, [*places, len(tokens)][1:], strict=True):
            found.setdefault(tokens[start], tuple(tokens[start + 1 : stop]))
        return [found.get(sentinel, ()) for sentinel in self.sentinels[: len(self.asked)]]


def hidden_of(asked: str | None, encoding: TokenEncoding) -> str:
    """Returns what a model is to write, ``CONTINUATION`` or ``SPANS``.

    Args:
        asked: One of them; None: whichever it has learned.
        encoding: How records became rows in training.

    Raises:
        InputError: The model has not learned to write it.
    """
    masked = encoding.layout.kind == MASKED
    fills = masked or (isinstance(encoding, CorpusEncoding) and encoding.span_corruption)
    hidden = asked or (SPANS if fills else CONTINUATION)
    if hidden == SPANS and not fills:
        raise InputError(
            "audit.hidden=spans needs a run of task.objective=span_corruption or mlm, whose model"
            " has learned to fill spans; leave it out."
        )
    if hidden == CONTINUATION and masked:
        raise InputError(
            "audit.hidden=continuation needs a model that writes, got a masked language model,"
            " which fills spans; leave it out."
        )
    return hidden


def cut_records(
    records: Sequence[Example],
    encoding: TokenEncoding,
    *,
    hidden: str | None = None,
    prefix_tokens: int,
    continuation_tokens: int,
    rows: Sequence[Sequence[int]] | None = None,
) -> list[CutRow]:
    """Returns the records' rows in two parts; those with nothing left to write are left out.

    Args:
        records: Of a task of texts.
        encoding: How they became rows in training.
        hidden: As ``hidden_of``.
        prefix_tokens: That the model is given, where it writes on.
        continuation_tokens: Most that it is to write of a row.
        rows: Of each record the numbers of the rows that are asked about; None: all.

    Raises:
        InputError: As ``hidden_of``.
    """
    spans = hidden_of(hidden, encoding) == SPANS
    made, counts = encoding.rows_in_chunks(records)
    ends = counts.cumsum()
    cut: list[CutRow] = []
    for number in range(len(records)):
        every = range(int(ends[number] - counts[number]), int(ends[number]))
        chosen = every if rows is None else [every[at] for at in rows[number]]
        for row in (made[at] for at in chosen):
            if spans:
                assert isinstance(encoding, CorpusEncoding)
                cut += _without_spans(number, row, encoding, continuation_tokens)
            else:
                cut += _begun(number, row, encoding, prefix_tokens, continuation_tokens)
    return cut


def _begun(
    number: int, row: TokenizedExample, encoding: TokenEncoding, prefix: int, most: int
) -> list[CutRow]:
    """Returns a row that is to be written on, or nothing."""
    seq2seq = encoding.layout.kind == SEQ2SEQ
    end = encoding.tokenizer.eos_token_id
    read, target = _parts(row, seq2seq=seq2seq)
    target = target[:-1] if target[-1:] == [end] else target
    begun: list[int] = []
    if seq2seq and isinstance(encoding, CorpusEncoding):
        whole = target if encoding.span_corruption else read + target
        half = len(whole) // 2 if encoding.span_corruption else len(read)
        ends = [end] if encoding.span_corruption else []
        place = prefix if len(whole) > prefix else half
        place = max(1, min(place, encoding.max_length - len(ends)))
        read, rest = whole[:place] + ends, whole[place : place + encoding.max_length]
    else:
        source = len(read) - seq2seq  # A source ends with an end-of-text token of its own.
        # A causal model reads at least one token.
        given = source if seq2seq else max(1, source)
        length = source + len(target)
        place = max(given, prefix if length > prefix else length // 2) - source
        begun, rest = target[:place], target[place:]
    asked = tuple(rest[:most])
    if not asked:
        return []
    beginning = Beginning(
        read=tuple(read if seq2seq else read + begun),
        begun=tuple(begun) if seq2seq else (),
        lacking=len(asked),
    )
    return [CutRow(record=number, beginning=beginning, asked=(asked,))]


def _parts(row: TokenizedExample, *, seq2seq: bool) -> tuple[list[int], list[int]]:
    """Returns the tokens of a row that are only read, and those that are learned."""
    labels = [int(label) for label in row.labels]
    learned = [label for label in labels if label != IGNORED_LABEL]
    if seq2seq:
        return row.input_ids, learned
    given = len(labels) - len(learned)
    return row.input_ids[:given], row.input_ids[given:]


def _without_spans(
    number: int, row: TokenizedExample, encoding: CorpusEncoding, most: int
) -> list[CutRow]:
    """Returns a row whose spans are to be filled, or nothing."""
    ids, before = row.input_ids, 0
    if encoding.layout.kind == MASKED:
        before = len(encoding.around[0])
        ids = ids[before : len(ids) - len(encoding.around[1])]
    bits = public_bits(row)
    places = hidden_spans(len(ids), density=NOISE_DENSITY, mean_span=MEAN_SPAN, bits=bits)
    asked: list[Tokens] = []
    for start, stop in places:
        room = most - sum(map(len, asked))
        if stop > start and room > 0:
            asked.append(tuple(ids[start : min(stop, start + room)]))
    if not asked:
        return []
    count = sum(map(len, asked))
    if encoding.layout.kind == MASKED:
        read = list(row.input_ids)
        for (start, _), stretch in zip(places, asked, strict=False):
            hidden = slice(before + start, before + start + len(stretch))
            read[hidden] = [int(encoding.tokenizer.mask_token_id)] * len(stretch)
        beginning = Beginning(read=tuple(read), lacking=count)
        return [CutRow(record=number, beginning=beginning, asked=tuple(asked))]
    view = encoding.view
    assert view is not None
    # Each stretch is written after its sentinel.
    beginning = Beginning(read=tuple(view(row, bits).input_ids), lacking=count + len(asked))
    return [
        CutRow(record=number, beginning=beginning, asked=tuple(asked), sentinels=encoding.sentinels)
    ]
