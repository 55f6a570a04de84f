"""Self-check of the clipper, which compares it with single-example execution.

Check S (synthetic rows) runs before a record reaches the model. It compares the engine with each
row of a synthetic batch, run separately and unpadded: losses, norms and the clipped sum of each
parameter. Check R (records) runs on the first two micro-batches of a clipper. It compares the
losses of two random halves, and the norms of two random units run separately, with those of the
whole micro-batch.

Records may be crafted, so no single record can disable check R or end a run. Check R compares each
unit at its own scale, ignores non-finite units, and reports mixing only if at least two units
differ. (A model that mixes rows also changes the other units.) Synthetic rows are not crafted, so
check S is strict.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpft.errors import InputError, RunError
from dpft.parallel.sharding import local
from dpft.privacy.clipping.batches import count_rows, take_rows
from dpft.privacy.clipping.engines import (
    GRADIENT_WRITTEN,
    BookKeeping,
    Clipped,
    MicroBatch,
    Rows,
    check_losses,
    norm_of,
)
from dpft.privacy.clipping.options import NORM_RANGE
from dpft.privacy.clipping.parameters import Parameters
from dpft.privacy.clipping.probe import (
    is_out_of_memory,
    plain_losses,
    random_state_kept,
    subsets_must_run,
)
from dpft.privacy.clipping.recorder import HALF, UseError
from dpft.privacy.clipping.styles import Flat
from dpft.privacy.release_guard import state_unchanged

MIXING = (
    "the loss of an example depends on other examples of its batch or on padding: {how}. Choose a"
    " model without layers that combine examples, and compute each loss from its own example only."
)


class NotExactError(Exception):
    """Error if book-keeping fails or computes other gradients than single-example execution.

    Attributes:
        names: The parameters that differ, if known.
        outside: Whether a module used these parameters that does not hold them.
    """

    def __init__(self, message: str, names: Sequence[str] = (), *, outside: bool = False) -> None:
        super().__init__(message)
        self.names, self.outside = tuple(names), outside


@dataclass(frozen=True)
class Tolerance:
    """Largest relative difference between two computations of the same number.

    Attributes:
        losses: Tolerance for a loss.
        gradients: Tolerance for a norm or a parameter's clipped sum.
        least_share: Sums are compared relative to their own norm, but at least relative to this
            share of the sum of the units' clipped norms. Some sums are zero except for rounding,
            such as that of a key's bias in attention, or gradients of different units that cancel.
    """

    losses: float
    gradients: float
    least_share: float


EXACT = Tolerance(losses=3e-5, gradients=1e-3, least_share=1e-3)
HALF_PRECISION = Tolerance(losses=3e-2, gradients=1e-1, least_share=0.2)


class Checks:
    """Checks of the model and the engines of one clipper."""

    def __init__(
        self, model: nn.Module, parameters: Parameters, book_keeping: BookKeeping, rows: Rows
    ) -> None:
        self._model, self._parameters = model, parameters
        self._book_keeping, self._rows = book_keeping, rows

    # Check S

    def synthetic(
        self,
        batch: Any,
        alone: Sequence[Any] | None,
        rows_per_unit: int,
        *,
        compares_gradients: bool,
    ) -> None:
        """Compare a synthetic batch with its rows, run separately.

        Args:
            batch: A batch of a few ragged rows.
            alone: The units as separate batches, each collated separately; None: slices of the
                batch.
            rows_per_unit: Number of rows of each privacy unit.
            compares_gradients: Whether to check book-keeping, or only losses.

        Raises:
            InputError: Examples mix.
            NotExactError: Losses agree, but norms or sums differ.
            RunError: Losses or gradients are not finite, or the model writes to its own state.
        """
        rows = count_rows(batch)
        micro_batch = MicroBatch(batch, rows, rows // rows_per_unit)
        if micro_batch.units < 2 or rows % rows_per_unit:
            raise InputError(
                f"a self-check needs batches of at least two units of {rows_per_unit} rows each,"
                f" got {rows} rows.",
                key="batches",
                value=rows,
            )
        if alone is None:
            starts = range(0, rows, rows_per_unit)
            alone = [take_rows(batch, slice(at, at + rows_per_unit)) for at in starts]
        with self.without_randomness(), state_unchanged(self._model):
            torch.manual_seed(0)
            with subsets_must_run():
                expected = self._rows.run_units(alone, None, rows_per_unit)
            if not self._rows.has_sums:
                raise InputError(
                    "losses_of must return losses that require grad. Compute them with the clipped"
                    " model, outside torch.no_grad.",
                    key="losses_of",
                )
            if not bool(expected.losses.isfinite().all() & expected.norms.isfinite().all()):
                raise RunError(
                    "losses or gradients of the self-check's synthetic examples are not finite."
                    " Choose a model with finite weights, or lower `loss_scale`."
                )
            torch.manual_seed(0)
            with subsets_must_run():
                losses = self._losses(batch)
            self._compare_losses(losses, expected.losses)
            if not compares_gradients:
                return
            style = Flat(max_grad_norm=min(max(float(expected.norms[0]), NORM_RANGE[0]), 1e9))
            self._book_keeping.recorder.saw_half = False
            torch.manual_seed(0)
            try:
                actual = self._book_keeping.run(micro_batch, style)
                sums = dict(self._book_keeping.sums(actual, expected.factors))
            except UseError as error:
                raise NotExactError(error.reason, error.names, outside=error.outside) from error
            except (InputError, RunError):
                raise
            except Exception as error:  # a replaced forward can fail with any error
                if is_out_of_memory(error):
                    raise
                raise NotExactError(
                    f"recording its gradients raised {type(error).__name__}"
                ) from error
        tolerance = self._tolerance(expected.losses)
        clipped_norms = expected.factors.amax(0) * expected.norms
        _compare_sums(
            sums, dict(self._rows.sums(expected)), tolerance, total=float(clipped_norms.sum())
        )
        _compare_norms(actual.norms, expected.norms, tolerance)

    def _losses(self, batch: Any) -> Tensor:
        """Return losses as the engine computes them, without a graph if ``losses_of`` allows it."""
        with self._parameters.grads_set_aside():
            losses = plain_losses(lambda: self._book_keeping.call_losses_of(batch))
            check_losses(losses, count_rows(batch))
            if self._parameters.take_grads():
                raise RunError(GRADIENT_WRITTEN)
        return losses.detach()

    def _compare_losses(self, actual: Tensor, expected: Tensor) -> None:
        actual, expected = actual.double(), expected.double()
        scale = torch.maximum(expected.abs(), 0.1 * expected.abs().max()).clamp(min=1e-30)
        difference = float(((actual - expected).abs() / scale).max())
        if not difference <= self._tolerance(expected).losses:
            how = (
                f"on synthetic data, it changes by {difference:.1e} of its value if the example"
                " runs separately"
            )
            raise InputError(MIXING.format(how=how), key="model")

    def _tolerance(self, losses: Tensor) -> Tolerance:
        saw_half = self._book_keeping.recorder.saw_half or self._book_keeping.autocast is not None
        return HALF_PRECISION if saw_half or losses.dtype in HALF else EXACT

    # Check R

    def sample(self, micro_batch: MicroBatch) -> "SubsetResults":
        """Run subsets of a micro-batch with at least two units, before the engine runs all units.

        Only norms and losses are kept, so that no gradient of a check is in memory during the
        engine's pass.
        """
        units, rows = micro_batch.units, micro_batch.rows // micro_batch.units
        with self.without_randomness() as dropout, state_unchanged(self._model):
            # Do not use PyTorch's generator: each check restores its state, so the order would
            # repeat.
            order = random.SystemRandom().sample(range(units), units)
            halves = [_rows_of(half, rows) for half in (order[: units // 2], order[units // 2 :])]
            losses = [self._losses(take_rows(micro_batch.batch, half)) for half in halves]
            norms = self._norms(micro_batch, order[:2], rows)
        return SubsetResults(
            order, halves[0] + halves[1], torch.cat(losses), norms, dropout.is_used
        )

    @contextmanager
    def without_randomness(self) -> Iterator["Dropout"]:
        """Turn dropout off inside the block, and restore torch's random generators after it."""
        with random_state_kept(), without_dropout(self._model) as dropout:
            yield dropout

    def compare(self, sample: "SubsetResults", micro_batch: MicroBatch, clipped: Clipped) -> bool:
        """Compare subsets with the whole micro-batch, which ran ``without_randomness``.

        Returns:
            Whether at least two finite units were compared. With fewer units, a check cannot find
            mixing.

        Raises:
            RunError: Examples mix, or norms differ for at least two units.
        """
        rows = micro_batch.rows // micro_batch.units
        compared = self._find_mixing(sample, micro_batch.units, clipped.losses)
        differing = self._count_differing(sample.order[:2], sample.norms, clipped)
        if differing and len(sample.order) > 2:
            # The cause may be a single ill-conditioned record, so check more units.
            more = sample.order[2:8]
            with self.without_randomness():
                norms = self._norms(micro_batch, more, rows)
            differing += self._count_differing(more, norms, clipped)
        if differing >= 2:
            raise RunError(
                "gradient norms of several examples change if each example runs separately,"
                " because a layer or its backward pass combines examples. Choose `engine='rows'`."
            )
        return compared

    def _norms(self, micro_batch: MicroBatch, units: list[int], rows: int) -> Tensor:
        """Return the norms of some units, each run separately."""
        batches = [take_rows(micro_batch.batch, _rows_of([unit], rows)) for unit in units]
        return self._rows.run_units(batches, Flat(max_grad_norm=1.0), rows, adds=False).norms

    def _find_mixing(self, sample: "SubsetResults", units: int, losses: Tensor) -> bool:
        """Reject losses that differ in at least two units, each loss compared at its own scale.

        Return whether at least two units have finite losses.
        """
        whole = losses[sample.rows].double().view(units, -1)
        halves = sample.losses.double().view(units, -1)
        finite = halves.isfinite().all(1) & whole.isfinite().all(1)
        halves, whole = halves[finite], whole[finite]
        if len(whole) < 2:
            return False
        # Filler rows, whose losses are zero, do not count.
        typical = whole[whole != 0].abs().median() if bool((whole != 0).any()) else 0.0
        scale = whole.abs().clamp(min=max(0.1 * float(typical), 1e-30))
        differs = (halves - whole).abs() / scale > self._tolerance(losses).losses
        if int(differs.any(1).sum()) >= 2:
            raise RunError(
                MIXING.format(how="it changes if half of its micro-batch runs separately")
            )
        return True

    def _count_differing(self, units: list[int], norms: Tensor, clipped: Clipped) -> int:
        """Return the number of units whose norm differs when they are run separately."""
        actual = clipped.norms[units]
        # A norm may differ by its own rounding, which its bound includes.
        bound = clipped.bounds[:, units].square().sum(0).sqrt()
        rounding = 2 * (bound - actual).clamp(min=0)
        allowed = self._tolerance(clipped.losses).gradients * torch.maximum(actual, norms)
        differs = (actual - norms).abs() > allowed + rounding
        return int((differs & actual.isfinite() & norms.isfinite()).sum())


