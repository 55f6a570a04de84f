"""Parameters that are used without a layer, shared, without dimensions, or computed."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

from tests.privacy.clipper66.cases.case import Case, Trial, either, exact, unbatched
from tests.privacy.clipper66.cases.nets import (
    HIDDEN,
    LENGTH,
    ROWS,
    WORDS,
    features,
    layer_trial,
    next_words,
    only_layer_trial,
    squared,
    words,
)


class Own(nn.Module):
    """A module of one function and the parameters that it uses."""

    def __init__(self, run: Callable[..., Tensor], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.run = run
        self.weights = nn.ParameterList([torch.randn(shape) * 0.5 for shape in shapes])

    def forward(self, h: Tensor) -> Tensor:
        return self.run(h, *self.weights)


class Committee(nn.Module):
    """Three layers, weighted by each row's values, without a capacity."""

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


class WithPenalty(nn.Module):
    """Adds a penalty on a layer's weight to that layer's output."""

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


def bias_only(layer: nn.Linear) -> nn.Linear:
    layer.weight.requires_grad_(False)
    return layer


class ReadsAValue(nn.Linear):
    """Changes with a value, which torch.vmap cannot follow."""

    def forward(self, h: Tensor) -> Tensor:
        return super().forward(h) if float(h.detach().abs().sum()) > 0 else -super().forward(h)


class ByRow(nn.Module):
    """Rows take one of two layers, by their values."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(HIDDEN, 4), nn.Linear(HIDDEN, 4)

    def forward(self, h: Tensor) -> Tensor:
        out = h.new_zeros(len(h), HIDDEN)
        small = h[:, 0] > 0
        out[small, :4] = self.small(h[small])
        out[~small, 4:] = self.large(h[~small])
        return out


H: tuple[int, ...] = (HIDDEN,)
NUMBER: tuple[int, ...] = ()
SQUARE = (HIDDEN, HIDDEN)
VECTOR: dict[str, Callable[[], nn.Module]] = {
    "a 0-dimensional temperature": lambda: Own(lambda h, t: h / t.exp(), NUMBER),
    "a 0-dimensional gate": lambda: Own(lambda h, g: h + g * torch.tanh(h), NUMBER),
    "two numbers": lambda: Own(lambda h, a, c: a * h + c, NUMBER, NUMBER),
    "a number for a power": lambda: Own(lambda h, p: (h.abs() + 0.1) ** p, NUMBER),
    "a temperature of one number": lambda: Own(lambda h, t: h * t, (1,)),
    "a scale of each feature": lambda: Own(lambda h, s: h * s, H),
    "a shift of each feature": lambda: Own(lambda h, s: h + s, (1, HIDDEN)),
    "a matrix by @": lambda: Own(lambda h, w: h @ w, (HIDDEN, 4)),
    "a matrix by einsum": lambda: Own(
        lambda h, w: torch.einsum("...i,oi->...o", h, w), (4, HIDDEN)
    ),
    "a quadratic form": lambda: Own(
        lambda h, w: torch.einsum("bi,ij,bj->b", h, w, h)[:, None], SQUARE
    ),
    "low rank": lambda: Own(lambda h, u, v: h + h @ u @ v, (HIDDEN, 2), (2, HIDDEN)),
    "a diagonal and its mean": lambda: Own(lambda h, d: h * (d - d.mean()), H),
    "codes by distance": lambda: Own(lambda h, c: torch.cdist(h, c), (3, HIDDEN)),
    "hard codes": lambda: Own(lambda h, c: h + c[torch.cdist(h, c).argmin(1)], (3, HIDDEN)),
    "functional linear": lambda: Own(lambda h, w: F.linear(h, w), (4, HIDDEN)),
    "a weight used twice": lambda: Own(lambda h, w: torch.tanh(h @ w) @ w, SQUARE),
    "a weight and its transpose": lambda: Own(lambda h, w: (h @ w) @ w.T, (HIDDEN, 3)),
    "a symmetric weight": lambda: Own(lambda h, w: h @ (w + w.T), SQUARE),
    "an orthogonal weight": lambda: Own(lambda h, w: h @ torch.matrix_exp(w - w.T), SQUARE),
    "experts by softmax": lambda: Own(
        lambda h, g, w: torch.einsum("be,bi,eio->bo", (h @ g).softmax(-1), h, w),
        (HIDDEN, 3), (3, HIDDEN, 4),
    ),
    "experts one by one": Committee,
    "complex weights": lambda: Own(
        lambda h, re, im: torch.view_as_real(h.to(torch.complex64) @ torch.complex(re, im)),
        (HIDDEN, 3), (HIDDEN, 3),
    ),
    "a filter of frequencies": lambda: Own(
        lambda h, f: torch.fft.irfft(torch.fft.rfft(h) * f, n=HIDDEN), (HIDDEN // 2 + 1,)
    ),
    "a ParameterDict": Named,
    "weight norm, old": lambda: weight_norm(nn.Linear(HIDDEN, 4)),
    "weight norm of the whole, old": lambda: weight_norm(nn.Linear(HIDDEN, 4), dim=None),
    "weight norm, parametrized": lambda: parametrizations.weight_norm(nn.Linear(HIDDEN, 4)),
    "orthogonal, parametrized": lambda: parametrizations.orthogonal(nn.Linear(HIDDEN, HIDDEN)),
    "own parametrization": lambda: symmetric(nn.Linear(HIDDEN, HIDDEN)),
    "pruned": lambda: prune.random_unstructured(nn.Linear(HIDDEN, 4), "weight", 0.3),
    "a layer shared in a row": lambda: shared(nn.Linear(HIDDEN, HIDDEN)),
    "a norm shared in a row": lambda: shared(nn.LayerNorm(HIDDEN)),
    "a weight of two layers": two_layers,
    "a weight and its transpose, in two layers": Transposed,
    "a subclass of Linear": lambda: Scaled(HIDDEN, 4),
    "a frozen layer": lambda: nn.Linear(HIDDEN, 4).requires_grad_(False),
    "bias only": lambda: bias_only(nn.Linear(HIDDEN, 4)),
    "an idle weight": Idle,
}  # fmt: skip
UNBATCHED: dict[str, Callable[[], nn.Module]] = {
    "a penalty on its own weight": WithPenalty,
    "a weight in a Python loop over rows": InPython,
    "own backward": lambda: Own(lambda h, w: Doubling.apply(h @ w), (HIDDEN, 4)),
    "reads a value": lambda: ReadsAValue(HIDDEN, 4),
    "rows that take two ways by an index": ByRow,
    "traced": lambda: torch.jit.trace(nn.Linear(HIDDEN, 4), torch.ones(2, HIDDEN)),
}


class PlusOneNorm(nn.Module):
    """Gemma's RMSNorm: the weight is added to one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((HIDDEN,), 0.1))

    def forward(self, h: Tensor) -> Tensor:
        return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


