"""Texts to token ids as ``tokenization.tokenize`` defines it, thousands of records in one go.

A row is a chain of stretches of ids: start, lead, record, separator, target, end. Where each begins
and how much of it stays is arithmetic on lengths, done for all records at once, and one gather
writes all rows. ``tests/data/test_text_rows.py`` holds the two definitions against each other.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from dpft.data.token_rows import Block, Lists, ends_of, numbered
from dpft.data.tokenization import opening_ids, prompt_parts, start_id, token_ids
from dpft.tasks.records import Example

START, LEAD, RECORD, SEPARATOR, TARGET, END = range(6)
"""The stretches of a row; those before the target are its prompt."""
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]


def tokenize_together(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    special_tokens: Sequence[str] = (),
) -> Block:
    """Returns the rows of ``tokenize``, in flat arrays.

    Args:
        examples: At least one.
        tokenizer: As ``tokenize``.
        max_length: As ``tokenize``.
        special_tokens: As ``tokenize``.
    """
    ids, begins, lengths = _stretches(examples, tokenizer, special_tokens)
    whole, is_empty = lengths.sum(axis=1), lengths[:, TARGET] == 0
    _cut_targets(begins, lengths, max_length, _flags(examples, "cut_target_end"))
    room = max_length - lengths[:, TARGET:].sum(axis=1)
    _cut_prompts(begins, lengths, room, _flags(examples, "cut_start"))
    truncated = lengths.sum(axis=1) < whole
    # Where there is no prompt, a first token is predicted from the start token.
    bare = lengths[:, :TARGET].sum(axis=1) == 0
    lengths[bare, START] = np.minimum(1, room[bare])
    prompts, total = lengths[:, :TARGET].sum(axis=1), lengths.sum(axis=1)
    given = np.where(_flags(examples, "learns_prompt"), np.minimum(1, prompts), prompts)
    return Block(
        ids=_gathered(ids, begins, lengths),
        unlabeled=np.where(is_empty, total, given).astype(np.int32),
        truncated=truncated,
    )


def _stretches(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, special_tokens: Sequence[str]
) -> tuple[NDArray[np.int32], Whole, Whole]:
    """Returns ids, and of each record where in them its stretches begin and how long they are."""
    parts = [part for example in examples for part in prompt_parts(example)]
    prompts, prompt_places = _distinct(parts, tokenizer, special_tokens)
    targets, target_places = _distinct([example.target for example in examples], tokenizer, ())
    marks = [start_id(tokenizer), cast(int, tokenizer.eos_token_id)]
    lists = Lists.of([marks[:1], *prompts, *targets, marks[1:]], np.int32)
    places = np.zeros((len(examples), 6), np.int64)
    places[:, LEAD:TARGET] = prompt_places.reshape(-1, 3) + 1
    places[:, TARGET] = target_places + 1 + len(prompts)
    places[:, END] = 1 + len(prompts) + len(targets)
    lengths = lists.lengths[places]
    lengths[:, START] = bool(opening_ids(tokenizer)) | _flags(examples, "after_start")
    return lists.values, lists.bounds[places], lengths


def _distinct(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, special_tokens: Sequence[str]
) -> tuple[list[list[int]], Whole]:
    """Returns the ids of the texts, equal ones once, and which of them each text has."""
    numbers: dict[str, int] = {}
    places = [numbers.setdefault(text, len(numbers)) for text in texts]
    return token_ids(list(numbers), tokenizer, special_tokens), np.array(places, np.int64)


def _flags(examples: Sequence[Example], name: str) -> Flags:
    return np.array([getattr(example, name) for example in examples], np.bool_)


def _cut_targets(begins: Whole, lengths: Whole, max_length: int, cut_end: Flags) -> None:
    """Cuts a target that is too long by itself: its end where that is said, else its beginning."""
    too_long = np.maximum(0, lengths[:, TARGET] + 1 - max_length)
    begins[:, TARGET] += np.where(cut_end, 0, too_long)
    # A text cut at its end keeps a token before it, from which its first one is predicted.
    ended = np.minimum(lengths[:, TARGET], max_length - 1)
    lengths[cut_end, END] = (lengths[cut_end, TARGET] + 1) <= max_length - 1
    lengths[:, TARGET] = np.where(cut_end, ended, lengths[:, TARGET] - too_long)


def _cut_prompts(begins: Whole, lengths: Whole, room: Whole, cut_start: Flags) -> None:
    """Cuts the records' own texts, and then the prompts' beginnings, to the room there is."""
    around = lengths[:, START] + lengths[:, LEAD] + lengths[:, SEPARATOR]
    kept = np.minimum(lengths[:, RECORD], np.maximum(0, room - around))
    begins[:, RECORD] += np.where(cut_start, lengths[:, RECORD] - kept, 0)
    lengths[:, RECORD] = kept
    excess = np.maximum(0, lengths[:, :TARGET].sum(axis=1) - room)
    for stretch in range(TARGET):
        gone = np.minimum(excess, lengths[:, stretch])
        begins[:, stretch] += gone
        lengths[:, stretch] -= gone
        excess -= gone


def _gathered(ids: NDArray[np.int32], begins: Whole, lengths: Whole) -> Lists:
    """Returns the rows that stretches of ids make, one row after the other."""
    bounds = ends_of(lengths.ravel())
    places = np.repeat(begins.ravel(), lengths.ravel()) + numbered(bounds)
    return Lists(values=ids[places], bounds=ends_of(lengths.sum(axis=1)))
