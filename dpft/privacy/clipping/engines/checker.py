"""Losses that are used only once it is seen that no example changes what another one computes.

What ``prover`` does without its proof of gradients, for an engine that takes them one by one.
"""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from dpft.errors import InputError, is_out_of_memory
from dpft.privacy.clipping.engines.base import LossFunction, is_a_list
from dpft.privacy.clipping.engines.verdicts import NOT_REPEATABLE, NotRepeatable
from dpft.privacy.clipping.separation.arguments import batch_size_of
from dpft.privacy.clipping.separation.graph import describe_graph
from dpft.privacy.clipping.separation.held_still import HeldStill
from dpft.privacy.clipping.separation.kept_state import Kept, RandomState, evaluating
from dpft.privacy.clipping.separation.kinds import Kinds
from dpft.privacy.clipping.separation.loss_company import LossCompany, Question
from dpft.privacy.clipping.separation.root_calls import Arguments, RootCalls, Survey, is_compiled
from dpft.privacy.clipping.separation.rows_alone import RowsMixed, check_modes, check_rows_alone
from dpft.privacy.clipping.separation.signature import coarsest, signature_of
from dpft.privacy.clipping.trainable import TrainableParameters

WITHOUT_THE_MODEL = "a submodule called alone"


class Checker:
    """Computes losses for an engine, and looks where that is due whether examples mix."""

    def __init__(self, model: nn.Module, trainable: TrainableParameters) -> None:
        """Prepares for a model.

        Args:
            model: Whose losses are checked.
            trainable: What trains; of a model in shards, what bears the names while it runs.
        """
        self._trainable = trainable
        self._model = getattr(model, "_orig_mod", model)
        self._own = partial(type(self._model).forward, self._model)
        self._calls = RootCalls(self._model)
        self._calls.compiled = is_compiled(model)
        self._company = LossCompany(self._model, self._calls)
        self._kinds = Kinds()
        self._met: list[Hashable] = []
        self._draws: dict[Hashable, bool] = {}
        self._units: Tensor | None = None
        self._precision: torch.dtype | None = None
        self._forced = False
        self._graph: Hashable = None
        self._graphs: set[Hashable] = set()

    def install(self) -> None:
        """Watches the model's calls.

        Raises:
            InputError: The model's forward is already replaced.
        """
        if "forward" in vars(self._model):
            raise InputError(
                f"a {type(self._model).__name__} layer must have its own forward, got a replaced "
                "one; leave the other clipper first."
            )
        self._model.forward = self._calls.watched(self._own)

    def remove(self) -> None:
        """Gives the model its own forward back."""
        vars(self._model).pop("forward", None)

    def losses(self, compute_losses: LossFunction, units: Tensor | None) -> Tensor:
        """Returns the losses of all rows, once it is checked that they may be used.

        Raises:
            RunError: An example changes what another one computes.
        """
        self._units, self._forced, self._calls.with_graph = units, False, False
        state = RandomState.now(next(self._model.parameters()).device)
        compared = False
        while True:
            self._met = []
            state.restore()
            kept = None if self._kinds.any_used else Kept(self._model)
            try:
                with self._calls.training(self._meet, units, self._quiet):
                    losses = compute_losses()
            except Exception as error:
                if kept is not None:
                    kept.restore()
                if isinstance(error, RowsMixed) or self._calls.survey is None:
                    raise
                if self._calls.with_graph or is_out_of_memory(error):
                    raise
                # The caller's function may want a graph behind what the model gives.
                self._calls.with_graph = True
                continue
            survey = self._calls.survey
            if not is_a_list(losses):
                # Refused elsewhere, in words.
                return losses
            if survey is None:
                if self._is_another_graph(losses) and self._met and not compared:
                    self._forced = True
                    continue
                self._check_without_the_model(compute_losses, losses, state)
                self._kinds.used(self._met)
                return losses
            kept = kept or Kept(self._model)
            try:
                self._compare(compute_losses, survey, losses, state)
            finally:
                kept.restore()
            compared, self._forced = True, False
            self._kinds.passed(self._met)

    def _compare(
        self, compute_losses: LossFunction, survey: Survey, losses: Tensor, state: RandomState
    ) -> None:
        """Computes losses on few rows.

        Raises:
            RunError: They are not those among all rows, or that cannot be seen.
        """
        survey.choose(losses)
        self._company.compare(
            survey,
            Question(
                compute_losses=compute_losses,
                expected=losses.detach(),
                state=state,
                quiet=self._quiet,
                precision=coarsest(self._model, self._precision),
                check_repeatable=partial(self._check_repeatable, compute_losses, state),
            ),
        )

    def _check_repeatable(self, compute_losses: LossFunction, state: RandomState) -> None:
        """Refuses losses that are others twice from one random state.

        Raises:
            NotRepeatable: They are: their batch may be drawn inside.
        """
        state.restore()
        once = compute_losses().detach()
        state.restore()
        again = compute_losses().detach()
        same = once.shape == again.shape
        if not (same and torch.allclose(once, again, rtol=1e-3, equal_nan=True)):
            raise NotRepeatable(NOT_REPEATABLE)

    def _is_another_graph(self, losses: Tensor) -> bool:
        """Whether losses came another way than any before: by another function of the caller's."""
        if not losses.requires_grad:
            return False
        self._graph = describe_graph(losses, self._trainable.now())
        known = self._graph in self._graphs
        self._graphs.add(self._graph)
        return not known

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Lets nothing random happen in the model, for runs that are held against each other."""
        drawn = any(self._draws.get(kind, False) for kind in self._met)
        with evaluating(self._model) if drawn else nullcontext(), HeldStill():
            yield

    def _meet(self, arguments: Arguments) -> bool:
        """Runs each row of a call alone where its kind is due; says whether losses are too."""
        if batch_size_of(arguments) == 0:
            return False
        signature = signature_of(self._model, arguments, self._units)
        kind, self._precision = signature.kind, signature.precision
        self._met.append(kind)
        if not self._kinds.are_due(kind):
            return self._forced
        check_modes(self._model)
        draws = check_rows_alone(self._model, self._own, arguments, self._units)
        self._draws[kind] = draws
        return True

    def _check_without_the_model(
        self, compute_losses: LossFunction, losses: Tensor, state: RandomState
    ) -> None:
        if self._met or not len(losses):
            return
        self._met = [(WITHOUT_THE_MODEL, self._graph)]
        if self._kinds.are_due(self._met[0]):
            after = RandomState.now(state.device)
            self._company.check_without_the_model(compute_losses, state)
            after.restore()