class ScaledNorm(nn.Module):
    """Layers with a rule between two uses of a raw weight."""

    def __init__(self, layer: nn.Module, *shape: int) -> None:
        super().__init__()
        self.layer = layer
        self.scale = nn.Parameter(torch.randn(shape))

    def forward(self, h: Tensor) -> Tensor:
        return self.layer(h * self.scale) * self.scale


class Positions(nn.Module):
    """Positions that are looked up once for all rows, and pass through a layer."""

    def __init__(self, place: Callable[[Tensor, Tensor], Tensor], length: int) -> None:
        super().__init__()
        self.table = nn.Embedding(length, HIDDEN)
        self.behind = nn.Linear(HIDDEN, HIDDEN)
        self.place = place

    def forward(self, h: Tensor) -> Tensor:
        prompt = self.behind(self.table(torch.arange(self.table.num_embeddings)[None]))
        return self.place(h, prompt)


class RelativeBias(nn.Module):
    """T5's way: a (t, t) look-up, which at b = t looks like one that carries the batch."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.bias = nn.Embedding(length, 1)

    def forward(self, h: Tensor) -> Tensor:
        places = torch.arange(h.shape[1])
        bias = self.bias((places[:, None] - places).abs()).squeeze(-1)
        return 20 * (h @ h.mT + bias).softmax(-1) @ h


class TableThroughLayer(nn.Module):
    """DeBERTa's way: an embedding's weight passes through a layer, without a look-up."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.dense = nn.Embedding(LENGTH, HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, h: Tensor) -> Tensor:
        return self.dense(h) * self.dense(self.table.weight)


