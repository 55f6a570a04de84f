"""Losses that are used only once it is proved that their gradients can be told apart.

The first batch of a kind of call is rehearsed before it is used: each row runs alone through the
model (``rows_alone``); losses and gradients of at most eight rows, in another order, are held
against the bare model's (``proof``); and their losses against those among all rows
(``loss_company``), as are those of two more choices. That is six calls of ``compute_losses``: on
all rows without a graph, on three choices of few, on the first of them clipped, and the last, which
is used. At the 16th batch of a kind, the 32nd and so on all but the gradients are checked again;
and where losses come another way than any before, by another function of the caller's, they are
compared as at a first batch.
"""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from dpft.errors import is_out_of_memory
from dpft.privacy.clipping.choices import Tuning
from dpft.privacy.clipping.engines.base import LossFunction, is_a_list
from dpft.privacy.clipping.engines.compiled import CompiledForward, CompilerFailed
from dpft.privacy.clipping.engines.patches import Patches
from dpft.privacy.clipping.engines.verdicts import (
    NOT_REPEATABLE,
    Backward,
    Computation,
    NotRepeatable,
    Verdicts,
)
from dpft.privacy.clipping.separation.graph import describe_graph
from dpft.privacy.clipping.separation.held_still import HeldStill
from dpft.privacy.clipping.separation.kept_state import (
    Kept,
    RandomState,
    evaluating,
)
from dpft.privacy.clipping.separation.kinds import Kinds
from dpft.privacy.clipping.separation.loss_company import (
    Few,
    LossCompany,
    NothingCompared,
    Question,
)
from dpft.privacy.clipping.separation.mapping import log_once
from dpft.privacy.clipping.separation.root_calls import Arguments, Survey, is_compiled
from dpft.privacy.clipping.separation.rows_alone import RowsMixed, check_modes
from dpft.privacy.clipping.separation.signature import coarsest

ROUNDS = 7


