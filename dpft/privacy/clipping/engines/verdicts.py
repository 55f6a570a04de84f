"""Proofs of an engine's plans: what the clipped model records, held against the bare model."""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from dpft.errors import InputError, RunError, is_out_of_memory
from dpft.privacy.clipping.choices import Tuning
from dpft.privacy.clipping.engines.base import LossFunction
from dpft.privacy.clipping.engines.compiled import CompiledForward
from dpft.privacy.clipping.engines.patches import Patches
from dpft.privacy.clipping.separation.fingerprints import Disproved
from dpft.privacy.clipping.separation.kept_state import RandomState, evaluating
from dpft.privacy.clipping.separation.loss_company import Few
from dpft.privacy.clipping.separation.proof import Verdict, bare_run, check_against
from dpft.privacy.clipping.separation.root_calls import Arguments
from dpft.privacy.clipping.uses import Use

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
NOT_REPEATABLE = (
    "compute_losses must return the same losses when it is called again with the same random state "
    "of torch, got others: draw its batch before accumulate, not inside."
)
Receiver = Callable[[str, Use], None]
Backward = Callable[..., None]
"""(losses, receive, retain_graph=…, rows=…): hands each use of a backward pass to ``receive``."""


class NotRepeatable(RunError):
    """What computes the losses gives others each time."""


@dataclass(frozen=True)
class Computation:
    """What is to be proved.

    Attributes:
        compute_losses: As the clipper was given it.
        units: Unit of each row of the model's calls, or None where each row is its own.
        state: Random state that ``compute_losses`` is called with, each time.
    """

    compute_losses: LossFunction
    units: Tensor | None
    state: RandomState


class Verdicts:
    """Says how far it is proved that recorded gradients are the examples' own."""

    def __init__(
        self,
        model: nn.Module,
        patches: Patches,
        backward: Backward,
        tuning: Tuning,
        quiet: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """Prepares for an engine.

        Args:
            model: As the engine got it, compiled or not.
            patches: The engine's recording forwards.
            backward: The engine's backward pass.
            tuning: The engine's, which says what the losses are multiplied by.
            quiet: Makes the model draw nothing.
        """
        self._model, self._patches, self._plans = model, patches, patches.plans
        self._trainable = patches.trainable
        self._backward, self._tuning, self._quiet = backward, tuning, quiet

    def widened(self, asked: Computation, few: Few | None) -> Verdict | None:
        """Returns what is proved, widening the plans as long as they are disproved.

        None where all plans are disproved on few rows.

        Raises:
            InputError: A parameter is used where the batch cannot be followed.
            RunError: No plan is exact.
        """
        while True:
            try:
                return self._verdict(asked, few)
            except NotRepeatable:
                raise
            except (Disproved, *ERRORS_OF_A_PLAN) as error:
                if is_out_of_memory(error):
                    raise
                if self._plans.widen():
                    continue
                if few is not None:
                    # All rows may show what these do not: a part that was called beside the model.
                    self._plans.forget()
                    return None
                if self._plans.refusal is not None:
                    raise self._plans.refusal from error
                # FSDP2 puts its own name before the model's.
                name = type(self._model).__name__.removeprefix("FSDP")
                raise RunError(
                    f"the clipper cannot be exact for {name}: {_in_words(error)}"
                ) from error

    def of_compiled(self, asked: Computation, forward: CompiledForward) -> Counter[str] | None:
        """Returns how many uses of each parameter a compiled forward of all rows records.

        They are held against the bare model; where it draws random numbers, as it evaluates. None
        where values are not finite, so that nothing is proved.

        Raises:
            RunError: What is recorded is not the examples' own gradients, or it cannot be compiled.
        """
        still = evaluating(self._model) if self.is_random(asked) else nullcontext()
        try:
            with still, forward.always():
                verdict = self._verdict_as_is(asked, None)
        except Disproved as error:
            raise RunError(
                f"`compilation` is not exact for {type(self._model).__name__}: {error}; set"
                " `compilation=None`."
            ) from error
        counts = self._patches.counts
        return None if verdict is Verdict.FOR_NOW else counts

    def _verdict(self, asked: Computation, few: Few | None) -> Verdict:
        """Returns what is proved of few rows, or of all as the model trains or evaluates.

        Raises:
            Disproved: The recorded gradients are not the examples' own.
        """
        if few is not None:
            # A checkpoint computes again in the backward pass, where dropout is not held off.
            with suppress(CheckpointError):
                return self._verdict_as_is(asked, few)
        try:
            return self._verdict_as_is(asked, None)
        except Disproved:
            # Where modules run example by example, dropout draws its masks in another order.
            if not self.is_random(asked):
                raise
            with evaluating(self._model):
                return self._verdict_as_is(asked, None)

    def _verdict_as_is(self, asked: Computation, few: Few | None) -> Verdict:
        units = asked.units if few is None else few.survey.units
        with self._patches.without():
            losses = self._bare_losses(asked, few)
            bare = bare_run(losses, self._trainable, self._tuning.scale, units)
            del losses
        graph: Tensor | None = None

        def run(weights: Tensor, receive: Receiver) -> Tensor:
            nonlocal graph
            # Of few rows one graph is kept; of all it would take the memory of two passes.
            if graph is None or few is None:
                graph = self._clipped_losses(asked, few)
            if graph.shape != weights.shape:
                raise Disproved(f"its losses have shape {tuple(graph.shape)} under the clipper")
            rows = len(weights) if units is None else len(units)
            with torch.autocast(graph.device.type, enabled=False):
                self._backward(graph * weights, receive, retain_graph=few is not None, rows=rows)
            return graph.detach()

        return check_against(bare, run, precision=self._plans.precision)

    def _bare_losses(self, asked: Computation, few: Few | None) -> Tensor:
        if few is not None and few.losses.requires_grad:
            losses, few.losses = few.losses, few.losses.detach()
            return losses
        asked.state.restore()
        if few is None:
            return asked.compute_losses()
        calls = self._patches.calls
        with few.again(calls, lambda _: False, self._quiet):
            return asked.compute_losses()

    def _clipped_losses(self, asked: Computation, few: Few | None) -> Tensor:
        def meet(arguments: Arguments) -> bool:
            self._patches.use_plan_for(arguments)
            return False

        asked.state.restore()
        calls = self._patches.calls
        with self._plans.replaying():
            if few is None:
                with calls.training(meet, asked.units):
                    return asked.compute_losses()
            with few.again(calls, meet, self._quiet):
                return asked.compute_losses()

    def is_random(self, asked: Computation) -> bool:
        """Returns whether the bare model's losses are drawn.

        Raises:
            RunError: They differ though the random state does not.
        """
        with self._patches.without():
            asked.state.restore()
            losses = asked.compute_losses().detach()
            other = asked.compute_losses().detach()
            asked.state.restore()
            again = asked.compute_losses().detach()
        same = losses.shape == again.shape
        if not (same and torch.allclose(losses, again, rtol=1e-3, equal_nan=True)):
            raise NotRepeatable(NOT_REPEATABLE)
        return not torch.equal(losses.nan_to_num(), other.nan_to_num())


def _in_words(error: Exception) -> str:
    """Returns what went wrong; of an error that is not dpft's own its kind alone.

    The message of another library's may tell the records' lengths.
    """
    known = isinstance(error, Disproved | InputError | RunError)
    return str(error) if known else f"it ended with {type(error).__name__}"
