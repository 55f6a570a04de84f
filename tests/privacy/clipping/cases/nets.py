"""Small models and batches that many cases share."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.clipping.cases.case import Batch, Trial

ROWS, WIDTH, HIDDEN, CLASSES, LENGTH, WORDS = 6, 5, 8, 3, 7, 11
Mix = Callable[[Tensor], Tensor]
"""Hidden states to hidden states of the same shape; it may read other rows of the batch."""


class Net(nn.Module):
    """Features (b, d) to logits (b, classes), with something between two linear layers."""

    def __init__(self, between: Mix = torch.clone) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, HIDDEN)
        self.between = between
        self.leave = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.between(torch.tanh(self.enter(x))))


class Words(nn.Module):
    """Token ids (b, t) to logits (b, t, words), with something between."""

    def __init__(self, between: Mix = torch.clone) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, HIDDEN)
        self.between = between
        self.leave = nn.Linear(HIDDEN, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.leave(self.between(torch.tanh(self.table(ids))))


class Around(nn.Module):
    """A linear layer before another layer, so that gradients must also pass through that layer."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.before = nn.Linear(width, width)
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return first_tensor(self.layer(torch.tanh(self.before(x))))


class Built(nn.Module):
    """Modules and parameters, and a function that runs them.

    Args:
        run: (module, inputs...) -> outputs.
        parts: Modules, and tensors that become parameters, by attribute.
    """

    def __init__(self, run: Callable[..., Any], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.run(self, *inputs)


def first_tensor(outputs: object) -> Tensor:
    """Return the first tensor of nested outputs."""
    while isinstance(outputs, tuple | list):
        outputs = outputs[0]
    assert isinstance(outputs, Tensor)
    return outputs


def features(rows: int, *shape: int) -> Tensor:
    """Draw numbers (b, *shape), rows of different sizes in no order."""
    sizes = torch.linspace(0.5, 2.0, rows)[torch.randperm(rows)]
    return torch.randn(rows, *shape) * sizes.view(-1, *[1] * len(shape))


def classes(rows: int) -> Tensor:
    """Draw classes, (b,)."""
    return torch.randint(0, CLASSES, (rows,))


def words(rows: int, length: int = LENGTH) -> Tensor:
    """Draw token ids, (b, t)."""
    return torch.randint(0, WORDS, (rows, length))


def ragged(rows: int, padding: int, first: int = 0) -> Tensor:
    """Draw token ids of at least ``first`` that end early with padding, lengths in no order."""
    ids = torch.randint(first, WORDS, (rows, LENGTH))
    for row, length in enumerate((5, 7, 3, 6, 4, 7, 2, 6)[:rows]):
        ids[row, length:] = padding
    return ids


def batch(rows: int) -> Batch:
    """Draw features and classes."""
    return features(rows, WIDTH), classes(rows)


def ce(logits: Tensor, y: Tensor, **options: Any) -> Tensor:
    """Return per-example cross-entropy."""
    return F.cross_entropy(logits, y, reduction="none", **options)


def classified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each row's class."""
    return ce(model(x), y)


def next_words(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the mean cross-entropy of each row's next tokens."""
    return ce(model(ids)[:, :-1].mT, ids[:, 1:]).mean(1)


def squared(model: nn.Module, *inputs: Tensor) -> Tensor:
    """Return how far each row's output is from a wave of the same shape."""
    rows = first_tensor(model(*inputs)).flatten(1)
    wave = torch.arange(rows.shape[1], dtype=torch.float32).sin().to(rows.dtype)
    return (rows - wave).abs().square().mean(1)


def net_trial(between: Mix = torch.clone, **changes: Any) -> Trial:
    """Classification by ``Net``; ``changes`` are fields of ``Trial``."""
    settings = {"model": changes.get("model") or Net(between), "losses": classified, "draw": batch}
    return Trial(**(settings | changes))


def words_trial(between: Mix = torch.clone, **changes: Any) -> Trial:
    """Language modeling by ``Words``; ``changes`` are fields of ``Trial``."""
    model = changes.get("model") or Words(between)
    settings = {"model": model, "losses": next_words, "draw": lambda rows: (words(rows),)}
    return Trial(**(settings | changes))


def layer_trial(layer: nn.Module, *shape: int, **changes: Any) -> Trial:
    """A layer behind a linear one, on inputs (b, *shape)."""
    model, draw = Around(layer, shape[-1]), lambda rows: (features(rows, *shape),)
    return net_trial(**({"model": model, "losses": squared, "draw": draw} | changes))


def only_layer_trial(layer: nn.Module, *draws: Callable[[int], Tensor], **changes: Any) -> Trial:
    """A layer that is the whole model, on inputs drawn by ``draws``."""
    draw = lambda rows: tuple(each(rows) for each in draws)  # noqa: E731
    return net_trial(**({"model": layer, "losses": squared, "draw": draw} | changes))
