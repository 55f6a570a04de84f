"""Tokens that a task adds: their place in a tokenizer and their rows in a model.

A new row is the mean of the rows of the tokens that its name reads as ("speaker1" for
``<speaker1>``), so it follows from the checkpoint alone: no record is read for it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dpft.batch_mixing import check_model
from dpft.errors import InputError
from dpft.kinds import Head
from dpft.models.architecture import Architecture
from dpft.models.checkpoint_rows import CheckpointRows
from dpft.models.loading import load_model, load_tokenizer


def load_with_tokens(
    architecture: Architecture,
    head: Head,
    tokens: Sequence[str],
    *,
    seed: int,
    rows: CheckpointRows | None = None,
) -> PreTrainedModel:
    """Returns a model on the CPU, with a row for each of the tokens.

    A token that the model's own tokenizer knows has its row already, and keeps it.

    Args:
        architecture: Of the model.
        head: What it answers with.
        tokens: ``Task.special_tokens``.
        seed: As in ``load_model``.
        rows: As in ``load_model``.

    Raises:
        InputError: It cannot be found or understood, or mixes examples.
    """
    loaded = load_model(architecture, seed=seed, head=head, rows=rows)
    check_model(loaded, as_it_trains=True)
    if tokens:
        start_rows(loaded, add_tokens(load_tokenizer(architecture, kind=head.kind), tokens))
    return loaded


def grow_as_planned(
    loaded: PreTrainedModel, architecture: Architecture, head: Head, tokens: Sequence[str]
) -> None:
    """Gives a model as many rows as ``load_with_tokens`` would, of no particular values.

    A plan needs no more than config.json: where there is no tokenizer, each row of the vocabulary
    is taken to be a token's.

    Args:
        loaded: The model, which may be on the meta device.
        architecture: As in ``load_with_tokens``.
        head: As in ``load_with_tokens``.
        tokens: As in ``load_with_tokens``.
    """
    if not tokens:
        return
    try:
        tokenizer = load_tokenizer(architecture, kind=head.kind)
    except InputError:
        grow(loaded, architecture.vocabulary_size + len(tokens))
        return
    add_tokens(tokenizer, tokens)
    grow(loaded, len(tokenizer))


def known_tokens(
    task: str, tokens: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> tuple[str, ...]:
    """Returns a task's tokens, once the tokenizer is known to have them.

    Args:
        task: Its name, for the message.
        tokens: Its tokens.
        tokenizer: Of the model that does the task.

    Raises:
        InputError: It lacks one, as that of a run of another task does.
    """
    missing = [token for token in tokens if token not in tokenizer.get_vocab()]
    if missing:
        raise InputError(
            f"task={task} needs a tokenizer with {missing[0]}, which training it adds, got"
            " one without; give a run of this task."
        )
    return tuple(tokens)


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