@dataclass(frozen=True)
class SubsetResults:
    """Results of subsets of a micro-batch; private.

    Attributes:
        order: A random order of the units.
        rows: Numbers of the rows in this order.
        losses: Losses of the rows, computed on two halves, shape (b,).
        norms: Norms of the first two units, each run separately, shape (2,).
        has_dropout: Whether the model has dropout, which was off.
    """

    order: list[int]
    rows: list[int]
    losses: Tensor
    norms: Tensor
    has_dropout: bool


def _rows_of(units: Sequence[int], rows: int) -> list[int]:
    """Return the numbers of the rows of some units."""
    return [unit * rows + row for unit in units for row in range(rows)]


def _compare_norms(actual: Tensor, expected: Tensor, tolerance: Tolerance) -> None:
    scale = torch.maximum(expected, 1e-3 * expected.max()).clamp(min=1e-30)
    difference = float(((actual - expected).abs() / scale).max())
    if not difference <= tolerance.gradients:
        raise NotExactError(
            f"gradient norms differ by {difference:.1e} from those of each example run separately"
        )


def _compare_sums(
    actual: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    tolerance: Tolerance,
    *,
    total: float,
) -> None:
    """Reject parameters whose sums differ; ``total`` is the sum of the units' clipped norms."""

    def norm(total: Tensor) -> float:
        return float(norm_of([total], total.device))

    lengths = {name: norm(total) for name, total in expected.items()}
    shares = {}
    for name in {**expected, **actual}:
        # One difference at a time, because all differences together are as large as the model.
        if name in expected and name in actual:
            difference = norm(actual[name] - expected[name])
        else:
            difference = norm(expected[name] if name in expected else actual[name])
        scale = max(lengths.get(name, 0.0), tolerance.least_share * total)
        if not difference <= tolerance.gradients * scale:
            shares[name] = difference / scale if scale else float("inf")
    if shares:
        name, share = next(iter(shares.items()))
        more = f" (as do those of {len(shares) - 1} other parameters)" if len(shares) > 1 else ""
        raise NotExactError(
            f"the gradient of {name} differs by {share:.1e} from that of each example run"
            f" separately{more}",
            [*shares],
        )


