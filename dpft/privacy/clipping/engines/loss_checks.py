"""When losses are checked, and the check that no example's loss depends on another example.

The model and what computes losses around it may mix examples in ways that no gradient shows (a
batch mean, a rank, a sort). So before a batch of a new call signature is used, ``compute_losses``
runs on all rows without a graph, while each row also runs through the model alone
(``single_example``), and then on three subsets of rows (``cross_example``): the losses must be the
same. Every engine does this; those that record layers prove their gradients as well
(``exactness``).
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from dpft.errors import InputError, RunError, is_out_of_memory
from dpft.privacy.clipping.engines.base import LossFunction, is_a_list
from dpft.privacy.clipping.separation.cross_example import (
    CrossExampleCheck,
    SubsetLosses,
    check_halves,
)
from dpft.privacy.clipping.separation.deterministic import (
    DeterministicMode,
    ModelSnapshot,
    RandomState,
    evaluating,
)
from dpft.privacy.clipping.separation.flow import coarsest_dtype, signature_of
from dpft.privacy.clipping.separation.nested_values import batch_size_of
from dpft.privacy.clipping.separation.proof import describe_graph
from dpft.privacy.clipping.separation.row_subset import Arguments, ModelCalls, Survey, is_compiled
from dpft.privacy.clipping.separation.single_example import (
    ExamplesMixed,
    check_modes,
    check_single_examples,
)
from dpft.privacy.clipping.trainable import TrainableParameters

FIRST_REPETITION = 16
WITHOUT_THE_MODEL = "a submodule called alone"
NOT_REPEATABLE = (
    "compute_losses must return the same losses when it is called again with the same random state "
    "of torch, got others: draw its batch before accumulate, not inside."
)


class NotRepeatable(RunError):
    """What computes the losses gives others each time."""


class CheckSchedule:
    """Which batches of a call signature are checked: the 1st, 16th, 32nd, 64th and so on, doubling.

    The rule is public: it reads numbers of batches alone.
    """

    def __init__(self) -> None:
        self._batches: Counter[Hashable] = Counter()
        self._checked: set[Hashable] = set()

    def is_due(self, kind: Hashable) -> bool:
        """Whether the next batch of a signature is to be checked before it is used."""
        number = self._batches[kind] + 1
        doubled = number >= FIRST_REPETITION and number & (number - 1) == 0
        return (number == 1 or doubled) and kind not in self._checked

    def note_checked(self, kinds: Iterable[Hashable]) -> None:
        """Remembers that the next batch of each signature was checked."""
        self._checked.update(kinds)

    def count(self, kinds: Iterable[Hashable]) -> None:
        """Counts a used batch of each signature."""
        for kind in set(kinds):
            self._batches[kind] += 1
            self._checked.discard(kind)

    @property
    def any_used(self) -> bool:
        """Whether any batch was used yet."""
        return bool(self._batches)


@dataclass(frozen=True)
class Computation:
    """A computation of losses that is checked.

    Attributes:
        compute_losses: As the clipper was given it.
        units: Unit of each row of the model's calls, or None where each row is its own.
        state: Random state that ``compute_losses`` is called with, each time.
    """

    compute_losses: LossFunction
    units: Tensor | None
    state: RandomState


class LossCheck:
    """What all engines share of checking losses."""

    def __init__(self, model: nn.Module, trainable: TrainableParameters, calls: ModelCalls) -> None:
        self._model, self._trainable, self._calls = model, trainable, calls
        self._schedule = CheckSchedule()
        self._draws: dict[Hashable, bool] = {}
        self._forced = False

    @property
    def _kinds(self) -> list[Hashable]:
        """The signatures of the model's calls in the computation of losses just made."""
        raise NotImplementedError

    def _bare(self) -> AbstractContextManager[object]:
        """Gives the model its own layers for a while."""
        return nullcontext()

    @contextmanager
    def _deterministic(self) -> Iterator[None]:
        """Lets nothing random happen in the model, for runs that are compared with each other."""
        drawn = any(self._draws.get(kind, False) for kind in self._kinds)
        with evaluating(self._model) if drawn else nullcontext(), DeterministicMode():
            yield

    def _is_random(self, asked: Computation) -> bool:
        """Returns whether the bare model's losses are drawn."""
        with self._bare():
            asked.state.restore()
            losses = asked.compute_losses().detach()
            other = asked.compute_losses().detach()
            asked.state.restore()
            again = asked.compute_losses().detach()
        same = losses.shape == again.shape
        if not (same and torch.allclose(losses, again, rtol=1e-3, equal_nan=True)):
            raise NotRepeatable(NOT_REPEATABLE)
        return not torch.equal(losses.nan_to_num(), other.nan_to_num())

    def _compare(
        self, asked: Computation, survey: Survey, losses: Tensor, precision: torch.dtype | None
    ) -> SubsetLosses | None:
        """Returns losses of few rows of the bare model, which are those among all rows."""
        survey.choose(losses)
        check = CrossExampleCheck(
            model_calls=self._calls,
            compute_losses=asked.compute_losses,
            expected=losses.detach(),
            state=asked.state,
            deterministic=self._deterministic,
            precision=coarsest_dtype(self._model, precision),
            check_repeatable=partial(self._is_random, asked),
        )
        with self._bare():
            return check.compare(survey)


