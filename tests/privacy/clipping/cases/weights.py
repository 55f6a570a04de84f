"""Parameters that are used without a layer, shared, without dimensions, or computed."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from tests.privacy.clipping.cases.case import Case, Trial, either, exact, unbatched
from tests.privacy.clipping.cases.nets import (
    HIDDEN,
    LENGTH,
    ROWS,
    WORDS,
    Built,
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


def shared(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer, nn.Tanh(), layer)


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


def bias_only(layer: nn.Linear) -> nn.Linear:
    layer.weight.requires_grad_(False)
    return layer


class ReadsAValue(nn.Linear):
    """Changes with a value, which torch.vmap cannot follow."""

    def forward(self, h: Tensor) -> Tensor:
        return super().forward(h) if float(h.detach().abs().sum()) > 0 else -super().forward(h)


def by_row(m: nn.Module, h: Tensor) -> Tensor:
    """Give each row one of two layers, by its values."""
    out, small = h.new_zeros(len(h), HIDDEN), h[:, 0] > 0
    out[small, :4] = m.small(h[small])
    out[~small, 4:] = m.large(h[~small])
    return out


H: tuple[int, ...] = (HIDDEN,)
NUMBER: tuple[int, ...] = ()
SQUARE = (HIDDEN, HIDDEN)
VECTOR: dict[str, Callable[[], nn.Module]] = {
    "a 0-dimensional temperature": lambda: Own(lambda h, t: h / t.exp(), NUMBER),
    "a scale of each feature": lambda: Own(lambda h, s: h * s, H),
    "a matrix by @": lambda: Own(lambda h, w: h @ w, (HIDDEN, 4)),
    "a weight used twice": lambda: Own(lambda h, w: torch.tanh(h @ w) @ w, SQUARE),
    "a weight and its transpose": lambda: Own(lambda h, w: (h @ w) @ w.T, (HIDDEN, 3)),
    "complex weights": lambda: Own(
        lambda h, re, im: torch.view_as_real(h.to(torch.complex64) @ torch.complex(re, im)),
        (HIDDEN, 3), (HIDDEN, 3),
    ),
    "a ParameterDict": lambda: Built(
        lambda m, h: h @ m.weights["up"] + m.weights["down"],
        weights=nn.ParameterDict({"up": torch.randn(HIDDEN, 4), "down": torch.randn(4)}),
    ),
    "weight norm, old": lambda: weight_norm(nn.Linear(HIDDEN, 4)),
    "weight norm, parametrized": lambda: parametrizations.weight_norm(nn.Linear(HIDDEN, 4)),
    "pruned": lambda: prune.random_unstructured(nn.Linear(HIDDEN, 4), "weight", 0.3),
    "a layer shared in a row": lambda: shared(nn.Linear(HIDDEN, HIDDEN)),
    "a weight and its transpose, in two layers": lambda: Built(
        lambda m, h: torch.tanh(m.down(h)) @ m.down.weight, down=nn.Linear(HIDDEN, 3)
    ),
    "a subclass of Linear": lambda: Scaled(HIDDEN, 4),
    "bias only": lambda: bias_only(nn.Linear(HIDDEN, 4)),
    "an idle weight": lambda: Built(
        lambda m, h: m.used(h), used=nn.Linear(HIDDEN, 4), idle=nn.Linear(3, 3)
    ),
}  # fmt: skip
UNBATCHED: dict[str, Callable[[], nn.Module]] = {
    "a penalty on its own weight": lambda: Built(
        lambda m, h: m.dense(h) + m.dense.weight.square().sum(), dense=nn.Linear(HIDDEN, 4)
    ),
    "own backward": lambda: Own(lambda h, w: Doubling.apply(h @ w), (HIDDEN, 4)),
    "reads a value": lambda: ReadsAValue(HIDDEN, 4),
    "rows that take two ways by an index": lambda: Built(
        by_row, small=nn.Linear(HIDDEN, 4), large=nn.Linear(HIDDEN, 4)
    ),
    "traced": lambda: torch.jit.trace(nn.Linear(HIDDEN, 4), torch.ones(2, HIDDEN)),
}


def plus_one_norm(m: nn.Module, h: Tensor) -> Tensor:
    """Gemma's RMSNorm: the weight is added to one."""
    return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * (1 + m.weight)


