"""What canaries' gradients are in the embeddings of words that one canary has alone.

Shapes: m canaries, v tokens, d numbers of an embedding, n tokens that one canary has alone.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dpft.data.batch import Batch
from dpft.errors import InputError
from dpft.generation.inference import evaluation_mode
from dpft.models.losses import per_example_losses

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COMMON = 1
"""Directions that are taken for common to all canaries; each more costs signal."""


def embeddings(model: "PreTrainedModel") -> nn.Embedding:
    """Returns the table of what a model reads."""
    table: nn.Embedding = model.get_input_embeddings()  # type: ignore[assignment]
    return table


def check_white_box(model: "PreTrainedModel") -> None:
    """Refuses to hold steps against canaries where no step moves the embeddings of their words.

    Raises:
        InputError: The input embeddings do not train.
    """
    if not embeddings(model).weight.requires_grad:
        raise InputError(
            "audit.white_box=true needs a method that trains the input embeddings, such as"
            " method=full; set audit.white_box=false, or train_embeddings=true where the method"
            " has it."
        )


def summed_gradients(model: "PreTrainedModel", batches: Sequence[Batch]) -> list[Tensor]:
    """Returns the sum of the canaries' gradients in each table; nothing of it depends on a coin."""
    moved = tables(model)
    sums = [torch.zeros_like(table) for table in moved]
    with evaluation_mode(model), torch.enable_grad():
        for batch in batches:
            loss = per_example_losses(model, batch).sum()
            for total, gradient in zip(sums, torch.autograd.grad(loss, moved), strict=True):
                total += gradient
    return sums


def common_directions(rows: Tensor) -> Tensor:
    """Returns the direction in which rows differ most, shape (1, d).

    Every text makes every word less likely, by the chance that the model gives it there, so that
    all words' embeddings move along one direction, each by another length. That is a thousand
    times what one canary does to them, and says nothing of it.
    """
    _, _, directions = torch.linalg.svd(_centered(rows), full_matrices=False)
    found: Tensor = directions[:COMMON]
    return found


def apart(rows: Tensor, common: Tensor) -> Tensor:
    """Returns rows without their mean and without what lies along common directions."""
    centered = _centered(rows)
    return centered - centered @ common.T @ common


def own_lengths(rows: Sequence[Tensor], owners: Tensor, canaries: int) -> Tensor:
    """Returns the norm of each canary's gradient in the embeddings of its own words, shape (m,).

    Args:
        rows: Of each table the summed gradients of these words, in which hardly anything comes of
            other canaries once the common part is taken away.
        owners: Of each of these words the number of its canary.
        canaries: How many there are.
    """
    squares = torch.zeros(canaries, dtype=torch.float64)
    for each in rows:
        squares.index_add_(0, owners.cpu(), each.double().square().sum(dim=1).cpu())
    return squares.sqrt()


def tables(model: "PreTrainedModel") -> list[nn.Parameter]:
    """Returns the embeddings that train, of what is read and what is written; tied ones once."""
    found: dict[nn.Parameter, None] = {}
    for module in (embeddings(model), model.get_output_embeddings()):
        weight = getattr(module, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.requires_grad:
            found[weight] = None
    return list(found)


def owners_of(batches: Sequence[Batch], tokens: int) -> Tensor:
    """Returns of each token the number of the row that alone reads it, or -1, shape (tokens,)."""
    owners = torch.full((tokens,), -1)
    rows = [set(_read(batch, row)) for batch in batches for row in range(len(batch))]
    counts = Counter(token for row in rows for token in row)
    for number, row in enumerate(rows):
        owners[[token for token in row if counts[token] == 1]] = number
    return owners


def _read(batch: Batch, row: int) -> Iterator[int]:
    for name in ("input_ids", "decoder_input_ids"):
        if name in batch.inputs:
            yield from batch.inputs[name][row].tolist()


def _centered(rows: Tensor) -> Tensor:
    return rows - rows.mean(dim=0)