class LoopLossCheck(LossCheck):
    """Computes losses for an engine that takes gradients one by one, and checks them where due."""

    def __init__(self, model: nn.Module, trainable: TrainableParameters) -> None:
        bare = getattr(model, "_orig_mod", model)
        super().__init__(bare, trainable, ModelCalls(bare))
        self._calls.compiled = is_compiled(model)
        self._own = partial(type(bare).forward, bare)
        self._met: list[Hashable] = []
        self._units: Tensor | None = None
        self._precision: torch.dtype | None = None
        self._graph: Hashable = None
        self._graphs: set[Hashable] = set()

    @property
    def _kinds(self) -> list[Hashable]:
        return self._met

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
        asked = Computation(compute_losses, units, RandomState.now(self._trainable.device))
        compared = False
        while True:
            self._met = []
            asked.state.restore()
            snapshot = None if self._schedule.any_used else ModelSnapshot(self._model)
            try:
                with self._calls.training(self._on_call, units, self._deterministic):
                    losses = compute_losses()
            except Exception as error:
                if snapshot is not None:
                    snapshot.restore()
                if isinstance(error, ExamplesMixed) or self._calls.survey is None:
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
                self._check_without_the_model(asked, losses)
                self._schedule.count(self._met)
                return losses
            snapshot = snapshot or ModelSnapshot(self._model)
            try:
                self._compare(asked, survey, losses, self._precision)
            finally:
                snapshot.restore()
            compared, self._forced = True, False
            self._schedule.note_checked(self._met)

    def _is_another_graph(self, losses: Tensor) -> bool:
        """Whether losses came another way than any before: by another function of the caller's."""
        if not losses.requires_grad:
            return False
        self._graph = describe_graph(losses, self._trainable.now())
        known = self._graph in self._graphs
        self._graphs.add(self._graph)
        return not known

    def _on_call(self, arguments: Arguments) -> bool:
        """Runs each row of a call alone where that is due; says whether losses are checked too."""
        if batch_size_of(arguments) == 0:
            return False
        signature = signature_of(self._model, arguments, self._units)
        kind, self._precision = signature.kind, signature.precision
        self._met.append(kind)
        if not self._schedule.is_due(kind):
            return self._forced
        check_modes(self._model)
        self._draws[kind] = check_single_examples(self._model, self._own, arguments, self._units)
        return True

    def _check_without_the_model(self, asked: Computation, losses: Tensor) -> None:
        if self._met or not len(losses):
            return
        self._met = [(WITHOUT_THE_MODEL, self._graph)]
        if self._schedule.is_due(self._met[0]):
            after = RandomState.now(asked.state.device)
            check_halves(self._model, asked.compute_losses, asked.state)
            after.restore()
