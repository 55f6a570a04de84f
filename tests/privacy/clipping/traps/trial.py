"""One use of the clipper by somebody else, and whether its sum is the one by definition."""

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from dpft.errors import InputError, RunError
from dpft.privacy.clipping import PerExampleClipper

RAW = re.compile(
    r"\n|dimension out|vmap|size mismatch|mat1|out of range|expected all|one of the variables"
    r"|batching rule|\brow \d|torch\.\w+Error|RuntimeError|Traceback|object has no attribute"
    r"|must match|shape '\[|call \.item\(\)|is not implemented|data-dependent|too many indices"
    r"|cannot access|TensorImpl",
    re.IGNORECASE,
)
"""What a refusal must not say: the words of torch, and which of the private rows it was."""
LONGEST_SENTENCE = 420


class Right(Enum):
    """What may come of a case; a sum that is not the definition's may never."""

    EXACT = "the sum by definition"
    REFUSED = "a refusal: its examples mix, and the sum by definition would be a surprise"
    EITHER = "the sum by definition, or a refusal"


class Outcome(Enum):
    """What came of a case."""

    EXACT = "exact"
    REFUSED = "refused"
    REFUSED_UNCLEARLY = "refused unclearly"
    BROKEN = "broken"
    WRONG = "silently wrong"


Batch = tuple[Any, ...]


@dataclass(kw_only=True)
class Trial:
    """A model, its batches, and a loss for each row.

    Attributes:
        model: What the clipper is given.
        batches: Each a tuple of tensors whose leading dimension is the batch; they are
            accumulated one after the other.
        losses: (model, *batch) -> per-example losses, shape (b,).
        alone: (model, batch, row) -> the loss that a row has by definition; None where it is
            that of ``losses`` on the row as a batch of one.
        drawn: Whether the definition is a backward pass for each loss of the batch as drawn with
            its seed, as where dropout draws masks for the whole batch.
        units: Privacy unit of each row, or None.
        engine: Name of the engine.
        tolerance: Largest relative difference that rounding may make.
        context: What the model is run in.
    """

    model: nn.Module
    batches: Sequence[Batch]
    losses: Callable[..., Tensor]
    alone: Callable[[nn.Module, Batch, int], Tensor] | None = None
    drawn: bool = False
    units: Tensor | None = None
    engine: str = "book_keeping"
    tolerance: float = 2e-4
    context: Callable[[], Any] = nullcontext

    def count(self, batch: Batch) -> int:
        """How many examples (or units) a batch has."""
        return len(batch[0]) if self.units is None else len(torch.unique(self.units))

    def loss_of(self, batch: Batch, row: int) -> Tensor:
        """The loss of one example (or unit) by definition, a scalar."""
        with self.context():
            if self.alone is not None:
                return self.alone(self.model, batch, row)
            if self.drawn:
                return self.losses(self.model, *batch)[row]
            return self.losses(self.model, *(part[row : row + 1] for part in batch))[0]


@dataclass(frozen=True)
class Case:
    """A case: its name, what is right, and how to make it, always the same.

    Attributes:
        name: Unique among all cases.
        right: What may come of it.
        build: Makes a new trial.
        slow: Whether only ``make test-slow`` runs it.
    """

    name: str
    right: Right
    build: Callable[[], Trial]
    slow: bool = False


@dataclass(frozen=True)
class Verdict:
    """What came of a case, and the words or numbers that say so."""

    outcome: Outcome
    words: str

    def satisfies(self, right: Right) -> bool:
        """Whether this may come of a case where ``right`` is right."""
        if self.outcome is Outcome.REFUSED:
            return right is not Right.EXACT
        return self.outcome is Outcome.EXACT


def verdict_of(case: Case) -> Verdict:
    """Returns what comes of a case: the clipper's sum against that of its examples alone."""
    try:
        truth = definition(case)
    except ValueError:
        # BatchNorm in training does not take one row: there is nothing but a refusal.
        truth = []
    clip_at = _clipping_norm([norm for norms, _ in truth for norm in norms.tolist()])
    trial = built(case)
    try:
        norms = clipped(trial, clip_at)
    except (InputError, RunError) as error:
        return _refusal(str(error))
    except Exception as error:
        return Verdict(Outcome.BROKEN, f"{type(error).__name__}: {error}")
    return _comparison(trial, norms, truth, clip_at)


