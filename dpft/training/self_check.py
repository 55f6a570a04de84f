"""Synthetic records for the clipper's self-check: random tokens, ragged lengths, random labels."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dpft.data.collation import collate
from dpft.data.tokenization import TokenizedExample
from dpft.models.losses import per_example_losses
from dpft.privacy.clipping.self_check import self_check

# (examples, longest) of each batch: two batch sizes, two lengths.
SHORT, LONG = (3, 7), (2, 100)


def synthetic_examples(
    count: int, longest: int, *, vocab_size: int, ragged: bool
) -> list[TokenizedExample]:
    """Returns ``count`` random examples of ``longest`` tokens; ragged ones get shorter."""
    generator = torch.Generator().manual_seed(0)
    examples = []
    for number in range(count):
        shortened = number * longest // (count + 1) if ragged else 0
        length = max(2, longest - shortened)
        ids = torch.randint(0, vocab_size, (length,), generator=generator).tolist()
        labels = [-100] * (length // 2) + ids[length // 2 :]
        examples.append(TokenizedExample(input_ids=ids, labels=labels))
    return examples


def synthetic_losses(
    model: nn.Module, count: int, longest: int, *, vocab_size: int, ragged: bool = True
) -> Callable[[], Tensor]:
    """Returns what computes the losses of one synthetic batch on the model's device."""
    examples = synthetic_examples(count, longest, vocab_size=vocab_size, ragged=ragged)
    device = next(model.parameters()).device
    batch = collate(examples, pad_token_id=0).to(device)
    return lambda: per_example_losses(model, batch)


def check_clipper(
    model: nn.Module,
    *,
    vocab_size: int,
    max_length: int,
    max_grad_norm: float,
    clipping: str,
    engine: str,
) -> float:
    """Runs the clipper's self-check in training mode; returns the largest difference.

    Raises:
        RunError: The engine disagrees with the loop.
    """
    batches = [
        synthetic_losses(model, count, min(longest, max_length), vocab_size=vocab_size)
        for count, longest in (SHORT, LONG)
    ]
    was_training = model.training
    model.train()
    difference = self_check(
        model, batches, max_grad_norm=max_grad_norm, clipping=clipping, engine=engine
    )
    model.train(was_training)
    return difference
