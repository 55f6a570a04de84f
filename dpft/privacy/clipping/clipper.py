"""The public face of per-example clipping: the clipper, its options, and its self-check.

>>> import torch
>>> model = torch.nn.Linear(2, 1, bias=False)
>>> inputs = torch.tensor([[3.0, 4.0], [0.0, 0.5]])
>>> with PerExampleClipper(model, max_grad_norm=1.0) as clipper:
...     norms = clipper.accumulate(lambda: model(inputs)[:, 0])
>>> norms
tensor([5.0000, 0.5000])
>>> bool(torch.allclose(model.weight.grad, torch.tensor([[0.6, 0.8 + 0.5]])))
True
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from dpft.batch_mixing import check_model
from dpft.devices import whole_precision
from dpft.errors import InputError, RunError
from dpft.privacy.clipping.algorithms import LoopEngine, make_engine, resolved_engine
from dpft.privacy.clipping.choices import (
    DEFAULT_MEMORY_MB,
    LossScale,
    Shards,
    Tuning,
    check_style_name,
)
from dpft.privacy.clipping.engine import (
    ClippingStyle,
    LossFunction,
    check_are_units,
    check_is_tensor,
    check_losses,
    check_units,
    clipping_style,
)
from dpft.privacy.clipping.trainable import parameter_groups
from dpft.privacy.frozen_state import HeldState, state_unchanged


class PerExampleClipper:
    """Adds sums of clipped per-example gradients to ``parameter.grad``.

    A context manager: on entering, layers that own trainable parameters get a recording
    ``forward`` of the same arithmetic; on leaving, also by an exception, the model is exactly as
    before. While inside, do not call ``backward`` on the model's outputs yourself.

    Guarantees:
        After ``accumulate``, every trainable parameter's ``grad`` has grown by
        ``sum_i C_i grad(loss_i)``, where ``norm(C_i grad(loss_i)) <= sensitivity`` over all
        trainable parameters together, up to 1e-5 of it by rounding, whatever the magnitudes of
        inputs and gradients: what float32 squares do not hold is squared in float64, and what it
        cannot scale is left out as not finite. Micro-batches are added up without the error of
        adding (``sums``): with ``headroom`` of ``rounding_headroom(n)``, adding or removing one
        example (one unit, where units are given) changes the sum of a step of n examples by at
        most ``sensitivity``, the rounding of the others included: proved for the additions, and for
        what rounds inside a dense layer's product or the model itself allowed for by the worst
        that was found. A non-finite loss or gradient
        contributes exactly zero. Nothing trainable is left out: a layer without a rule and a
        weight used behind its layer's back are refused by name. So is a model whose forward writes
        to what its state dict releases: to frozen parameters, persistent buffers and extra state,
        and to trainable parameters. The first two calls compare values, and every call compares
        the version counters of PyTorch (``frozen_state``).
    """

    def __init__(
        self,
        model: nn.Module,
        max_grad_norm: float,
        *,
        clipping: str = "flat",
        engine: str = "auto",
        groups: Sequence[str] | None = None,
        memory_mb: int = DEFAULT_MEMORY_MB,
        loss_scale: LossScale = 1.0,
        headroom: float = 0.0,
        shards: Shards | None = None,
        moved: Collection[str] = (),
    ) -> None:
        """Prepares for a model whose trainable parameters are those that require grad now.

        Args:
            model: The model; its trainable parameters in float32 or float64.
            max_grad_norm: The clipping norm, positive and finite.
            clipping: Name of the clipping style.
            engine: Name of the engine; all give the same sum.
            groups: For per-layer clipping, shell patterns over parameter names that partition
                the parameters; None makes a group of each layer.
            memory_mb: What an engine may spend on per-example gradients to save time.
            loss_scale: For float16, K: the backward pass runs on ``K * loss``, what it gives is
                clipped at ``K * max_grad_norm`` and divided by K in float32 (Li et al. 2022,
                Appendix T); norms and sums are those of the unscaled losses.
            headroom: Share of the norm left for the rounding of a step's sum: gradients are
                scaled to ``(1 - headroom) * max_grad_norm`` (``sums.rounding_headroom``).
            shards: Of a sharded model: each rank adds up its own examples, and ``grad`` is that of
                ``shards.unsharded``, or where ``shards.new_sums`` keeps it.
            moved: Names of frozen parameters that the caller updates between two steps, from noisy
                sums. ``PrivacyEngine`` reads them.

        Raises:
            InputError: An unknown name, a bad norm, nothing trainable, a trainable parameter
                of a layer without a rule, or groups that are no partition.
        """
        check_model(model)
        check_style_name(clipping)
        if groups is not None and clipping != "per_layer":
            raise InputError(f"`groups` needs `clipping='per_layer'`, got {clipping!r}; drop one.")
        numbers = parameter_groups(model, per_layer=clipping == "per_layer", patterns=groups)
        count = len(set(numbers.values())) or 1
        self.style: ClippingStyle = clipping_style(
            clipping, max_grad_norm=max_grad_norm, groups=count, headroom=headroom
        )
        tuning = Tuning(memory_mb=memory_mb, loss_scale=loss_scale, shards=shards)
        self._engine = make_engine(engine, model, self.style, groups=numbers, tuning=tuning)
        self._model, self._shards = model, shards
        self._held = HeldState({})
        self._calls = 0
        self._entered = False
        self._failed = False
        self.non_finite = 0
        """Examples (or units) left out as not finite, since entering; private."""

    @property
    def sensitivity(self) -> float:
        """Most that one example can move the clipped sum, in L2 norm."""
        return self.style.sensitivity

    def __enter__(self) -> Self:
        if self._entered:
            raise InputError("a PerExampleClipper must be entered once at a time, got twice.")
        self._held = HeldState(self._model.state_dict(keep_vars=True))
        self._engine.install()
        self._entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._engine.remove()
        self._entered = False

    def accumulate(self, compute_losses: LossFunction, units: Tensor | None = None) -> Tensor:
        """Adds the clipped sum of one micro-batch to the gradients.

        Args:
            compute_losses: Runs the model and returns per-example losses, shape (b,). Called
                again, with the same random state, where a kind of call is new: its first batch
                proves that the examples' gradients can be told apart (``proof``).
            units: Privacy unit of each row, shape (b,), integers; a unit's gradients are summed
                before the norm, so all its rows must be in this batch.

        Returns:
            Norms before clipping, shape (b,), or (units,) in the order of ``torch.unique``.
            Private: one example's norm is a function of that example alone.

        Raises:
            InputError: Losses or units of the wrong shape, or losses without a graph.
            RunError: A parameter is used without the batch dimension or outside its layer, or
                what trains is no longer what the clipper was made for, the model's forward wrote to
                what is released, something else wrote to a gradient, or a batch before this one
                failed half-way.
        """
        if not self._entered:
            raise InputError("accumulate must be called inside `with PerExampleClipper(...)`.")
        if self._failed:
            raise RunError(
                "a batch failed while it was being added, so the sum may hold part of it: clear "
                "the gradients and make a new PerExampleClipper."
            )
        self._engine.check_unchanged()
        if units is not None:
            check_are_units(units)
        with self._held.unchanged(), self._values_compared():
            before = self._gradients()
            losses = self._engine.compute(compute_losses, units)
            self._check_gradients(before)
            check_is_tensor(losses)
            if losses.dim() == 1 and len(losses) == 0:
                return losses.detach()
            check_losses(losses)
            if units is not None:
                check_units(units, len(losses))
            # Set until the sum is whole: after an error part of this batch may be in it.
            self._failed = True
            with torch.autocast(losses.device.type, enabled=False), whole_precision():
                clipped = self._engine.accumulate(losses, units)
            self.non_finite += clipped.non_finite
        self._failed = False
        return clipped.norms

    def _values_compared(self) -> AbstractContextManager[None]:
        """Return a context that compares values, for the first two micro-batches."""
        self._calls += 1
        return state_unchanged(self._model) if self._calls <= 2 else nullcontext()

    def _gradients(self) -> dict[str, tuple[Tensor | None, int]]:
        """Returns each parameter's ``grad`` and how often torch wrote to it, by name.

        Of a sharded model they are no sums: ``Shards`` keeps those.
        """
        if self._shards is not None:
            return {}
        found: dict[str, tuple[Tensor | None, int]] = {}
        for path, module in _modules_by_path(self._model):
            for name, parameter in module._parameters.items():
                grad = None if parameter is None else parameter.grad
                version = 0 if grad is None else grad._version
                found[f"{path}.{name}" if path else name] = (grad, version)
        return found

    def _check_gradients(self, before: Mapping[str, tuple[Tensor | None, int]]) -> None:
        """Refuses a ``grad`` that something else wrote to while losses were computed."""
        for name, (grad, version) in self._gradients().items():
            was, version_before = before.get(name, (None, 0))
            if grad is not was or version != version_before:
                self._failed = True
                raise RunError(
                    f"the gradient of {name} must be left to the clipper, but it was written to"
                    " while losses were computed, and nothing clips what was written: take"
                    " backward, zero_grad and assignments to grad out of the model and of"
                    " compute_losses, and add what is to be learned to each example's loss."
                )


MOST_MODULES = 10**6


def _modules_by_path(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Returns a model's modules under each of their paths.

    As ``named_modules``, whose generators run one inside another: this runs in each micro-batch.

    Raises:
        RecursionError: A module is inside itself.
    """
    found = [("", model)]
    for path, module in found:  # which grows meanwhile
        prefix = f"{path}." if path else ""
        children = module._modules.items()
        found += [(prefix + name, child) for name, child in children if child is not None]
        if len(found) > MOST_MODULES:
            raise RecursionError("a module is inside itself")
    return found


