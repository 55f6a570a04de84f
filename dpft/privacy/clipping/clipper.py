"""The public clipper class, which clips the gradient of each example exactly.

>>> import torch
>>> model = torch.nn.Linear(2, 1, bias=False)
>>> def losses_of(model, batch):
...     return model(batch)[:, 0]
>>> inputs = torch.tensor([[3.0, 4.0], [0.0, 0.5]])
>>> with PerExampleClipper(model, losses_of, max_grad_norm=1.0) as clipper:
...     choice = clipper.self_check(torch.randn(3, 2))
...     norms = clipper.accumulate(inputs)
>>> choice.engine, norms
('book_keeping', tensor([5.0000, 0.5000]))
>>> bool(torch.allclose(model.weight.grad, torch.tensor([[0.6, 0.8 + 0.5]]), atol=1e-5))
True
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from dpft.devices import whole_precision
from dpft.errors import InputError, RunError
from dpft.independence_check import check_model
from dpft.privacy.clipping.assignment import Assignment, NoModuleError, calls_around
from dpft.privacy.clipping.batches import count_rows
from dpft.privacy.clipping.checks import Checks, NotExactError, zeros_filled
from dpft.privacy.clipping.engines import BookKeeping, Clipped, MicroBatch, Rows
from dpft.privacy.clipping.options import (
    LossFunction,
    LossScale,
    Shards,
    Sums,
    check_engine_name,
    check_loss_scale,
    check_style_name,
)
from dpft.privacy.clipping.parameters import Parameters, parameter_groups
from dpft.privacy.clipping.probe import Calls
from dpft.privacy.clipping.recorder import UseError
from dpft.privacy.clipping.styles import clipping_style
from dpft.privacy.clipping.sums import CompensatedSums
from dpft.privacy.release_guard import HeldState

logger = logging.getLogger(__name__)
ATTEMPTS = 12
"""Number of times that a self-check may raise levels before it chooses engine rows
(``assignment``)."""
CHECKED_MICRO_BATCHES = 2
"""Number of micro-batches of records that are compared with subsets of their units (check R)."""


@dataclass(frozen=True)
class ClippingChoice:
    """Public result of a self-check.

    Attributes:
        engine: The engine that computes clipped sums: book_keeping or rows.
        kinds: For book-keeping, the kind of each module's recording forward by path: rule, scale,
            position or mapped (``assignment``).
        calls: How each module is called, by path.
        levels: Level of each parameter, by name, which defines the module around the parameter that
            is mapped (``assignment``). A missing parameter has level 0.
        outside: Parameters that other modules read, outside the forward of the modules that hold
            them.
    """

    engine: str
    kinds: Mapping[str, str] = field(default_factory=dict)
    calls: Mapping[str, Calls] = field(default_factory=dict, repr=False)
    levels: Mapping[str, int] = field(default_factory=dict)
    outside: frozenset[str] = frozenset()

    def public(self) -> dict[str, Any]:
        """Return the choice in the form in which the first line of a ledger contains it."""
        return {
            "engine": self.engine,
            "modules": dict(sorted(Counter(self.kinds.values()).items())),
            "mapped": tuple(sorted(path for path, kind in self.kinds.items() if kind == "mapped")),
        }


class PerExampleClipper:
    """Clipper that adds sums of clipped per-example gradients to ``parameter.grad``.

    Use the clipper as a context manager. Call ``self_check`` once with synthetic batches, and
    ``accumulate`` with every micro-batch. The model is unmodified outside of these calls.

    Guarantees:
        ``accumulate`` adds ``sum_i c_i g_i`` to the gradients, where g_i is the gradient of unit
        i's losses. Over all trainable parameters together,
        ``norm(c_i g_i) <= (1 - headroom) * max_grad_norm``, rounding included, because clip factors
        are computed from a proven upper bound of the norm (docs/dev/norm-bound.md). With
        ``headroom`` of ``rounding_headroom(n)``, adding or removing one unit changes a step's sum
        of n units by at most ``sensitivity``. A unit whose loss or gradient is not finite
        contributes exactly zero. A model that mixes examples or writes to its parameters or buffers
        is rejected. If a use of a parameter cannot be recorded, the engine ``rows`` runs the
        micro-batch. docs/dev/clipper-limits.md lists what the checks cannot detect.

    Attributes:
        losses: Losses of the last micro-batch, shape (b,), detached; private.
        non_finite: Number of units skipped since the clipper was entered; private.
    """

    def __init__(
        self,
        model: nn.Module,
        losses_of: LossFunction,
        max_grad_norm: float,
        *,
        clipping: str = "flat",
        engine: str = "auto",
        groups: Sequence[str] | None = None,
        autocast: torch.dtype | None = None,
        loss_scale: LossScale = 1.0,
        headroom: float = 0.0,
        shards: Shards | None = None,
        choice: ClippingChoice | None = None,
    ) -> None:
        """Prepare to clip the gradients of the parameters that require grad now.

        Args:
            model: The model, with trainable parameters in float32 or float64.
            losses_of: Function (model, batch of b rows) -> per-example losses, shape (b,). Each
                loss must be a function of its own row. Data without rows, such as class weights,
                belongs in this function.
            max_grad_norm: The clipping norm C, in units of the gradient of a loss.
            clipping: Name of the clipping style.
            engine: ``book_keeping``: all rows in one pass. ``rows``: each unit separately.
                ``auto``: book-keeping, or rows if the self-check finds that book-keeping is not
                exact.
            groups: For per-layer clipping, shell patterns over parameter names that partition the
                parameters. None makes each layer a group.
            autocast: The dtype in which losses are computed. ``losses_of`` should not open autocast
                itself, because the self-check also runs in float32 for precision.
            loss_scale: For float16, the factor K: the backward pass runs on ``K * loss``, and
                results are divided by K in float32 (Li et al. 2022, Appendix T).
            headroom: Share of C that is reserved for the rounding of a step's sum
                (``sums.rounding_headroom``).
            shards: For a sharded model, the object that holds the sums: in the ``grad`` of
                ``shards.unsharded``, or in ``shards.new_sums()`` if this is not None.
            choice: Result of an earlier self-check of the same model with the same trainable
                parameters. None: call ``self_check`` before ``accumulate``.

        Raises:
            InputError: A name is unknown, a number is out of range, no parameter is trainable, the
                groups are not a partition, or a layer combines examples.
        """
        check_model(model)
        check_engine_name(engine)
        check_style_name(clipping)
        check_loss_scale(loss_scale() if callable(loss_scale) else loss_scale)
        if groups is not None and clipping != "per_layer":
            raise InputError(
                f"`groups` has no effect with clipping={clipping!r}. Remove it, or use"
                " `clipping='per_layer'`.",
                key="groups",
                value=groups,
            )
        numbers = parameter_groups(model, per_layer=clipping == "per_layer", patterns=groups)
        self.style = clipping_style(
            clipping,
            max_grad_norm=max_grad_norm,
            groups=len(set(numbers.values())) or 1,
            headroom=headroom,
        )
        self._model, self._losses_of, self._requested = model, losses_of, engine
        self._autocast, self._loss_scale = autocast, loss_scale
        self._shards = shards
        self._parameters = Parameters(model, None if shards is None else shards.unsharded)
        self._book_keeping = BookKeeping(model, self._parameters, losses_of, numbers)
        self._rows = Rows(model, self._parameters, losses_of, numbers)
        self._checks = Checks(model, self._parameters, self._book_keeping, self._rows)
        sums = None if shards is None else shards.new_sums()
        self._sums: Sums = CompensatedSums() if sums is None else sums
        self.choice = choice
        if choice is not None and choice.engine == "book_keeping":
            self._assign(choice.calls, choice.levels, choice.outside)
        self._unchecked = CHECKED_MICRO_BATCHES
        self._held: HeldState | None = None
        self._resources = ExitStack()
        self._failed = False
        self.losses = torch.empty(0)
        self.non_finite = 0

    @property
    def sensitivity(self) -> float:
        """Maximum change of a step's clipped sum by one unit, in L2 norm."""
        return self.style.sensitivity

    def __enter__(self) -> Self:
        if self._held is not None:
            raise InputError(
                "the `with` block of this PerExampleClipper is already open. Do not nest it.",
                key=None,
            )
        self._resources.enter_context(whole_precision())
        buffers = dict(self._model.named_buffers())  # includes buffers that are not saved
        self._held = HeldState(buffers | self._model.state_dict(keep_vars=True))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held = None
        self._resources.close()

    def self_check(
        self,
        *batches: Any,
        alone: Sequence[Sequence[Any]] | None = None,
        rows_per_unit: int = 1,
    ) -> ClippingChoice:
        """Choose how to record each parameter, and compare it with single-example execution.

        Gradients and random generators are unchanged afterwards. No record is needed.

        Args:
            batches: Synthetic batches, preferably of 3 or 4 ragged rows, not sorted by length, at
                two padded lengths.
            alone: For each batch, its units as separate batches, each collated separately, so that
                the effects of a collator are checked, too. None: slices of the batch.
            rows_per_unit: Number of rows of each privacy unit.

        Returns:
            The public choice.

        Raises:
            InputError: The model or ``losses_of`` combines examples, or ``engine='book_keeping'``
                is not exact.
            RunError: The model writes to its parameters or buffers, or results are not finite.
        """
        self._entered_state()
        if not batches:
            raise InputError(
                "self_check needs at least one synthetic batch, got none.", key="batches"
            )
        with zeros_filled(self._parameters):
            self.choice = self._chosen(batches, alone, rows_per_unit)
        return self.choice

    def _chosen(
        self,
        batches: Sequence[Any],
        alone: Sequence[Sequence[Any]] | None,
        rows_per_unit: int,
    ) -> ClippingChoice:
        """Return the result of ``self_check``."""
        levels: dict[str, int] = defaultdict(int)
        outside: set[str] = set()
        reasons: dict[str, str] = {}
        reason, engine, assignment = "", "rows", None
        calls = calls_around(
            self._model, self._parameters, self._losses_of, batches[0], rows_per_unit
        )
        for _ in range(0 if self._requested == "rows" else ATTEMPTS):
            try:
                assignment = self._assign(calls, levels, outside)
                self._compare(batches, alone, rows_per_unit)
            except NoModuleError as error:
                reason = reason or str(error)
                break
            except NotExactError as error:
                names = error.names or assignment.assumed if assignment else ()
                for name in names:
                    levels[name] += 1
                    reasons.setdefault(name, str(error))
                # The failure of a layer's own rule explains more than the failure of a map around
                # the layer.
                reason = next((r for name, r in reasons.items() if name in names), str(error))
                outside.update(error.names if error.outside else ())
                if not names:
                    break
            else:
                engine = "book_keeping"
                break
        if engine == "rows":
            if self._requested == "book_keeping":
                raise InputError(
                    f"`engine='book_keeping'` is not exact for this model, because {reason}. Choose"
                    " `engine='rows'`.",
                    key="engine",
                    value=self._requested,
                )
            self._compare(batches, alone, rows_per_unit, compares_gradients=False)
            if reason:
                logger.warning(
                    "The fast clipping engine, book_keeping, is not exact for this model, because"
                    " %s. Engine rows runs each example separately.",
                    reason,
                )
            return ClippingChoice(engine)
        assert assignment is not None
        return ClippingChoice(
            engine, dict(assignment.kinds), calls, dict(levels), frozenset(outside)
        )

    def _assign(
        self, calls: Mapping[str, Calls], levels: Mapping[str, int], outside: Collection[str]
    ) -> Assignment:
        """Prepare book-keeping to record each parameter at its level."""
        engine = self._book_keeping
        engine.assignment = Assignment(
            self._model, self._parameters, engine.recorder, calls, levels=levels, outside=outside
        )
        return engine.assignment

    def _compare(
        self,
        batches: Sequence[Any],
        alone: Sequence[Sequence[Any]] | None,
        rows_per_unit: int,
        *,
        compares_gradients: bool = True,
    ) -> None:
        """Run check S on all batches in full precision, and on the first one under autocast."""
        singles = [None] * len(batches) if alone is None else alone
        for autocast in dict.fromkeys([None, self._autocast]):
            self._set_precision(autocast, 1.0 if autocast is None else self._current_loss_scale())
            for batch, rows in zip(batches, singles, strict=True):
                self._checks.synthetic(
                    batch, rows, rows_per_unit, compares_gradients=compares_gradients
                )
                if autocast is not None:
                    break

    def accumulate(self, batch: Any, rows_per_unit: int = 1) -> Tensor:
        """Add the clipped sum of one micro-batch to the gradients.

        1. The engine sets existing gradients aside and runs the model forward and backward. It
           computes each unit's norm, an upper bound of the norm, and a clip factor from the bound.
           If a layer is used in a way that the self-check did not see, such as in a rare branch,
           the engine ``rows`` runs the micro-batch instead.
        2. The first two micro-batches of several units are compared with subsets of their units.
        3. Version counters show whether the model wrote to its parameters or buffers. If a check
           fails, nothing has been added.
        4. The engine computes the clipped sum of each parameter with these factors, and the sum is
           added to ``grad``. The rounding error of each addition is kept for the next micro-batch
           of the step (``sums``). A step ends when ``grad`` is cleared or changed.

        Args:
            batch: A pytree of tensors whose leading dimension is b, the number of rows.
            rows_per_unit: Number of rows of each privacy unit, which are contiguous. A unit's
                gradient is the sum of its rows' gradients.

        Returns:
            Norms before clipping, shape (b / rows_per_unit,); 0 for a unit that was skipped because
            it is not finite. Private: a norm is a function of the unit's records.

        Raises:
            InputError: ``self_check`` was not called, or tensors have wrong leading dimensions.
            RunError: Examples mix, the model wrote to its state, or the trainable parameters
                changed. Also raised if an earlier micro-batch failed while its sum was added;
                create a new clipper in this case.
        """
        held = self._entered_state()
        if self.choice is None:
            raise InputError(
                "accumulate was called before self_check. Call self_check with synthetic batches"
                " first.",
                key=None,
            )
        if self._failed:
            raise RunError(
                "an earlier micro-batch failed while it was added, so the sum may contain some of"
                " its rows. Clear the gradients and make a new PerExampleClipper."
            )
        rows = count_rows(batch)
        if rows_per_unit < 1 or rows % rows_per_unit:
            raise InputError(
                "the number of rows in a batch must be a multiple of"
                f" rows_per_unit={rows_per_unit}. Fill up smaller units with rows, and multiply"
                " the losses of these rows by zero.",
                key="rows_per_unit",
                value=rows_per_unit,
            )
        self._parameters.check_unchanged()
        micro_batch = MicroBatch(batch, rows, rows // rows_per_unit)
        if not rows:
            self.losses = torch.empty(0)
            return torch.empty(0)
        self._set_precision(self._autocast, self._current_loss_scale())
        engine = self._engine
        with held.unchanged():
            try:
                clipped = self._checked_run(engine, micro_batch)
            except UseError:
                # No record may end a run, and single-example execution is exact.
                engine = self._rows
                clipped = engine.run(micro_batch, self.style)
        self._failed = True  # until the whole sum is added
        parameters = self._parameters.now()
        for name, part in engine.sums(clipped):
            parameter = parameters[name]
            parameter.grad = self._sums.add(name, parameter.grad, part.to(parameter.dtype))
        self._sums.flush()
        self._failed = False
        self.losses = clipped.losses
        self.non_finite += clipped.non_finite
        norms = clipped.norms
        if clipped.non_finite:
            norms = torch.where(clipped.finite, norms, 0.0)
        return norms if clipped.losses.dtype == torch.float64 else norms.float()

    def _checked_run(self, engine: BookKeeping | Rows, micro_batch: MicroBatch) -> Clipped:
        """Run an engine, with check R in the first micro-batches of several units."""
        run = partial(engine.run, style=self.style)
        if not self._unchecked or micro_batch.units < 2:  # A single unit cannot mix with others.
            return run(micro_batch)
        sample = self._checks.sample(micro_batch)
        if sample.has_dropout:
            with self._checks.without_randomness():
                compared = self._checks.compare(sample, micro_batch, run(micro_batch))
            clipped = run(micro_batch)
        else:
            clipped = run(micro_batch)
            compared = self._checks.compare(sample, micro_batch, clipped)
        self._unchecked -= compared
        return clipped

    @property
    def _engine(self) -> BookKeeping | Rows:
        assert self.choice is not None
        return self._rows if self.choice.engine == "rows" else self._book_keeping

    def _set_precision(self, autocast: torch.dtype | None, loss_scale: float) -> None:
        for engine in (self._book_keeping, self._rows):
            engine.autocast, engine.loss_scale = autocast, loss_scale

    def _current_loss_scale(self) -> float:
        scale = self._loss_scale() if callable(self._loss_scale) else self._loss_scale
        check_loss_scale(scale)
        return scale

    def _entered_state(self) -> HeldState:
        if self._held is None:
            raise InputError(
                "call a PerExampleClipper's methods inside `with PerExampleClipper(...)`.", key=None
            )
        return self._held


@dataclass(frozen=True, kw_only=True)
class ClippingOptions:
    """Arguments of ``PerExampleClipper``, with the same names."""

    max_grad_norm: float
    clipping: str = "flat"
    engine: str = "auto"
    groups: Sequence[str] | None = None
    autocast: torch.dtype | None = None
    loss_scale: LossScale = 1.0
    headroom: float = 0.0
    shards: Shards | None = None
    choice: ClippingChoice | None = None

    def make(self, model: nn.Module, losses_of: LossFunction) -> PerExampleClipper:
        """Return a clipper for the trainable parameters of ``model``."""
        return PerExampleClipper(model, losses_of, **vars(self))
