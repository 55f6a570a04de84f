"""Where a record is cut in two: what a model is given of it, and what it is to write.

A record is cut as the row of tokens that was trained on: prompt and target, without the
end-of-text token. The prefix is its first ``prefix_tokens`` tokens. Whatever the model did not
learn to write (the prompt, unless ``task.learn_prompt``) is always in it, however long it is; and
of a record that is no longer than the prefix, it is the first half. A seq2seq model reads the
prompt as in training; what the prefix holds beyond it, its decoder is given as written already.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dpft.data.encoding import TextEncoding
from dpft.data.tokenization import TokenizedExample
from dpft.generation.continuations import Beginning
from dpft.kinds import IGNORED_LABEL, SEQ2SEQ
from dpft.tasks.records import Example


@dataclass(frozen=True, kw_only=True)
class CutRecord:
    """A record in two parts."""

    beginning: Beginning
    continuation: tuple[int, ...]
    """What the model is to write; at least one token."""


def cut_records(
    records: Sequence[Example],
    encoding: TextEncoding,
    *,
    prefix_tokens: int,
    continuation_tokens: int,
) -> list[CutRecord]:
    """Returns the records in two parts; those of which nothing is left to write are left out.

    Args:
        records: Of a task of texts.
        encoding: How they became rows in training.
        prefix_tokens: As above.
        continuation_tokens: Most tokens of a continuation.
    """
    end = encoding.tokenizer.eos_token_id
    seq2seq = encoding.layout.kind == SEQ2SEQ
    cut = []
    for row in encoding.rows(records):
        read, target = _parts(row, seq2seq=seq2seq)
        target = target[:-1] if target[-1:] == [end] else target
        source = len(read) - seq2seq  # A source ends with an end-of-text token of its own.
        # A causal model reads at least one token.
        given = source if seq2seq else max(1, source)
        place = _place(prefix_tokens, given=given, whole=source + len(target)) - source
        continuation = target[place : place + continuation_tokens]
        if continuation:
            begun = target[:place]
            beginning = Beginning(
                read=tuple(read if seq2seq else read + begun),
                begun=tuple(begun) if seq2seq else (),
                lacking=len(continuation),
            )
            cut.append(CutRecord(beginning=beginning, continuation=tuple(continuation)))
    return cut


def _parts(row: TokenizedExample, *, seq2seq: bool) -> tuple[list[int], list[int]]:
    """Returns the tokens of a row that are only read, and those that are learned."""
    labels = [int(label) for label in row.labels]
    learned = [label for label in labels if label != IGNORED_LABEL]
    if seq2seq:
        return row.input_ids, learned
    given = len(labels) - len(learned)
    return row.input_ids[:given], row.input_ids[given:]


def _place(prefix_tokens: int, *, given: int, whole: int) -> int:
    """Returns where a record is cut.

    Args:
        prefix_tokens: Where it is cut if it is long enough.
        given: How many of its tokens are not learned.
        whole: How many it has.
    """
    return max(given, prefix_tokens if whole > prefix_tokens else whole // 2)
