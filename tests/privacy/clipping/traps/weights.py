"""Weights that are used in unusual ways: without a layer, shared, of no dimension, computed."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

from tests.privacy.clipping.traps.layers import alone, around
from tests.privacy.clipping.traps.nets import (
    HIDDEN,
    LENGTH,
    ROWS,
    either,
    exact,
    features,
    net_trial,
    squared,
)
from tests.privacy.clipping.traps.trial import Case, Trial


class Own(nn.Module):
    """A module of one function and the parameters that it uses."""

    def __init__(self, run: Callable[..., Tensor], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.run = run
        self.weights = nn.ParameterList([torch.randn(shape) * 0.5 for shape in shapes])

    def forward(self, h: Tensor) -> Tensor:
        return self.run(h, *self.weights)


H = (HIDDEN,)
NUMBER: tuple[int, ...] = ()
VECTOR: dict[str, Callable[[], nn.Module]] = {
    "a temperature of no dimension": lambda: Own(lambda h, t: h / t.exp(), NUMBER),
    "a gate of no dimension": lambda: Own(lambda h, g: h + g * torch.tanh(h), NUMBER),
    "two numbers": lambda: Own(lambda h, a, c: a * h + c, NUMBER, NUMBER),
    "a number for a power": lambda: Own(lambda h, p: (h.abs() + 0.1) ** p, NUMBER),
    "a temperature of one": lambda: Own(lambda h, t: h * t, (1,)),
    "a scale of each feature": lambda: Own(lambda h, s: h * s, H),
    "a shift of each feature": lambda: Own(lambda h, s: h + s, (1, HIDDEN)),
    "a matrix by @": lambda: Own(lambda h, w: h @ w, (HIDDEN, 4)),
    "a matrix by einsum": lambda: Own(
        lambda h, w: torch.einsum("bi,oi->bo", h, w), (4, HIDDEN)
    ),
    "a quadratic form": lambda: Own(
        lambda h, w: torch.einsum("bi,ij,bj->b", h, w, h)[:, None], (HIDDEN, HIDDEN)
    ),
    "low rank": lambda: Own(lambda h, u, v: h + h @ u @ v, (HIDDEN, 2), (2, HIDDEN)),
    "a diagonal and a mean": lambda: Own(lambda h, d: h * (d - d.mean()), H),
    "codes by distance": lambda: Own(lambda h, c: torch.cdist(h, c), (3, HIDDEN)),
    "hard codes": lambda: Own(lambda h, c: h + c[torch.cdist(h, c).argmin(1)], (3, HIDDEN)),
    "functional linear": lambda: Own(lambda h, w: F.linear(h, w), (4, HIDDEN)),
    "a weight used twice": lambda: Own(lambda h, w: torch.tanh(h @ w) @ w, (HIDDEN, HIDDEN)),
    "a weight and its transpose": lambda: Own(lambda h, w: (h @ w) @ w.T, (HIDDEN, 3)),
    "a symmetric weight": lambda: Own(lambda h, w: h @ (w + w.T), (HIDDEN, HIDDEN)),
    "an orthogonal weight": lambda: Own(
        lambda h, w: h @ torch.matrix_exp(w - w.T), (HIDDEN, HIDDEN)
    ),
    "experts by softmax": lambda: Own(
        lambda h, g, w: torch.einsum("be,bi,eio->bo", (h @ g).softmax(-1), h, w),
        (HIDDEN, 3), (3, HIDDEN, 4),
    ),
    "experts one by one": lambda: Committee(),
    "complex weights": lambda: Own(
        lambda h, re, im: torch.view_as_real(h.to(torch.complex64) @ torch.complex(re, im)),
        (HIDDEN, 3), (HIDDEN, 3),
    ),
    "a filter of frequencies": lambda: Own(
        lambda h, f: torch.fft.irfft(torch.fft.rfft(h) * f, n=HIDDEN), (HIDDEN // 2 + 1,)
    ),
    "a ParameterDict": lambda: Named(),
    "weight norm, old": lambda: weight_norm(nn.Linear(HIDDEN, 4)),
    "weight norm of the whole, old": lambda: weight_norm(nn.Linear(HIDDEN, 4), dim=None),
    "weight norm, parametrized": lambda: parametrizations.weight_norm(nn.Linear(HIDDEN, 4)),
    "orthogonal, parametrized": lambda: parametrizations.orthogonal(nn.Linear(HIDDEN, HIDDEN)),
    "own parametrization": lambda: symmetric(nn.Linear(HIDDEN, HIDDEN)),
    "pruned": lambda: prune.random_unstructured(nn.Linear(HIDDEN, 4), "weight", 0.3),
    "a layer shared in a row": lambda: shared(nn.Linear(HIDDEN, HIDDEN)),
    "a norm shared in a row": lambda: shared(nn.LayerNorm(HIDDEN)),
    "a weight of two layers": lambda: two_layers(),
    "a weight and its transpose, in two layers": lambda: Transposed(),
    "a weight read behind its layer's back": lambda: Behind(),
    "a weight in python code": lambda: InPython(),
    "own backward": lambda: Own(lambda h, w: Doubling.apply(h @ w), (HIDDEN, 4)),
    "a subclass of Linear": lambda: Scaled(HIDDEN, 4),
    "a frozen layer": lambda: nn.Linear(HIDDEN, 4).requires_grad_(False),
    "bias alone": lambda: bias_alone(nn.Linear(HIDDEN, 4)),
    "a weight that is idle": lambda: Idle(),
    "scripted": lambda: torch.jit.trace(nn.Linear(HIDDEN, 4), torch.ones(2, HIDDEN)),
}  # fmt: skip
REFUSABLE = {"scripted", "own backward", "a weight read behind its layer's back"}


class Committee(nn.Module):
    """Each row goes to one of three layers, by its values, with no capacity."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(HIDDEN, 3)
        self.inner = nn.ModuleList([nn.Linear(HIDDEN, 4) for _ in range(3)])

    def forward(self, h: Tensor) -> Tensor:
        shares = self.gate(h).softmax(-1)
        return sum(
            s[:, None] * layer(h) for s, layer in zip(shares.unbind(1), self.inner, strict=True)
        )


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterDict({"up": torch.randn(HIDDEN, 4), "down": torch.randn(4)})

    def forward(self, h: Tensor) -> Tensor:
        return h @ self.weights["up"] + self.weights["down"]


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).mT