@dataclass(frozen=True, kw_only=True)
class ClippingOptions:
    """Arguments of ``PerExampleClipper``, under the same names."""

    max_grad_norm: float
    clipping: str = "flat"
    engine: str = "auto"
    groups: Sequence[str] | None = None
    memory_mb: int = DEFAULT_MEMORY_MB
    loss_scale: LossScale = 1.0
    headroom: float = 0.0
    shards: Shards | None = None
    moved: Collection[str] = ()
    autocast: torch.dtype | None = None
    """Type that the caller computes losses in; None: that of the parameters."""

    def make(self, model: nn.Module) -> PerExampleClipper:
        """Returns a clipper of the model's trainable parameters."""
        options = {name: value for name, value in vars(self).items() if name != "autocast"}
        return PerExampleClipper(model, **options)

    def resolved(self, model: nn.Module) -> Self:
        """Returns the options with the engine that ``auto`` takes, named; nothing is logged."""
        tuning = Tuning(memory_mb=self.memory_mb, loss_scale=self.loss_scale)
        return replace(self, engine=resolved_engine(self.engine, model, tuning)[0])


# Deep float32 networks differ by a few 1e-6 between two orders of summation; a wrong rule is off
# by percents.
LEAST_SHARE = 1e-2
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


def self_check(
    model: nn.Module,
    batches: Sequence[Callable[[], Tensor]],
    options: ClippingOptions,
    *,
    tolerance: float | None = None,
    units: Sequence[Tensor | None] | None = None,
    oracles: Sequence[Callable[[], Tensor]] | None = None,
) -> float:
    """Compares norms and clipped sums of an engine with the loop's; gradients end as None.

    Args:
        model: The model to be trained, in its training mode; dropout masks are those of a forked
            random state, the same for both.
        batches: Each computes per-example losses, shape (b,), of one synthetic batch.
        options: As in training; its engine is the one to prove.
        tolerance: Largest relative difference allowed; None takes that of the dtype.
        units: Privacy unit of each row of each batch, shape (b,), as ``accumulate`` takes them;
            None: each row is one.
        oracles: The same losses, computed otherwise, for the loop; None: as ``batches`` does.

    Returns:
        The largest relative difference seen.

    Raises:
        RunError: They differ by more than rounding, or are not finite.
    """
    worst = 0.0
    proven = options.resolved(model)
    loop = replace(options, engine="loop")
    rows_of = units or [None] * len(batches)
    for compute_losses, oracle, rows in zip(batches, oracles or batches, rows_of, strict=False):
        got = _clipped(model, compute_losses, proven, rows)
        expected = _clipped(model, oracle, loop, rows, looks=False)
        worst = max(worst, _compare(got, expected, tolerance))
    return worst