def _clipping_norm(norms: Sequence[float]) -> float:
    """Returns a norm that about half of the examples exceed."""
    middle = median(norms or [1.0])
    return middle if middle > 0 else max([*norms, 1e-3])


def clipped(trial: Trial, clip_at: float) -> list[Tensor]:
    """Leaves the clipper's sum of a trial's batches in ``grad``; returns the norms."""
    norms = []
    with PerExampleClipper(trial.model, clip_at, engine=trial.engine) as clipper:
        for number, batch in enumerate(trial.batches):
            torch.manual_seed(number)

            def compute_losses(batch: Batch = batch) -> Tensor:
                with trial.context():
                    return trial.losses(trial.model, *batch)

            norms.append(clipper.accumulate(compute_losses, trial.units))
    return norms


def definition(case: Case) -> list[tuple[Tensor, list[list[Tensor]]]]:
    """Returns, for each batch, its examples' norms and gradients, each example by itself.

    Every one has a model of its own, which no other example has been through.
    """
    trial = built(case)
    found = []
    for number, batch in enumerate(trial.batches):
        gradients = []
        for row in range(trial.count(batch)):
            one = built(case)
            torch.manual_seed(number)
            gradients.append(_gradient(one.model, one.loss_of(one.batches[number], row)))
        norms = torch.stack(
            [torch.stack([g.double().norm() for g in each]).norm() for each in gradients]
        )
        found.append((norms, gradients))
    return found


def mixes(case: Case) -> bool:
    """Whether the batch as it is gives other gradients than its examples by themselves."""
    try:
        truth = definition(case)
    except ValueError:
        return True
    for number, (norms, gradients) in enumerate(truth):
        trial = built(case)
        with trial.context():
            for batch in trial.batches[:number]:
                trial.losses(trial.model, *batch)
            losses = trial.losses(trial.model, *trial.batches[number])
        together = [sum(each) for each in zip(*gradients, strict=True)]
        pairs = zip(losses, gradients, strict=True)
        for loss, own in chain(pairs, [(losses.sum(), together)]):
            found = _gradient(trial.model, loss, retain=True)
            apart = max(float((a - b).norm()) for a, b in zip(found, own, strict=True))
            if apart > 1e-5 * float(norms.max()):
                return True
    return False


def built(case: Case) -> Trial:
    """Returns a new trial of a case, with the same numbers each time."""
    torch.manual_seed(0)
    return case.build()


def _gradient(model: nn.Module, loss: Tensor, *, retain: bool = False) -> list[Tensor]:
    """Returns each weight's gradient of a loss, as ``backward`` leaves it."""
    model.zero_grad()
    loss.backward(retain_graph=retain)
    found = [(p, p.grad) for p in model.parameters() if p.requires_grad]
    return [
        torch.zeros_like(p) if g is None else g.to_dense() if g.is_sparse else g.clone()
        for p, g in found
    ]


def _refusal(words: str) -> Verdict:
    clear = not RAW.search(words) and len(words) <= LONGEST_SENTENCE
    return Verdict(Outcome.REFUSED if clear else Outcome.REFUSED_UNCLEARLY, words)


def _comparison(
    trial: Trial,
    norms: Sequence[Tensor],
    truth: Sequence[tuple[Tensor, list[list[Tensor]]]],
    clip_at: float,
) -> Verdict:
    if not truth:
        return Verdict(Outcome.WRONG, "no example has a gradient of its own, and a sum was given")
    weights = [p for p in trial.model.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in weights]
    for each, gradients in truth:
        for norm, own in zip(each, gradients, strict=True):
            factor = min(1.0, clip_at / float(norm)) if norm > 0 else 1.0
            total = [t + factor * g for t, g in zip(total, own, strict=True)]
    apart = [t if p.grad is None else p.grad - t for p, t in zip(weights, total, strict=True)]
    error = _norm(apart) / max(_norm(total), 1e-6 * clip_at)
    for got, (expected, _) in zip(norms, truth, strict=True):
        if got.shape != expected.shape:
            return Verdict(Outcome.WRONG, f"norms of shape {tuple(got.shape)}")
        off = (got.double() - expected).abs().max() / expected.max().clamp(min=1e-6 * clip_at)
        error = max(error, float(off))
    outcome = Outcome.EXACT if error <= trial.tolerance else Outcome.WRONG
    return Verdict(outcome, f"relative error {error:.1e}")


def _norm(tensors: Sequence[Tensor]) -> float:
    return float(torch.stack([t.detach().abs().double().norm() for t in tensors]).norm())