class Prover:
    """Computes losses for an engine, and proves them where that is due."""

    def __init__(
        self, model: nn.Module, patches: Patches, backward: Backward, tuning: Tuning
    ) -> None:
        """Prepares for an engine.

        Args:
            model: As the engine got it, compiled or not.
            patches: The engine's recording forwards.
            backward: The engine's backward pass.
            tuning: The engine's, which says what the losses are multiplied by.
        """
        self._model, self._patches, self._plans = model, patches, patches.plans
        self._trainable = patches.trainable
        self._verdicts = Verdicts(model, patches, backward, tuning, self._quiet)
        self._company = LossCompany(patches.model, patches.calls)
        self._kinds = Kinds()
        self._draws: dict[Hashable, bool] = {}
        self._checked: set[Hashable] = set()
        self._units: Tensor | None = None
        self._surveys = self._compiles = True
        patches.calls.compiled = self._compiled = is_compiled(model)
        self._compared = self._forced = False
        self._graph: Hashable = None
        self._state = RandomState.now(self._trainable.device)
        self._kept: Kept | None = None

    def losses(self, compute_losses: LossFunction, units: Tensor | None) -> Tensor:
        """Returns the losses of all rows, once it is proved that they may be used.

        Args:
            compute_losses: As the clipper was given it.
            units: Unit of each row of the model's calls, or None where each row is its own.

        Raises:
            InputError: A parameter is used where the batch cannot be followed.
            RunError: They may not be used.
        """
        self._units, self._surveys, self._compiles = units, True, True
        self._compared = self._forced = self._patches.calls.with_graph = False
        self._state = RandomState.now(self._trainable.device)
        for number in range(ROUNDS):
            # A first batch is a survey as a rule, so that all that leads to it is held still.
            still = number == 0 and not self._kinds.any_used and not self._compiled
            losses, failed = self._attempt(compute_losses, still)
            if not failed and self._is_new(losses):
                del losses
                self._prove_compiled(compute_losses)
                self._state.restore()
                continue
            survey = self._patches.calls.survey
            if survey is None and still and self._plans.saw_a_call and not failed:
                self._put_back()
                self._state.restore()
                continue
            if survey is None and not failed and self._may_be_used(losses):
                self._kinds.used(self._plans.kinds)
                return losses
            if survey is not None and not failed and not is_a_list(losses):
                self._put_back()
                return losses
            if survey is None and not failed and self._is_to_be_compared():
                self._forced = True
                del losses
                self._put_back()
                self._state.restore()
                continue
            self._prove(compute_losses, losses.detach() if survey else None, failed=failed)
            del losses
            self._state.restore()
            if not self._plans.saw_a_call:
                return compute_losses()
        raise NotRepeatable(NOT_REPEATABLE)

    def _attempt(self, compute_losses: LossFunction, still: bool) -> tuple[Tensor, bool]:
        """Returns losses of all rows, with a graph unless it was a survey; and whether it failed.

        Raises:
            RunError: The model lets one row change another.
        """
        self._plans.start()
        self._start_uncompiled()
        self._kept = None if self._kinds.any_used else Kept(self._model)
        try:
            watched = self._patches.calls.training(self._meet, self._units, self._begun)
            with watched, HeldStill(noise=False) if still else nullcontext():
                return compute_losses(), False
        except (RowsMixed, CompilerFailed):
            self._put_back()
            raise
        except Exception as error:
            self._put_back()
            if is_out_of_memory(error) or not self._plans.saw_a_call:
                raise
            if self._patches.calls.survey is None:
                return torch.empty(0), True
        # The caller's function may want a graph behind what the model gives. If it fails so too,
        # its own error comes out of a run that is no survey.
        self._surveys = not self._patches.calls.with_graph
        self._patches.calls.with_graph = True
        self._state.restore()
        return self._attempt(compute_losses, still=False)

    def _meet(self, arguments: Arguments) -> bool:
        """Puts on the plan of a call; says whether its kind is to be proved first."""
        signature = self._patches.use_plan_for(arguments, self._units)
        if signature is None or not self._kinds.are_due(signature.kind):
            if self._forced and signature is not None:
                return self._surveys
            if self._compiled_forward is not None:
                self._compiled_forward.is_on = self._may_run_compiled(arguments)
            return False
        if signature.kind not in self._checked:
            check_modes(self._model)
            self._draws[signature.kind] = self._patches.check_rows_alone(arguments, self._units)
            self._checked.add(signature.kind)
        return self._surveys

    @property
    def _compiled_forward(self) -> CompiledForward | None:
        return self._patches.compiled

    @property
    def _ran_compiled(self) -> bool:
        return self._compiled_forward is not None and self._compiled_forward.ran

    def _start_uncompiled(self) -> None:
        if self._compiled_forward is not None:
            self._compiled_forward.ran = self._compiled_forward.is_on = False
            self._compiled_forward.shapes = []
            self._compiled_forward.meet(None)

    def _may_run_compiled(self, arguments: Arguments) -> bool:
        """Whether a call that is not due is of a proved kind, and of a shape to compile."""
        forward = self._compiled_forward
        if forward is None or not self._compiles:
            return False
        if self._patches.has_regions:
            log_once("modules run example by example, so the model runs uncompiled")
            return False
        return self._plans.are_wholly_proved and forward.takes(arguments)

    def _is_new(self, losses: Tensor) -> bool:
        """Whether compiled losses have a graph of which nothing is proved yet."""
        if not self._ran_compiled or not _can_be_proved(losses):
            return False
        self._graph = self._graph_of(losses)
        return not self._plans.has_proof_of(self._graph)

    def _prove_compiled(self, compute_losses: LossFunction) -> None:
        """Holds what the compiled forward records against the bare model's gradient, once.

        Raises:
            RunError: They differ, or the compiler fails.
        """
        forward = self._compiled_forward
        assert forward is not None and self._graph is not None
        asked = Computation(compute_losses, self._units, self._state)
        with torch.random.fork_rng(devices=()):
            counts = self._verdicts.of_compiled(asked, forward)
        if counts is None:
            self._compiles = False
            return
        forward.expect(self._graph, counts)
        self._plans.remember_graph(self._graph)

    @contextmanager
    def _begun(self) -> Iterator[None]:
        """Makes the model bare for a call of a survey."""
        self._kept = self._kept or Kept(self._model)
        with self._patches.without(), self._quiet():
            yield

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Lets nothing random happen in the model, for runs that are held against each other."""
        drawn = any(self._draws.get(kind, False) for kind in self._plans.kinds)
        with evaluating(self._model) if drawn else nullcontext(), HeldStill():
            yield

    def _put_back(self) -> None:
        if self._kept is not None:
            self._kept.restore()
            self._kept = None

    def _may_be_used(self, losses: Tensor) -> bool:
        """Whether losses of all rows are proved, or are none at all, which is refused elsewhere."""
        if not _can_be_proved(losses):
            return True
        self._graph = self._graph_of(losses)
        if self._compiled_forward is not None and self._ran_compiled:
            self._compiled_forward.meet(self._graph)
            return not self._due() and self._plans.has_proof_of(self._graph)
        return not self._due() and self._plans.are_proved(self._graph)

    def _graph_of(self, losses: Tensor) -> Hashable:
        """Returns what proofs of losses are remembered by: their graph, and what was compiled.

        Each shape is a compilation of its own, whose graph looks like any other's.
        """
        graph = describe_graph(losses, self._trainable.now())
        forward = self._compiled_forward
        return graph if forward is None or not forward.ran else (graph, tuple(forward.shapes))

    def _due(self) -> bool:
        return any(self._kinds.are_due(kind) for kind in self._plans.kinds)

    def _prove(
        self, compute_losses: LossFunction, expected: Tensor | None, *, failed: bool
    ) -> None:
        """Proves the plans of the calls just made, and that the losses are each row's own.

        Args:
            compute_losses: As the clipper was given it.
            expected: Losses of all rows in a survey; None where there was none.
            failed: Whether the computation just made ended with an error.

        Raises:
            InputError: A parameter is used where the batch cannot be followed.
            RunError: No plan is exact, or the loss of one example depends on the others.
        """
        self._kept = self._kept or Kept(self._model)
        asked = Computation(compute_losses, self._units, self._state)
        survey, verdict = self._patches.calls.survey, None
        again = self._plans.were_proved if survey else self._due() and self._is_known()
        again = again and not self._forced
        try:
            if failed:
                # An error of the caller's own comes out of this.
                self._verdicts.is_random(asked)
            with torch.random.fork_rng(devices=()):
                few = None
                if survey is not None and expected is not None:
                    survey.choose(expected)
                    few = self._compare(asked, survey, expected)
                    self._compared = True
                elif self._plans.saw_a_call and not self._compared and not failed:
                    raise NothingCompared("they fail where the model answers for all rows at once")
                if self._forced:
                    # The other way may show on all rows alone.
                    few = None
                if self._plans.are_ambiguous:
                    # Another size equals the batch size: only as many rows show what becomes of it.
                    few = None
                if not again:
                    verdict = self._verdicts.widened(asked, few)
                if not self._plans.saw_a_call:
                    log_once("the model itself was not called: each batch is proved anew: slow")
                    self._company.check_without_the_model(compute_losses, self._state)
        finally:
            self._put_back()
        if verdict is not None:
            self._plans.remember_proof(verdict)
        if verdict is not None or again:
            self._kinds.passed(self._plans.kinds)
        else:
            # Nothing was proved on few rows.
            self._surveys = False
        self._checked.clear()
        self._forced = False

    def _is_known(self) -> bool:
        return self._graph is not None and self._plans.has_proof_of(self._graph)

    def _is_to_be_compared(self) -> bool:
        """Whether losses of a known kind of call come another way than any before."""
        return self._plans.saw_a_call and self._surveys and not self._compared

    def _compare(self, asked: Computation, survey: Survey, expected: Tensor) -> Few | None:
        """Returns losses of few rows of the bare model, which are those among all rows.

        Raises:
            RunError: They are not, or that cannot be seen.
        """
        question = Question(
            compute_losses=asked.compute_losses,
            expected=expected,
            state=asked.state,
            quiet=self._quiet,
            precision=coarsest(self._model, self._plans.precision),
            check_repeatable=partial(self._verdicts.is_random, asked),
        )
        with self._patches.without():
            return self._company.compare(survey, question)


def _can_be_proved(losses: object) -> bool:
    """Whether these are losses at all; what is not is refused elsewhere."""
    if not isinstance(losses, Tensor) or not is_a_list(losses):
        return False
    return len(losses) > 0 and losses.requires_grad
