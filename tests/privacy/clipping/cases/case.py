"""A model and losses that a library user may bring, and what the clipper must do with them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from dpft.errors import InputError, RunError
from tests.privacy.clipping.oracle import (
    TOLERANCE,
    Clipped,
    UnitGradients,
    clipped,
    distance,
    gradient_of,
    row_count,
    rows_of,
    total_norm,
)

RAW = re.compile(
    r"\n|dimension out|size mismatch|mat1|out of range|expected all|one of the variables"
    r"|batching rule|\brow \d|Traceback|object has no attribute|must match|shape '\["
    r"|call \.item\(\)|is not implemented|data-dependent|too many indices|TensorImpl",
    re.IGNORECASE,
)
"""What a sentence for users must not contain: torch's own words, or which private row it was."""
LONGEST_SENTENCE = 420
Batch = tuple[Any, ...]


class Right(Enum):
    """What the clipper must do; a sum other than the definition's is never right."""

    EXACT = "exact on every engine"
    UNBATCHED = "exact on `rows` and `auto`; `book_keeping` may reject it"
    MIXING = "losses read other rows: rejected, or exact on `rows`"
    MIXING_GRADIENTS = "only gradients read other rows: rejected, or exact on `rows` and `auto`"
    REJECTED = "rejected on every engine"
    EITHER = "exact or rejected"

    def allows(self, outcome: "Outcome", engine: str) -> bool:
        """Return whether an outcome is right on an engine."""
        exact = {
            Right.MIXING: engine == "rows",
            Right.MIXING_GRADIENTS: engine != "book_keeping",
            Right.REJECTED: False,
        }
        rejected = {Right.EXACT: False, Right.UNBATCHED: engine == "book_keeping"}
        if outcome is Outcome.REJECTED:
            return rejected.get(self, True)
        return outcome is Outcome.EXACT and exact.get(self, True)


class Outcome(Enum):
    """What the clipper did."""

    EXACT = "exact"
    REJECTED = "rejected in a clear sentence"
    UNCLEAR = "rejected unclearly"
    CRASHED = "crashed"
    WRONG = "silently wrong"


@dataclass(kw_only=True)
class Trial:
    """A model, its losses, and its micro-batches.

    Attributes:
        model: The model.
        losses: (model, *batch) -> per-example losses, shape (b,).
        draw: Draws a batch of some number of rows: tensors (rows, ...).
        sizes: Units of each micro-batch.
        batches: The micro-batches; by default drawn.
        rows_per_unit: Rows of each unit.
        loss_alone: (model, batch of one unit) -> the unit's loss by definition; by default the
            sum of ``losses``.
        drawn: Whether the definition is a backward pass from each loss of a batch as drawn with
            its seed, such as with dropout.
        tolerance: Largest relative error.
        options: Other arguments of the clipper.
    """

    model: nn.Module
    losses: Callable[..., Any]
    draw: Callable[[int], Batch]
    sizes: Sequence[int] = (6,)
    batches: Sequence[Batch] = ()
    rows_per_unit: int = 1
    loss_alone: Callable[[nn.Module, Batch], Tensor] | None = None
    drawn: bool = False
    tolerance: float = TOLERANCE
    options: dict[str, Any] = field(default_factory=dict)

    def losses_of(self, model: nn.Module, batch: Batch) -> Any:
        """Return the losses of a batch; a batch is not changed in place."""
        return self.losses(model, *rows_of(batch, slice(None)))

    def drawn_batches(self) -> tuple[list[Batch], list[Batch]]:
        """Return the self-check's batches and the micro-batches, the same each time."""
        torch.manual_seed(1)
        synthetic = [self.draw(units * self.rows_per_unit) for units in (4, 3)]
        batches = list(self.batches)
        for number, units in enumerate(() if batches else self.sizes):
            torch.manual_seed(2 + number)
            batches.append(self.draw(units * self.rows_per_unit))
        return synthetic, batches


@dataclass(frozen=True)
class Case:
    """A named case.

    Attributes:
        name: Unique in its file.
        right: What the clipper must do.
        build: Makes a new trial, always with the same numbers.
        slow: Whether ``make test`` leaves it out.
    """

    name: str
    right: Right
    build: Callable[[], Trial]
    slow: bool = False

    def built(self) -> Trial:
        """Return a new trial."""
        torch.manual_seed(0)
        return self.build()


def exact(name: str, build: Callable[[], Trial], *, slow: bool = False) -> Case:
    """A case that must be exact."""
    return Case(name, Right.EXACT, build, slow)


