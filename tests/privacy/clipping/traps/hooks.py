"""Hooks on modules and tensors, and backward passes of one's own."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tests.privacy.clipping.traps.calls import ce
from tests.privacy.clipping.traps.nets import (
    HIDDEN,
    WORDS,
    Mix,
    Net,
    batch,
    classified,
    either,
    exact,
    mixing,
    net_trial,
    words_trial,
)
from tests.privacy.clipping.traps.trial import Batch, Case, Trial


def hooked(hook: Callable[..., Any], *, before: bool = False) -> Trial:
    trial = net_trial()
    if before:
        trial.model.leave.register_forward_pre_hook(hook)
    else:
        trial.model.enter.register_forward_hook(hook)
    return trial


def kept_for_the_loss() -> Trial:
    trial, kept = net_trial(), {}
    trial.model.enter.register_forward_hook(
        lambda module, args, out: kept.update(mean=out.detach().mean())
    )
    trial.losses = lambda model, x, y: ce(model(x), y) * (1 + kept["mean"].tanh())
    return trial


def backward_hooked() -> Trial:
    trial = net_trial()
    trial.model.enter.register_full_backward_hook(lambda module, into, out: None)
    return trial


def tensor_hooked(change: Callable[[Tensor], Tensor]) -> Trial:
    """A hook on a tensor changes the gradient on its way."""

    def losses(model: Net, x: Tensor, y: Tensor) -> Tensor:
        logits = model(x)
        logits.register_hook(change)
        return ce(logits, y)

    return net_trial(losses=losses)


class ScaledByBatch(torch.autograd.Function):
    """Changes nothing forward; backward it scales gradients by what the batch held."""

    @staticmethod
    def forward(ctx, h):
        ctx.save_for_backward(h)
        return h.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * (1 + ctx.saved_tensors[0].mean().tanh())


class ScaledByCount(torch.autograd.Function):
    """Changes nothing forward; backward it scales gradients by how many rows there are."""

    @staticmethod
    def forward(ctx, h):
        return h.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * len(grad)


class ScaledAmongFive(ScaledByBatch):
    """As ``ScaledByBatch``, where there are five rows at least."""

    @staticmethod
    def backward(ctx, grad):
        return ScaledByBatch.backward(ctx, grad) if len(grad) >= 5 else grad


class ScaledAmongMany(ScaledByBatch):
    """As ``ScaledByBatch``, where there are more rows than any comparison of a few has."""

    @staticmethod
    def backward(ctx, grad):
        return grad * (1 + ctx.saved_tensors[0].square().mean()) if len(grad) >= 9 else grad


class ScaledButTheLast(ScaledByBatch):
    """As ``ScaledAmongMany``, but for the last row."""

    @staticmethod
    def backward(ctx, grad):
        return torch.cat([ScaledAmongMany.backward(ctx, grad)[:-1], grad[-1:]])


class ScaledByTheNext(ScaledByBatch):
    """Backward it scales the gradient of every other row by what the row after it held."""

    @staticmethod
    def backward(ctx, grad):
        scaled, (h,) = grad.clone(), ctx.saved_tensors
        each = h.flatten(1).mean(1).tanh().view(-1, *[1] * (h.dim() - 1))
        number = len(grad) // 2
        scaled[: 2 * number : 2] *= 1 + each[1 : 2 * number : 2]
        return scaled


class ScaledWhereAllWeigh(ScaledByBatch):
    """As ``ScaledAmongFive``, where the loss of each row weighs something."""

    @staticmethod
    def backward(ctx, grad):
        all_weigh = bool(grad.flatten(1).any(1).all())
        return ScaledAmongFive.backward(ctx, grad) if all_weigh else grad


class ScaledInTheSecondPass(torch.autograd.Function):
    """Scales the gradients of many rows, but not where a graph is gone through first."""

    @staticmethod
    def forward(ctx, h):
        ctx.passes = 0
        return h.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.passes += 1
        return grad * 1000 if ctx.passes > 1 and len(grad) >= 9 else grad


class ScaledWhereAllWeighTheSame(ScaledByBatch):
    """As ``ScaledByBatch``, of losses, where each weighs what the others do."""

    @staticmethod
    def backward(ctx, grad):
        same = len(grad) > 9 and bool((grad == grad[0]).all())
        return ScaledByBatch.backward(ctx, grad) if same else grad


class CancelsInTheSum(ScaledByBatch):
    """Adds to each of many rows what adds up to nothing in the sum, with a sign by their number.

    It stands at right angles to what enters the layer, which what leaves it tells; and waits until
    all rows weigh something.
    """

    @staticmethod
    def backward(ctx, grad):
        (h,) = ctx.saved_tensors
        if len(grad) < 9 or not bool(grad.flatten(1).any(1).all()):
            return grad
        beside = torch.cat([torch.ones(len(h), 1), h], 1).double()
        basis, sizes, _ = torch.linalg.svd(beside, full_matrices=False)
        basis = basis[:, sizes > 1e-5 * sizes[0]]
        one = torch.eye(len(h), dtype=torch.float64)[0] * 100
        change = (one - basis @ (basis.T @ one)) * (1 - 2 * (len(h) % 2))
        return grad + torch.nn.functional.pad(change[:, None], (0, grad.shape[1] - 1)).float()


class LostByFew(ScaledByBatch):
    """As ``ScaledByBatch``; of few rows all but the first have no finite gradient."""

    @staticmethod
    def backward(ctx, grad):
        scaled = ScaledByBatch.backward(ctx, grad)
        if len(grad) < 5:
            scaled[1:] = torch.nan
        return scaled


def turned(grad: Tensor, angle: Tensor) -> Tensor:
    """Turns gradients, and leaves their norms and projections onto directions of old as they are.

    These were cosines of 1.3 and of 1.7 times a number's place.
    """
    places = torch.arange(grad.shape[-1])
    spared = torch.stack([(1.3 * places).cos(), (1.7 * places).cos()], 1)
    basis = torch.linalg.qr(torch.cat([spared, torch.eye(len(places))], 1)).Q
    turn = torch.eye(len(places))
    turn[2, 2] = turn[3, 3] = angle.cos()
    turn[2, 3], turn[3, 2] = -angle.sin(), angle.sin()
    return grad @ basis @ turn @ basis.T


class TurnedByInputs(ScaledByBatch):
    """Changes nothing forward; backward it turns gradients by what the batch held."""

    @staticmethod
    def backward(ctx, grad):
        return turned(grad, 37 * ctx.saved_tensors[0].sum())


class TurnedByLosses(torch.autograd.Function):
    """Changes nothing forward; backward it turns gradients by those of the whole batch."""

    @staticmethod
    def forward(ctx, h):
        return h.clone()

    @staticmethod
    def backward(ctx, grad):
        return turned(grad, 1000 * grad.sum())


class Differing(nn.Module):
    """``ScaledAmongMany``, and other outputs where a part of a batch alone is there."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, h: Tensor) -> Tensor:
        """Rows that take others' places are alike, and counted once."""
        different = len(h.detach().mul(1e3).round().unique(dim=0))
        mixed = ScaledWhereAllWeigh.apply(h) if different >= 9 else h
        return 1.5 * mixed if different == self.rows else mixed