def between_scales(layer: nn.Module, *shape: int) -> nn.Module:
    """A layer with a rule between two uses of a raw weight."""
    return Built(lambda m, h: m.layer(h * m.scale) * m.scale, layer=layer, scale=torch.randn(shape))


def positions(place: Callable[[Tensor, Tensor], Tensor], length: int) -> nn.Module:
    """Positions that are looked up once for all rows, and pass through a layer."""
    return Built(
        lambda m, h: place(h, m.behind(m.table(torch.arange(length)[None]))),
        table=nn.Embedding(length, HIDDEN),
        behind=nn.Linear(HIDDEN, HIDDEN),
    )


def relative_bias(m: nn.Module, h: Tensor) -> Tensor:
    """T5's way: a (t, t) look-up, which at b = t looks like one that carries the batch."""
    places = torch.arange(h.shape[1])
    bias = m.bias((places[:, None] - places).abs()).squeeze(-1)
    return 20 * (h @ h.mT + bias).softmax(-1) @ h


def table_through_layer() -> nn.Module:
    """DeBERTa's way: an embedding's weight passes through a layer, without a look-up."""
    return Built(
        lambda m, h: m.dense(h) * m.dense(m.table.weight),
        table=nn.Embedding(LENGTH, HIDDEN),
        dense=nn.Linear(HIDDEN, HIDDEN),
    )


