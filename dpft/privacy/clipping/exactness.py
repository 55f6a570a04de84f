"""The exactness check: losses are used only once their per-example gradients are proved exact.

The first batch of a call signature is checked before it is used: each row runs alone through the
model (``single_example``); losses and gradients of at most eight rows, in another order, are
compared with the bare model's (``proof``); and their losses with those among all rows
(``cross_example``), as are those of two more subsets; and gradients of half of the last and of four
parts of the batch, with those among others (``cross_gradients``). That is thirteen calls of
``compute_losses``: on all rows without a graph, on three subsets, on half of the last, on four
parts, on the last subset bare and clipped, on all clipped, and on all, which is used; of fewer than
eight rows there are fewer parts. A plan that is not exact falls back to larger modules
(``regions``). At later batches that are looked at (``loss_check``) all but the proof is made again;
and where losses come another way than any before, by another function of the caller's, they are
compared as at a first batch.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from dpft.errors import InputError, RunError, is_out_of_memory
from dpft.privacy.clipping.choices import Tuning
from dpft.privacy.clipping.engine import LossFunction, is_a_list
from dpft.privacy.clipping.loss_check import (
    NOT_REPEATABLE,
    Computation,
    LossCheck,
    NotRepeatable,
)
from dpft.privacy.clipping.patches import Patches
from dpft.privacy.clipping.separation.cross_example import (
    NothingCompared,
    SubsetLosses,
    check_halves,
)
from dpft.privacy.clipping.separation.fingerprints import Prints, add_prints, fingerprint_of
from dpft.privacy.clipping.separation.mapping import log_once
from dpft.privacy.clipping.separation.proof import (
    CheckResult,
    NotExact,
    bare_run,
    check_against,
    describe_graph,
    gradients_kept,
    other_leaves,
)
from dpft.privacy.clipping.separation.reexecution import (
    DeterministicMode,
    ModelSnapshot,
    RandomState,
    batch_size_of,
    evaluating,
    knows_no_order,
    one_order_of_addition,
)
from dpft.privacy.clipping.separation.row_subset import Arguments, OnCall, is_compiled
from dpft.privacy.clipping.separation.single_example import ExamplesMixed, check_modes
from dpft.privacy.clipping.trainable import Shares
from dpft.privacy.clipping.uses import Use

ROUNDS = 7
ERRORS_OF_A_PLAN = (
    InputError,
    RunError,
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    AttributeError,
)
"""What a model may raise where it is run example by example and is not made for it."""
Receiver = Callable[[str, Use], None]
Backward = Callable[..., None]
"""(losses, receive, retain_graph=…, rows=…): hands each use of a backward pass to ``receive``."""


class ExactnessCheck(LossCheck):
    """Computes losses for an engine that records layers, and proves them where that is due."""

    def __init__(
        self,
        model: nn.Module,
        patches: Patches,
        backward: Backward,
        tuning: Tuning,
        passes: int = 1,
    ) -> None:
        """Prepares for a model; ``passes`` are those that the engine runs backward at most."""
        super().__init__(patches.model, patches.trainable, patches.calls)
        self._patches, self._plans = patches, patches.plans
        self._backward, self._tuning, self._passes = backward, tuning, passes
        self._calls.compiled = is_compiled(model)
        self._checked: set[Hashable] = set()
        self._units: Tensor | None = None
        self._may_survey = True
        self._compared = False
        self._graph: Hashable = None
        self._snapshot: ModelSnapshot | None = None

    @property
    def _kinds(self) -> list[Hashable]:
        return self._plans.kinds

    @property
    def _scale(self) -> float:
        return self._tuning.scale

    @contextmanager
    def _bare(self) -> Iterator[None]:
        with self._patches.without():
            yield

    def losses(self, compute_losses: LossFunction, units: Tensor | None) -> Tensor:
        """Returns the losses of all rows, once it is proved that they may be used.

        Args:
            compute_losses: As the clipper was given it.
            units: Unit of each row of the model's calls, or None where each row is its own.

        Raises:
            InputError: A parameter is used where the batch cannot be followed.
            RunError: They may not be used.
        """
        self._units, self._may_survey = units, True
        self._compared = self._forced = self._calls.with_graph = False
        self._alone = None
        asked = Computation(compute_losses, units, RandomState.now(self._trainable.device))
        for number in range(ROUNDS):
            # A first batch is a survey as a rule, so that all that leads to it is deterministic.
            still = number == 0 and not self._schedule.any_used and not self._calls.compiled
            losses, failed = self._attempt(asked, still)
            survey = self._calls.survey
            if survey is None and still and self._plans.saw_a_call and not failed:
                self._put_back()
                asked.state.restore()
                continue
            if survey is None and not failed and self._may_be_used(losses):
                self._schedule.count(self._kinds)
                return losses
            if survey is not None and not failed and not is_a_list(losses):
                self._put_back()
                return losses
            came_another_way = self._plans.saw_a_call and self._may_survey and not self._compared
            if survey is None and not failed and came_another_way:
                self._forced = True
                del losses
                self._put_back()
                asked.state.restore()
                continue
            expected = losses.detach() if survey else None
            del losses  # and what the caller computed for all rows
            self._prove(asked, expected, failed=failed)
            asked.state.restore()
            if not self._plans.saw_a_call:
                return compute_losses()
        raise NotRepeatable(NOT_REPEATABLE)

    def _attempt(self, asked: Computation, still: bool) -> tuple[Tensor, bool]:
        """Returns losses of all rows, with a graph but in a survey; and whether it failed."""
        self._plans.start()
        self._snapshot = None if self._schedule.any_used else ModelSnapshot(self._model)
        try:
            watched = self._calls.training(self._on_call, asked.units, self._around_survey)
            with watched, DeterministicMode(noise=False) if still else nullcontext():
                return asked.compute_losses(), False
        except ExamplesMixed:
            self._put_back()
            raise
        except Exception as error:
            self._put_back()
            if is_out_of_memory(error) or not self._plans.saw_a_call:
                raise
            if self._calls.survey is None:
                return torch.empty(0), True
        # The caller's function may want a graph behind what the model gives. If it fails so too,
        # its own error comes out of a run that is no survey.
        self._may_survey = not self._calls.with_graph
        self._calls.with_graph = True
        asked.state.restore()
        return self._attempt(asked, still=False)

    def _on_call(self, arguments: Arguments) -> bool:
        """Puts on the plan of a call; says whether its signature is to be proved first."""
        signature = self._patches.use_plan_for(arguments, self._units)
        if signature is not None:
            self._schedule.meet(signature.kind, batch_size_of(arguments))
        if signature is None or not self._schedule.is_due(signature.kind):
            if self._forced and signature is not None:
                return self._may_survey
            return False
        if signature.kind not in self._checked:
            check_modes(self._model)
            self._draws[signature.kind] = self._patches.check_single_examples(
                arguments, self._units
            )
            self._checked.add(signature.kind)
        return self._may_survey

    @contextmanager
    def _around_survey(self) -> Iterator[None]:
        """Makes the model bare for a call of a survey."""
        self._snapshot = self._snapshot or ModelSnapshot(self._model)
        with self._patches.without(), self._deterministic():
            yield

    def _put_back(self) -> None:
        if self._snapshot is not None:
            self._snapshot.restore()
            self._snapshot = None

    def _may_be_used(self, losses: Tensor) -> bool:
        """Whether losses of all rows are proved, or are none at all, which is refused elsewhere."""
        if not _can_be_proved(losses):
            return True
        self._graph = describe_graph(losses, self._trainable.now())
        return not self._is_due() and self._plans.are_proved(self._graph)

    def _is_due(self) -> bool:
        return any(self._schedule.is_due(kind) for kind in self._kinds)

    def _prove(self, asked: Computation, expected: Tensor | None, *, failed: bool) -> None:
        """Proves the plans of the calls just made, and that the losses are each row's own.

        Args:
            asked: What is proved.
            expected: Losses of all rows in a survey; None where there was none.
            failed: Whether the computation just made ended with an error.
        """
        self._snapshot = self._snapshot or ModelSnapshot(self._model)
        survey, result = self._calls.survey, None
        known = self._graph is not None and self._plans.has_proof_of(self._graph)
        again = self._plans.were_proved if survey else self._is_due() and known
        again = again and not self._forced
        try:
            if failed:
                # An error of the caller's own comes out of this.
                self._is_random(asked)
            with torch.random.fork_rng(devices=()):
                subset = None
                if survey is not None and expected is not None:
                    subset = self._compare(asked, survey, expected, self._plans.precision)
                    self._compared = True
                elif self._plans.saw_a_call and not self._compared and not failed:
                    raise NothingCompared("they fail where the model answers for all rows at once")
                if self._forced or self._plans.are_ambiguous:
                    # Another way may show on all rows alone. Where another size equals the batch
                    # size, only as many rows show what becomes of it.
                    subset = None
                if not again:
                    result = self._check_with_fallback(asked, subset)
                if result is not None or again:
                    self._compare_parts()
                if not self._plans.saw_a_call:
                    log_once("the model itself was not called: each batch is proved anew: slow")
                    check_halves(self._model, asked.compute_losses, asked.state)
        finally:
            self._put_back()
        if result is not None:
            self._plans.remember_proof(result)
        if result is not None or again:
            self._schedule.note_checked(self._kinds)
        else:
            # Nothing was proved on few rows.
            self._may_survey = False
        self._checked.clear()
        self._forced = False

    @contextmanager
    def _calling(self) -> Iterator[OnCall]:
        def on_call(arguments: Arguments) -> bool:
            self._patches.use_plan_for(arguments)
            return False

        with self._plans.replaying():
            yield on_call

    def _gradients(
        self, losses: Tensor, factors: Tensor, *, units: Tensor | None, precisely: bool
    ) -> list[Prints]:
        """Returns fingerprints of the sum of the rows of uses, each times its factor.

        Of each backward pass that the engine runs through a graph: what one of them gives may be
        something else than what the first gave, of which it took the norms.
        """
        shares = Shares.of(units, losses)
        # Of a loss for each row its row's; of a loss for each unit that of all rows of the unit.
        of_rows = factors if len(factors) == len(shares.rows) else factors[shares.rows]
        taken = of_rows != 0
        everyone = bool(taken.all())

        def receive(found: Prints, name: str, use: Use) -> None:
            with torch._C.DisableTorchFunction():  # no mode that this runs in is to cut rows
                kept = use if everyone else use.keep(taken)
                part = kept.weighted_sum(of_rows.to(kept.dtype))
                add_prints(found, {name: fingerprint_of(part, precisely=precisely)})

        beside = other_leaves(losses, self._trainable.now())
        passes: list[Prints] = [{} for _ in range(self._passes)]
        with gradients_kept(beside), torch.autocast(losses.device.type, enabled=False):
            for number, found in enumerate(passes, start=1):
                again = number < self._passes
                take = partial(receive, found)
                self._backward(losses, take, retain_graph=again, rows=len(of_rows))
        return passes

    def _check_with_fallback(
        self, asked: Computation, subset: SubsetLosses | None
    ) -> CheckResult | None:
        """Returns what is proved, falling back to larger modules as long as plans are not exact.

        None where no plan is exact on few rows.
        """
        while True:
            try:
                return self._check_as_it_runs(asked, subset)
            except NotRepeatable:
                raise
            except (NotExact, *ERRORS_OF_A_PLAN) as error:
                if is_out_of_memory(error):
                    raise
                if self._plans.widen():
                    continue
                if subset is not None:
                    # All rows may show what these do not: a part that was called beside the model.
                    self._plans.forget()
                    return None
                if self._plans.refusal is not None:
                    raise self._plans.refusal from error
                # FSDP2 puts its own name before the model's. The message of another library's
                # error may tell the records' lengths.
                name = type(self._model).__name__.removeprefix("FSDP")
                own = isinstance(error, NotExact | InputError | RunError)
                words = str(error) if own else f"it ended with {type(error).__name__}"
                raise RunError(f"the clipper cannot be exact for {name}: {words}") from error

    def _check_as_it_runs(self, asked: Computation, subset: SubsetLosses | None) -> CheckResult:
        """Returns what is proved of few rows, or of all as the model trains or evaluates."""
        if subset is not None:
            # A checkpoint computes again in the backward pass, where dropout is not held off.
            with suppress(CheckpointError):
                return self._check_gradients(asked, subset)
        try:
            return self._check_gradients(asked, None)
        except NotExact:
            # Where modules run example by example, dropout draws its masks in another order.
            if not self._is_random(asked):
                raise
            with evaluating(self._model):
                return self._check_gradients(asked, None)

    def _check_gradients(self, asked: Computation, subset: SubsetLosses | None) -> CheckResult:
        """Compares what the clipped model records with the bare model's gradient, as it is.

        Both add in one order, where the device's kernels can.
        """
        try:
            with one_order_of_addition(asked.state.device):
                return self._compare_gradients(asked, subset)
        except RuntimeError as error:
            if not knows_no_order(error):
                raise
        return self._compare_gradients(asked, subset)

    def _compare_gradients(self, asked: Computation, subset: SubsetLosses | None) -> CheckResult:
        units = asked.units if subset is None else subset.survey.units
        with self._patches.without():
            losses = self._bare_losses(asked, subset)
            bare = bare_run(losses, self._trainable, self._tuning.scale, units)
            del losses
        graph: Tensor | None = None

        def run(weights: Tensor, receive: Receiver) -> Tensor:
            nonlocal graph
            # Of few rows one graph is kept; of all it would take the memory of two passes.
            if graph is None or subset is None:
                graph = self._clipped_losses(asked, subset)
            if graph.shape != weights.shape:
                raise NotExact(f"its losses have shape {tuple(graph.shape)} under the clipper")
            rows = len(weights) if units is None else len(units)
            with torch.autocast(graph.device.type, enabled=False):
                self._backward(graph * weights, receive, retain_graph=subset is not None, rows=rows)
            return graph.detach()

        return check_against(bare, run, precision=self._plans.precision)

    def _bare_losses(self, asked: Computation, subset: SubsetLosses | None) -> Tensor:
        if subset is not None and subset.losses.requires_grad:
            losses, subset.losses = subset.losses, subset.losses.detach()
            return losses
        asked.state.restore()
        if subset is None:
            return asked.compute_losses()
        with subset.again(self._calls, lambda _: False, self._deterministic):
            return asked.compute_losses()

    def _clipped_losses(self, asked: Computation, subset: SubsetLosses | None) -> Tensor:
        asked.state.restore()
        with self._calling() as on_call:
            if subset is None:
                with self._calls.training(on_call, asked.units):
                    return asked.compute_losses()
            with subset.again(self._calls, on_call, self._deterministic):
                return asked.compute_losses()


def _can_be_proved(losses: object) -> bool:
    """Whether these are losses at all; what is not is refused elsewhere."""
    if not isinstance(losses, Tensor) or not is_a_list(losses):
        return False
    return len(losses) > 0 and losses.requires_grad