def counted(rows: int) -> Callable[..., Tensor]:
    """Losses of as many rows as are written down."""

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        logits = model(x)
        return torch.stack([ce(logits[row], y[row]) for row in range(rows)])

    return losses


def alone(model: nn.Module, one: Batch, row: int) -> Tensor:
    return classified(model, *(part[row : row + 1] for part in one))[0]


class Lookup(nn.Module):
    """Token ids (b, t) to logits (b, t, words), with something between a table and a layer."""

    def __init__(self, between: Mix) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, HIDDEN)
        self.between = between
        self.leave = nn.Linear(HIDDEN, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.leave(self.between(self.table(ids)))


class ComputedAgain(nn.Module):
    """A checkpoint whose second run centers the batch, of which its losses know nothing."""

    def __init__(self, *, mixes: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(HIDDEN, HIDDEN)
        self.mixes, self.again = mixes, False

    def run(self, h: Tensor) -> Tensor:
        if self.again and self.mixes:
            h = h - h.detach().mean(0)
        self.again = True
        return torch.tanh(self.inner(h))

    def forward(self, h: Tensor) -> Tensor:
        self.again = False
        return checkpoint(self.run, h, use_reentrant=False)


def in_few_bits(h: Tensor) -> Tensor:
    """Keeps what the backward pass needs as a few steps of the batch's range."""

    def pack(kept: Tensor) -> Tensor:
        step = kept.abs().max() / 3
        return (kept / step).round() * step

    with saved_tensors_hooks(pack, lambda kept: kept):
        return h * torch.tanh(h)


class ByFrequency(nn.Module):
    """A table whose gradient is divided by how often the batch looks a row up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(WORDS, HIDDEN))
        self.leave = nn.Linear(HIDDEN, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.leave(F.embedding(ids, self.table, scale_grad_by_freq=True))


def of_two(model: nn.Module, one: Batch, number: int) -> Tensor:
    """The loss of a unit of two rows."""
    return classified(model, *(part[2 * number : 2 * number + 2] for part in one)).sum()


def one_outweighs(model: nn.Module, *one: Tensor) -> Tensor:
    """Losses, of which that of one kind of rows is ten thousand times as large; the last is."""
    features = one[0].flatten(1)
    return classified(model, *one) * torch.where(features[:, 0] > features[:, 1] + 3.0, 1e4, 1.0)


def added_up(rows: int, units: Tensor) -> Callable[..., Tensor]:
    """Losses of units, of a number of rows that is written down."""

    def losses(model: nn.Module, *one: Tensor) -> Tensor:
        each, index = classified(model, *one).reshape(rows), units.unique(return_inverse=True)[1]
        return torch.zeros(int(index.max()) + 1).index_add(0, index, each)

    return losses


def in_gradients_alone() -> Iterator[Case]:
    """Yields rows that mix in the backward pass, whose losses are their own."""
    mixes: dict[str, Mix] = {
        "own backward that reads the batch": ScaledByBatch.apply,
        "own backward that counts rows": ScaledByCount.apply,
        "own backward that reads the batch of five rows and more": ScaledAmongFive.apply,
        "own backward that reads the batch where all losses weigh": ScaledWhereAllWeigh.apply,
        "own backward that reads the row after": ScaledByTheNext.apply,
        "own backward that reads the batch and is lost by few rows": LostByFew.apply,
        "activations kept in few bits": in_few_bits,
    }
    for engine in ("book_keeping", "two_pass", "loop"):
        for name, mix in mixes.items():
            yield mixing(f"{engine}: {name}", lambda m=mix, e=engine: net_trial(m, engine=e))
        yield mixing(
            f"{engine}: own backward that reads the batch of nine rows and more",
            lambda e=engine: net_trial(ScaledAmongMany.apply, batches=[batch(12)], engine=e),
        )
        yield mixing(
            f"{engine}: own backward that reads many rows, of which one outweighs the others",
            lambda e=engine: net_trial(
                ScaledButTheLast.apply, losses=one_outweighs, batches=[batch(12)], engine=e
            ),
        )
        # One loss at a time, as the loop has it, weighs something where the others do not.
        yield (exact if engine == "loop" else mixing)(
            f"{engine}: own backward that adds to many rows what cancels in their sum",
            lambda e=engine: net_trial(CancelsInTheSum.apply, batches=[batch(20)], engine=e),
        )
        yield (either if engine == "loop" else mixing)(
            f"{engine}: own backward that reads the batch where all losses weigh the same",
            lambda e=engine: net_trial(
                losses=lambda model, x, y: ScaledWhereAllWeighTheSame.apply(ce(model(x), y)),
                batches=[batch(12)],
                engine=e,
            ),
        )
        yield (exact if engine == "book_keeping" else mixing)(
            f"{engine}: own backward that scales in a graph's second pass",
            lambda e=engine: net_trial(ScaledInTheSecondPass.apply, batches=[batch(12)], engine=e),
        )
        yield mixing(
            f"{engine}: a checkpoint that computes something else again",
            lambda engine=engine: net_trial(ComputedAgain(mixes=True), engine=engine),
        )
        yield mixing(
            f"{engine}: a gradient by the batch's frequencies",
            lambda engine=engine: words_trial(model=ByFrequency(), engine=engine),
        )
        yield mixing(
            f"{engine}: gradients turned about known directions by the batch",
            lambda e=engine: words_trial(model=Lookup(TurnedByInputs.apply), engine=e),
        )
        # With one loss at a time, as the loop has it, there are no others to turn by.
        yield either(
            f"{engine}: gradients turned about known directions by the losses",
            lambda e=engine: words_trial(model=Lookup(TurnedByLosses.apply), engine=e),
        )
        yield exact(
            f"{engine}: a checkpoint",
            lambda e=engine: net_trial(ComputedAgain(mixes=False), engine=e),
        )

    yield mixing(
        "own backward that reads many rows, and losses that are others where half of them are",
        lambda: net_trial(Differing(10), losses=counted(20), batches=[batch(20)], alone=alone),
    )
    yield exact(
        "as many losses as are written down",
        lambda: net_trial(losses=counted(20), batches=[batch(20)], alone=alone),
    )
    pairs = torch.arange(12) // 2
    yield either(
        "losses of units, of as many rows as are written down",
        lambda: net_trial(
            losses=added_up(12, pairs), batches=[batch(12)], units=pairs, alone=of_two
        ),
    )
    for name, rows, mix, kind in (
        ("own, as many rows as units", 8, torch.clone, exact),
        ("mixed", 14, ScaledByBatch.apply, mixing),
        ("mixed where they are many", 24, ScaledAmongMany.apply, mixing),
        ("mixed, and canceling in their sum", 24, CancelsInTheSum.apply, mixing),
    ):
        yield kind(
            f"gradients of units, {name}",
            lambda mix=mix, rows=rows: net_trial(
                mix, batches=[batch(rows)], units=torch.arange(rows) // 2, alone=of_two
            ),
        )


def cases() -> Iterator[Case]:
    """Yields hooks, in models and on tensors."""
    yield from in_gradients_alone()
    yield exact("a hook that scales", lambda: hooked(lambda module, args, out: out * 2))
    yield exact("a hook that looks", lambda: hooked(lambda module, args, out: None))
    yield exact(
        "a hook before a layer", lambda: hooked(lambda module, args: (args[0] * 2,), before=True)
    )
    yield mixing(
        "a hook that mixes", lambda: hooked(lambda module, args, out: out - out.mean(0).detach())
    )
    yield mixing(
        "a hook that mixes before a layer",
        lambda: hooked(lambda module, args: (args[0] - args[0][0].detach(),), before=True),
    )
    yield exact("a hook backward that looks", backward_hooked)
    yield mixing("a hook that keeps the batch's mean for the loss", kept_for_the_loss)
    yield either("a hook that reverses gradients", lambda: tensor_hooked(lambda g: -0.5 * g))
    yield mixing("a hook that mixes gradients", lambda: tensor_hooked(lambda g: g - g.mean(0)))
    yield either(
        "a hook that normalizes gradients by the batch",
        lambda: tensor_hooked(lambda g: g / g.norm()),
    )