def mixing(name: str, build: Callable[[], Trial], *, slow: bool = False) -> Case:
    """A case whose losses read other rows."""
    return Case(name, Right.MIXING, build, slow)


def marked(right: Right) -> Callable[..., Case]:
    """Return a function that makes cases for which ``right`` holds."""
    return lambda name, build: Case(name, right, build)


unbatched, mixing_gradients = marked(Right.UNBATCHED), marked(Right.MIXING_GRADIENTS)
rejected, either = marked(Right.REJECTED), marked(Right.EITHER)


@dataclass(frozen=True)
class Verdict:
    """What came of a case on an engine, and the sentence or number that shows it."""

    outcome: Outcome
    words: str


def verdict_of(case: Case, engine: str) -> Verdict:
    """Return what the clipper does with a case on an engine."""
    trial = case.built()
    synthetic, batches = trial.drawn_batches()
    expected = None if case.right is Right.REJECTED else definition(case, batches, engine)
    max_grad_norm = 1.0 if expected is None else expected.median_norm()
    try:
        got = accumulated(trial, synthetic, batches, max_grad_norm, engine)
    except (InputError, RunError) as error:
        return _rejection(str(error))
    except Exception as error:
        return Verdict(Outcome.CRASHED, f"{type(error).__name__}: {error}")
    if expected is None:
        return Verdict(Outcome.WRONG, "a sum of examples without a gradient of their own")
    if trial.drawn and got.choice.engine == "rows" and engine != "rows":
        expected = definition(case, batches, "rows")
    error = distance(got, expected, max_grad_norm)
    outcome = Outcome.EXACT if error <= trial.tolerance else Outcome.WRONG
    return Verdict(outcome, f"relative error {error:.1e}")


def accumulated(
    trial: Trial,
    synthetic: Sequence[Batch],
    batches: Sequence[Batch],
    max_grad_norm: float,
    engine: str,
) -> Clipped:
    """Return what the clipper makes of a trial's micro-batches."""
    return clipped(
        trial.model,
        trial.losses_of,
        batches,
        max_grad_norm,
        synthetic=synthetic,
        rows_per_unit=trial.rows_per_unit,
        seed=5 if trial.drawn else None,
        engine=engine,
        **trial.options,
    )


def definition(case: Case, batches: Sequence[Batch], engine: str) -> UnitGradients | None:
    """Return every unit's gradient, each from a new model that has seen no other unit.

    Returns None if no unit can be executed separately.
    """
    gradients, losses = [], []
    for batch in batches:
        size = case.built().rows_per_unit
        count = row_count(batch) // size
        drawing = case.built()
        torch.manual_seed(5)
        together = drawing.drawn and engine != "rows"
        whole = drawing.losses_of(drawing.model, batch) if together else None
        for unit in range(count):
            rows = slice(unit * size, (unit + 1) * size)
            trial = drawing if drawing.drawn else case.built()
            if whole is not None:
                loss = whole[rows].sum()
            else:
                try:
                    own = rows_of(batch, rows)
                    alone = trial.loss_alone or _summed(trial)
                    loss = alone(trial.model, own)
                except ValueError:  # such as BatchNorm's, for a batch of one
                    return None
            gradients.append(gradient_of(trial.model, loss, retain_graph=whole is not None))
            losses.append(loss.detach())
    return UnitGradients(gradients, torch.stack(losses))


def _summed(trial: Trial) -> Callable[[nn.Module, Batch], Tensor]:
    return lambda model, batch: trial.losses_of(model, batch).sum()


def mixes(case: Case) -> bool:
    """Return whether rows have other losses or gradients in a batch than separately."""
    trial = case.built()
    _, batches = trial.drawn_batches()
    if (separate := definition(case, batches, "rows")) is None:
        return True
    seen, model = 0, trial.model
    for batch in batches:
        units = trial.losses_of(model, batch).view(-1, trial.rows_per_unit).sum(1)
        expected = list(separate.gradients[seen : seen + len(units)])
        seen += len(units)
        whole = {name: sum(g[name] for g in expected) for name in expected[0]}
        for loss, gradient in zip([*units, units.sum()], [*expected, whole], strict=True):
            found = gradient_of(model, loss, retain_graph=True)
            apart = total_norm({name: found[name] - gradient[name] for name in found})
            if float(apart) > 1e-5 * float(separate.norms.max()):
                return True
    return False


def _rejection(words: str) -> Verdict:
    clear = not RAW.search(words) and len(words) <= LONGEST_SENTENCE
    return Verdict(Outcome.REJECTED if clear else Outcome.UNCLEAR, words)
