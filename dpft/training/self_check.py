"""Synthetic records for the clipper's self-check: random tokens, ragged lengths, random labels."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dpft.data.collation import collate
from dpft.data.tokenization import TokenizedExample
from dpft.errors import RunError
from dpft.models.losses import per_example_losses
from dpft.privacy.clipping.self_check import self_check

SHORT_LENGTH = 7
BATCH_SIZES = (3, 2)
"""Examples in the short batch and in the one of the longest records."""
INDEPENDENCE_TOLERANCE = 1e-4
"""Most that padding and neighbors may move a loss, relative, by float32 rounding."""


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
    was_training = model.training
    lengths = zip(BATCH_SIZES, (min(SHORT_LENGTH, max_length), max_length), strict=True)
    sizes = [(count, longest) for count, longest in lengths]
    for count, longest in sizes:
        check_independence(model.eval(), count, longest, vocab_size=vocab_size)
    model.train()
    difference = self_check(
        model,
        [synthetic_losses(model, *size, vocab_size=vocab_size) for size in sizes],
        max_grad_norm=max_grad_norm,
        clipping=clipping,
        engine=engine,
    )
    model.train(was_training)
    return difference


@torch.no_grad()
def check_independence(model: nn.Module, count: int, longest: int, *, vocab_size: int) -> None:
    """Compares each example's loss among others and padded with its loss alone.

    The clipper bounds an example's gradient; only this sees an example that changes the others'.

    Raises:
        RunError: They differ, so examples are not independent of each other.
    """
    examples = synthetic_examples(count, longest, vocab_size=vocab_size, ragged=True)
    device = next(model.parameters()).device
    together = per_example_losses(model, collate(examples, pad_token_id=0).to(device))
    for example, loss in zip(examples, together, strict=True):
        alone = per_example_losses(model, collate([example], pad_token_id=0).to(device))[0]
        if not torch.isclose(loss, alone, rtol=INDEPENDENCE_TOLERANCE, atol=1e-6):
            raise RunError(
                "self-check failed: an example's loss depends on the other examples of its batch "
                f"or on padding ({float(loss):.6f} among others, {float(alone):.6f} alone), so "
                "clipping would bound nothing; choose another model."
            )