class MovesBatch(nn.Module):
    """Returns the batch in dimension 2."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(LENGTH))

    def forward(self, h: Tensor) -> Tensor:
        return (h.mT.contiguous() * self.scale).movedim(0, 2)


PLACES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "broadcast": lambda h, prompt: h + prompt,
    "one sequence": lambda h, prompt: h + prompt[0],
    "repeated": lambda h, prompt: torch.cat([prompt.repeat(len(h), 1, 1), h], 1),
    "expanded": lambda h, prompt: torch.cat([prompt.expand(len(h), -1, -1), h], 1),
}


class Tied(nn.Module):
    """An embedding and a head that are one weight, and a temperature."""

    def __init__(self, head: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, HIDDEN)
        self.leave = nn.Linear(HIDDEN, WORDS, bias=False)
        self.leave.weight = self.table.weight
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.head = head

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self, torch.tanh(self.table(ids))) * self.temperature


def by_hand(model: nn.Module, h: Tensor) -> Tensor:
    return h @ model.table.weight.T


def linear() -> nn.Module:
    return nn.Linear(HIDDEN, HIDDEN)


def decay(model: nn.Module, x: Tensor) -> Tensor:
    """Add the same penalty on the weights to each row's loss."""
    return squared(model, x) + 0.1 * model.weight.square().sum()


def spectral(*, training: bool) -> Trial:
    trial = layer_trial(parametrizations.spectral_norm(nn.Linear(HIDDEN, 4)), HIDDEN)
    trial.model.train(training)
    # In training mode each forward pass writes one step of the power iteration to a buffer.
    trial.tolerance = 1e-2 if training else trial.tolerance
    return trial


def root(shape: tuple[int, ...]) -> Trial:
    return only_layer_trial(Own(torch.mul, shape), lambda rows: features(rows, HIDDEN))


def cases() -> Iterator[Case]:
    """Yield all cases of this file."""
    for name, make in VECTOR.items():
        yield exact(name, lambda m=make: layer_trial(m(), HIDDEN))
    for name, make in UNBATCHED.items():
        yield unbatched(name, lambda m=make: layer_trial(m(), HIDDEN))
    for name, place in PLACES.items():
        for length in (LENGTH, ROWS):
            yield exact(
                f"{length} positions for all rows, {name}",
                lambda p=place, n=length: layer_trial(Positions(p, n), n, HIDDEN),
            )
    for length in (LENGTH, ROWS):
        yield exact(
            f"relative bias over {length} places",
            lambda n=length: layer_trial(RelativeBias(n), n, HIDDEN),
        )
    images = {"GroupNorm": lambda: nn.GroupNorm(2, 6), "Conv2d": lambda: nn.Conv2d(6, 6, 1)}
    for name, make in images.items():
        yield exact(
            f"{name} between two uses of a raw weight",
            lambda m=make: layer_trial(ScaledNorm(m(), 6, 1, 1), 6, 3, 5),
        )
    for name, make in {"LayerNorm": lambda: nn.LayerNorm(HIDDEN), "Linear": linear}.items():
        yield exact(
            f"{name} between two uses of a raw weight",
            lambda m=make: layer_trial(ScaledNorm(m(), HIDDEN), LENGTH, HIDDEN),
        )
    yield exact("a norm of Gemma's kind", lambda: layer_trial(PlusOneNorm(), LENGTH, HIDDEN))
    yield exact("a table through a layer", lambda: layer_trial(TableThroughLayer(), LENGTH, HIDDEN))
    moved = lambda model, h: squared(lambda h: model(h).movedim(2, 0), h)  # noqa: E731
    yield unbatched(
        "the batch moved to dimension 2",
        lambda: only_layer_trial(
            MovesBatch(), lambda rows: features(rows, LENGTH, HIDDEN), losses=moved
        ),
    )
    yield either(
        "spectral norm, old", lambda: layer_trial(spectral_norm(nn.Linear(HIDDEN, 4)), HIDDEN)
    )
    yield exact("spectral norm in evaluation mode", lambda: spectral(training=False))
    yield either("spectral norm in training mode", lambda: spectral(training=True))
    yield exact("a parameter of the root module", lambda: root(H))
    yield exact("a number of the root module", lambda: root(NUMBER))
    yield unbatched(
        "a penalty on the weights",
        lambda: only_layer_trial(
            nn.Linear(HIDDEN, 3), lambda rows: features(rows, HIDDEN), losses=decay
        ),
    )
    yield exact("as many features as rows", lambda: layer_trial(Own(torch.mul, (ROWS,)), ROWS))
    yield exact(
        "a table of places as many as rows",
        lambda: layer_trial(Own(torch.add, (ROWS, LENGTH)), ROWS, LENGTH),
    )
    yield exact(
        "tied, with a temperature",
        lambda: only_layer_trial(Tied(lambda m, h: m.leave(h)), words, losses=next_words),
    )
    yield exact("tied by hand", lambda: only_layer_trial(Tied(by_hand), words, losses=next_words))