def symmetric(layer: nn.Module) -> nn.Module:
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


def shared(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer, nn.Tanh(), layer)


def two_layers() -> nn.Module:
    first, second = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(HIDDEN, 3)

    def forward(self, h: Tensor) -> Tensor:
        return torch.tanh(self.down(h)) @ self.down.weight


class Behind(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(HIDDEN, 4)

    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h) + self.dense.weight.square().sum()


class InPython(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3))

    def forward(self, h: Tensor) -> Tensor:
        return torch.stack([row * self.scale[number % 1] for number, row in enumerate(h)])


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return h * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Scaled(nn.Linear):
    def forward(self, h: Tensor) -> Tensor:
        return super().forward(h) * (1 + self.bias)


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(HIDDEN, 4), nn.Linear(3, 3)

    def forward(self, h: Tensor) -> Tensor:
        return self.used(h)


def bias_alone(layer: nn.Linear) -> nn.Linear:
    layer.weight.requires_grad_(False)
    return layer


def decay(model: nn.Module, x: Tensor) -> Tensor:
    """A penalty on the weights, the same for each row: a gradient of its own, by definition."""
    return squared(model, x) + 0.1 * model.weight.square().sum()


def cases() -> Iterator[Case]:
    """Yields all cases of this file."""
    for name, make in VECTOR.items():
        kind = either if name in REFUSABLE else exact
        yield kind(name, lambda make=make: around(make(), HIDDEN))
    yield either("spectral norm, old", lambda: around(spectral_norm(nn.Linear(HIDDEN, 4)), HIDDEN))
    yield exact("spectral norm, evaluating", lambda: spectral(evaluating=True))
    yield either("spectral norm, training", lambda: spectral(evaluating=False))
    yield exact("a root that is a parameter's", lambda: alone(Own(torch.mul, H), features(HIDDEN)))
    yield exact("a root of a number", lambda: alone(Own(torch.mul, NUMBER), features(HIDDEN)))
    yield either(
        "a penalty on the weights",
        lambda: net_trial(model=nn.Linear(HIDDEN, 3), batches=[(features(HIDDEN),)], losses=decay),
    )
    yield exact("as many features as rows", lambda: around(Own(torch.mul, (ROWS,)), ROWS))
    yield exact(
        "a table of places as many as rows",
        lambda: around(Own(torch.add, (ROWS, LENGTH)), ROWS, LENGTH),
    )


def spectral(*, evaluating: bool) -> Trial:
    trial = around(parametrizations.spectral_norm(nn.Linear(HIDDEN, 4)), HIDDEN)
    trial.model.train(not evaluating)
    # In training every run takes a step of the power iteration; the proof takes several.
    trial.tolerance = 1e-2
    return trial