def heads_in_front(m: nn.Module, h: Tensor) -> Tensor:
    """Fold heads into the batch, in front of it."""
    heads = m.dense(h).view(*h.shape[:2], 2, HIDDEN // 2).permute(2, 0, 1, 3).flatten(0, 1)
    return m.norm(heads).view(2, *h.shape[:2], HIDDEN // 2).transpose(0, 1)


def selected_tokens(m: nn.Module, h: Tensor) -> Tensor:
    """Use a layer on the tokens that a mask selects."""
    mask = h[..., 0] > 0
    return torch.zeros(len(h), 4).index_add(0, mask.nonzero()[:, 0], m.dense(h[mask]))


def slope(m: nn.Module, h: Tensor) -> Tensor:
    """Return a gradient with respect to the input, such as score models do."""
    h = h.detach().requires_grad_()
    return torch.autograd.grad(m.dense(h).tanh().sum(), h, create_graph=True)[0]


def in_place(m: nn.Module, h: Tensor) -> Tensor:
    out = m.norm(m.dense(h))
    out *= 2
    return out


def shared_context(m: nn.Module, h: Tensor) -> Tensor:
    """Use a layer on rows, and on data that all rows share."""
    return m.dense(h * m.scale) + m.dense(torch.ones(LENGTH, HIDDEN))


def dense() -> nn.Module:
    return nn.Linear(HIDDEN, HIDDEN)


SHAPED: dict[str, Callable[[], nn.Module]] = {
    "heads in front of the batch": lambda: Built(
        heads_in_front, dense=dense(), norm=nn.LayerNorm(HIDDEN // 2)
    ),
    "rows repeated as blocks": lambda: Built(
        lambda m, h: m.dense(h.repeat(3, 1, 1)).view(3, *h.shape).sum(0), dense=dense()
    ),
    "tokens in front, in one line": lambda: Built(
        lambda m, h: (
            m.dense(h.transpose(0, 1).flatten(0, 1)).view(LENGTH, -1, HIDDEN).transpose(0, 1)
        ),
        dense=dense(),
    ),
    "outputs changed in place": lambda: Built(in_place, dense=dense(), norm=nn.LayerNorm(HIDDEN)),
    "a layer on rows and on shared data": lambda: Built(
        shared_context, dense=dense(), scale=torch.randn(HIDDEN)
    ),
    "a mapped module recomputed": lambda: Built(
        lambda m, h: checkpoint(m.inner, h, use_reentrant=False),
        inner=Built(shared_context, dense=dense(), scale=torch.randn(HIDDEN)),
    ),
}
SHAPED_BY_DATA: dict[str, Callable[[], nn.Module]] = {
    "tokens selected by a mask": lambda: Built(selected_tokens, dense=nn.Linear(HIDDEN, 4)),
    "a slope with respect to the input": lambda: Built(slope, dense=nn.Linear(HIDDEN, 4)),
}
PLACES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "broadcast": lambda h, prompt: h + prompt,
    "one sequence": lambda h, prompt: h + prompt[0],
    "repeated": lambda h, prompt: torch.cat([prompt.repeat(len(h), 1, 1), h], 1),
    "expanded": lambda h, prompt: torch.cat([prompt.expand(len(h), -1, -1), h], 1),
}


def tied(head: Callable[[nn.Module, Tensor], Tensor]) -> Trial:
    """An embedding and a head that are one weight, and a temperature."""
    model = Built(
        lambda m, ids: head(m, torch.tanh(m.table(ids))) * m.temperature,
        table=nn.Embedding(WORDS, HIDDEN),
        leave=nn.Linear(HIDDEN, WORDS, bias=False),
        temperature=torch.tensor(0.7),
    )
    model.leave.weight = model.table.weight
    return only_layer_trial(model, words, losses=next_words)


def decay(model: nn.Module, x: Tensor) -> Tensor:
    """Add the same penalty on the weights to each row's loss."""
    return squared(model, x) + 0.1 * model.weight.square().sum()


def spectral(*, training: bool) -> Trial:
    trial = layer_trial(parametrizations.spectral_norm(nn.Linear(HIDDEN, 4)), HIDDEN)
    trial.model.train(training)
    # In training mode each forward pass writes one step of the power iteration to a buffer.
    trial.tolerance = 1e-2 if training else trial.tolerance
    return trial


def cases() -> Iterator[Case]:
    """Yield all cases of this file."""
    for name, make in VECTOR.items():
        yield exact(name, lambda m=make: layer_trial(m(), HIDDEN))
    for name, make in UNBATCHED.items():
        yield unbatched(name, lambda m=make: layer_trial(m(), HIDDEN))
    for kind, table in ((exact, SHAPED), (unbatched, SHAPED_BY_DATA)):
        for name, make in table.items():
            yield kind(name, lambda m=make: layer_trial(m(), LENGTH, HIDDEN))
    for name, place in PLACES.items():
        for length in (LENGTH, ROWS):
            yield exact(
                f"{length} positions for all rows, {name}",
                lambda p=place, n=length: layer_trial(positions(p, n), n, HIDDEN),
            )
    for length in (LENGTH, ROWS):
        yield exact(
            f"relative bias over {length} places",
            lambda n=length: layer_trial(Built(relative_bias, bias=nn.Embedding(n, 1)), n, HIDDEN),
        )
    images = {"GroupNorm": lambda: nn.GroupNorm(2, 6), "Conv2d": lambda: nn.Conv2d(6, 6, 1)}
    for name, make in images.items():
        yield exact(
            f"{name} between two uses of a raw weight",
            lambda m=make: layer_trial(between_scales(m(), 6, 1, 1), 6, 3, 5),
        )
    for name, make in {
        "LayerNorm": lambda: nn.LayerNorm(HIDDEN),
        "Linear": dense,
    }.items():
        yield exact(
            f"{name} between two uses of a raw weight",
            lambda m=make: layer_trial(between_scales(m(), HIDDEN), LENGTH, HIDDEN),
        )
    yield exact(
        "a norm of Gemma's kind",
        lambda: layer_trial(
            Built(plus_one_norm, weight=torch.full((HIDDEN,), 0.1)), LENGTH, HIDDEN
        ),
    )
    yield exact(
        "a table through a layer", lambda: layer_trial(table_through_layer(), LENGTH, HIDDEN)
    )
    moved = lambda model, h: squared(lambda h: model(h).movedim(2, 0), h)  # noqa: E731
    last = lambda m, h: (h.mT.contiguous() * m.scale).movedim(0, 2)  # noqa: E731
    yield unbatched(
        "the batch moved to dimension 2",
        lambda: only_layer_trial(
            Built(last, scale=torch.ones(LENGTH)),
            lambda rows: features(rows, LENGTH, HIDDEN),
            losses=moved,
        ),
    )
    yield either(
        "spectral norm, old", lambda: layer_trial(spectral_norm(nn.Linear(HIDDEN, 4)), HIDDEN)
    )
    yield exact("spectral norm in evaluation mode", lambda: spectral(training=False))
    yield either("spectral norm in training mode", lambda: spectral(training=True))
    yield exact(
        "a parameter of the root module",
        lambda: only_layer_trial(Own(torch.mul, H), lambda rows: features(rows, HIDDEN)),
    )
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
    yield exact("tied, with a temperature", lambda: tied(lambda m, h: m.leave(h)))
    yield exact("tied by hand", lambda: tied(lambda m, h: h @ m.table.weight.T))
