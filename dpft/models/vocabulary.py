"""Tokens that a task adds: their place in a tokenizer and their rows in a model.

A new row is the mean of the rows of the tokens that its name reads as ("speaker1" for
``<speaker1>``), so it follows from the checkpoint alone: no record is read for it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase


def add_tokens(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[str]
) -> dict[int, tuple[int, ...]]:
    """Makes tokens the tokenizer's own, those that it lacks, as special ones.

    Args:
        tokenizer: Is changed.
        tokens: Such as ``<speaker1>``.

    Returns:
        The number of each token that is new, and the numbers of those that its name reads as.
        Tokens whose names a tokenizer cannot tell apart, all unknown to it, share theirs.
    """
    known = tokenizer.get_vocab()
    new = [token for token in tokens if token not in known]
    pieces = [
        tokenizer(token.strip("<>"), add_special_tokens=False, split_special_tokens=True)
        for token in new
    ]
    extra = cast(Any, {"extra_special_tokens": new})
    tokenizer.add_special_tokens(extra, replace_extra_special_tokens=False)
    numbers = cast(list[int], tokenizer.convert_tokens_to_ids(new))
    return {n: tuple(read["input_ids"]) for n, read in zip(numbers, pieces, strict=True)}


def grow(model: PreTrainedModel, rows: int) -> None:
    """Gives the vocabulary of a model at least so many rows; it never shrinks.

    Tied weights stay tied, and a row that is new is undefined until ``start_rows``.

    Args:
        model: Not yet prepared by a method; it may be on the meta device.
        rows: Rows of the embedding, such as the tokenizer's length.
    """
    if rows <= _rows(model.get_input_embeddings()).shape[0]:
        return
    with torch.random.fork_rng(devices=[]):
        model.resize_token_embeddings(rows, mean_resizing=False)


@torch.no_grad()
def start_rows(model: PreTrainedModel, pieces: Mapping[int, Sequence[int]]) -> None:
    """Gives tokens a row of their own, that of the embedding and that of an untied head.

    A row that a padded vocabulary already has is used.

    Args:
        model: As in ``grow``.
        pieces: What ``add_tokens`` returned.
    """
    if not pieces:
        return
    grow(model, max(pieces) + 1)
    head: nn.Module | None = model.get_output_embeddings()
    tables = [_rows(model.get_input_embeddings())]
    if head is not None:
        tables += [table for table in (_rows(head), _bias(head)) if table is not None]
    for table in tables:
        means = {number: table[list(read)].mean(dim=0) for number, read in pieces.items() if read}
        for number, mean in means.items():
            table[number] = mean


def _rows(module: Any) -> Tensor:
    """Returns a table of vectors by token, shape (v, d)."""
    weight: Tensor = module.weight
    return weight


def _bias(head: Any) -> Tensor | None:
    """Returns what a head adds to each token's logit, shape (v,)."""
    bias: Tensor | None = head.bias
    return bias