def _clipped(
    model: nn.Module,
    compute_losses: Callable[[], Tensor],
    options: ClippingOptions,
    units: Tensor | None,
    *,
    looks: bool = True,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns a batch's norms and clipped sums; random state stays, and no gradient is left."""
    with torch.random.fork_rng(), options.make(model) as clipper:
        if isinstance(clipper._engine, LoopEngine):
            clipper._engine.looks = looks
        norms = clipper.accumulate(compute_losses, units)
        if clipper.non_finite:
            scale = options.loss_scale() if callable(options.loss_scale) else options.loss_scale
            raise RunError(
                "self-check failed: gradients of synthetic data are not finite at"
                f" `loss_scale={scale:g}`; no private record was touched. Lower it, or choose a"
                " model whose weights are finite."
            )
    gradients = {}
    wanted = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    now = dict(model.named_parameters()) if options.shards is None else options.shards.unsharded
    for name in wanted:
        parameter = now[name]
        gradients[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad = None
    return norms, gradients


def _compare(
    got: tuple[Tensor, dict[str, Tensor]],
    expected: tuple[Tensor, dict[str, Tensor]],
    tolerance: float | None,
) -> float:
    """Returns the relative difference of norms and sums."""
    norms, sums = got
    true_norms, true_sums = expected
    total = _norm(list(true_sums.values())).clamp(min=torch.finfo(torch.float32).tiny)
    # Each parameter by its own size, but not below a share of the whole: some gradients are zero
    # but for rounding (a key's bias in attention).
    differences = {
        name: float(_norm([sums[name] - true]) / _norm([true]).clamp(min=LEAST_SHARE * total))
        for name, true in true_sums.items()
    }
    worst_name = max(differences, key=lambda name: differences[name])
    in_norms = float(((norms - true_norms).abs() / true_norms.clamp(min=1e-12)).max())
    difference = max(in_norms, differences[worst_name])
    allowed = TOLERANCE[true_sums[worst_name].dtype] if tolerance is None else tolerance
    if not difference <= allowed:
        raise RunError(
            f"self-check failed: the clipper differs from the one-example-at-a-time loop by "
            f"{difference:.1e} (allowed {allowed:.0e}), most in parameter {worst_name}; no "
            "private record was touched. Choose `engine='loop'` and report this model."
        )
    return difference


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([tensor.square().sum() for tensor in tensors]).sum().sqrt()
