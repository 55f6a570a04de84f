"""Small models and batches that many cases share."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.clipping.traps.trial import Batch, Case, Right, Trial

ROWS, WIDTH, HIDDEN, CLASSES, LENGTH, WORDS = 6, 5, 8, 3, 7, 11
Mix = Callable[..., Tensor]
"""(hidden,) or (hidden, module) -> hidden of the same shape, rows of a batch perhaps mixed."""


class Net(nn.Module):
    """Features (b, d) to logits (b, classes), with something between two dense layers."""

    def __init__(self, between: Callable[[Tensor], Tensor] = torch.clone) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, HIDDEN)
        self.between = between
        self.leave = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.between(torch.tanh(self.enter(x))))


class Words(nn.Module):
    """Token ids (b, t) to logits (b, t, words), with something between."""

    def __init__(self, between: Callable[[Tensor], Tensor] = torch.clone) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, HIDDEN)
        self.between = between
        self.leave = nn.Linear(HIDDEN, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.leave(self.between(torch.tanh(self.table(ids))))


class Around(nn.Module):
    """A dense layer before another layer, so that gradients also have to pass through it."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.before = nn.Linear(width, width)
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return first_tensor(self.layer(torch.tanh(self.before(x))))


def first_tensor(outputs: object) -> Tensor:
    """Returns the output of a layer, of several the first."""
    while isinstance(outputs, tuple | list):
        outputs = outputs[0]
    assert isinstance(outputs, Tensor)
    return outputs


def features(*shape: int, rows: int = ROWS) -> Tensor:
    """Random numbers, (b, *shape); rows of different sizes."""
    sizes = torch.linspace(0.5, 2.0, rows).view(-1, *[1] * len(shape))
    return torch.randn(rows, *shape) * sizes


def classes(rows: int = ROWS) -> Tensor:
    return torch.randint(0, CLASSES, (rows,))


def words(rows: int = ROWS, length: int = LENGTH) -> Tensor:
    return torch.randint(0, WORDS, (rows, length))


def classified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each row's class."""
    return F.cross_entropy(model(x), y, reduction="none")


def next_words(model: nn.Module, ids: Tensor) -> Tensor:
    """Mean cross-entropy of each row's next words."""
    logits = model(ids)[:, :-1]
    return F.cross_entropy(logits.mT, ids[:, 1:], reduction="none").mean(1)


def squared(model: nn.Module, *inputs: Tensor) -> Tensor:
    """Of each row, how far its output is from a wave of the same shape."""
    rows = first_tensor(model(*inputs)).flatten(1)
    wave = torch.arange(rows.shape[1], dtype=torch.float32).sin().to(rows.dtype)
    return (rows - wave).abs().square().mean(1)


def batch(rows: int = ROWS) -> Batch:
    """Features and classes."""
    return features(WIDTH, rows=rows), classes(rows)


def net_trial(between: Callable[[Tensor], Tensor] = torch.clone, **changes: object) -> Trial:
    """Classification by ``Net``; ``changes`` are of ``Trial``."""
    settings: dict = {"model": Net(between), "losses": classified}
    settings |= changes
    return Trial(**({"batches": [batch()]} | settings))


def words_trial(between: Callable[[Tensor], Tensor] = torch.clone, **changes: object) -> Trial:
    """Language modeling by ``Words``; ``changes`` are of ``Trial``."""
    settings: dict = {"model": Words(between), "losses": next_words}
    settings |= changes
    return Trial(**({"batches": [(words(),)]} | settings))


def exact(name: str, build: Callable[[], Trial], *, slow: bool = False) -> Case:
    """A case that must not be refused."""
    return Case(name, Right.EXACT, build, slow)


def mixing(name: str, build: Callable[[], Trial], *, slow: bool = False) -> Case:
    """A case whose examples mix."""
    return Case(name, Right.REFUSED, build, slow)


def either(name: str, build: Callable[[], Trial], *, slow: bool = False) -> Case:
    """A case that a library may refuse, with a reason."""
    return Case(name, Right.EITHER, build, slow)