@contextmanager
def zeros_filled(parameters: Parameters) -> Iterator[None]:
    """Fill trainable tensors that are zero with small random values inside the block.

    A layer behind a zero weight, such as a zero-initialized head or the second factor of LoRA, has
    no gradient. A wrong rule for this layer would then go unnoticed until the weight is trained.
    """
    generator = torch.Generator().manual_seed(0)
    values = {o.name: local(o.module._parameters[o.attribute]) for o in parameters.owners}  # type: ignore[arg-type]
    zeros = [tensor.detach() for tensor in values.values() if not bool(tensor.any())]
    for tensor in zeros:
        tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.02)
    try:
        yield
    finally:
        for tensor in zeros:
            tensor.zero_()


@dataclass
class Dropout:
    """Result of ``without_dropout``: whether a model has dropout."""

    is_used: bool = False


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[Dropout]:
    """Turn off all dropout of a model in training mode inside the block."""
    dropout, held = Dropout(), []
    for module in model.modules():
        for key, value in vars(module).items():
            is_rate = "drop" in key.lower() or (
                key == "p" and isinstance(module, nn.modules.dropout._DropoutNd)
            )
            if is_rate and isinstance(value, float) and value > 0:
                held.append((vars(module), key, value))
    dropout.is_used = bool(held)

    def keep(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        dropout.is_used = dropout.is_used or (training and p > 0)
        return input

    before, F.dropout = F.dropout, keep
    for state, key, _ in held:
        state[key] = 0.0
    try:
        yield dropout
    finally:
        F.dropout = before
        for state, key, value in held:
            state[key] = value
