"""The checks of losses that every engine makes, and when.

The model, and what computes losses around it, may mix examples in ways that no gradient shows (a
batch mean, a rank, a sort). So each row runs alone through the model (``single_example``), and
losses of few rows are compared with those among all (``cross_example``), and gradients of parts of
the batch with those that the engine takes of all rows (``cross_gradients``): at the first batch of
a call signature, at the 16th, the 32nd and so on, and at one that is half as large again as all
before (``CheckSchedule``).
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from dpft.errors import InputError, RunError, is_out_of_memory
from dpft.privacy.clipping.engine import LossFunction, is_a_list
from dpft.privacy.clipping.separation.cross_example import (
    CrossExampleCheck,
    SubsetLosses,
    check_halves,
)
from dpft.privacy.clipping.separation.cross_gradients import (
    CrossExampleGradients,
    GradientsAlone,
)
from dpft.privacy.clipping.separation.fingerprints import (
    Prints,
    add_prints,
    fingerprints_of,
    scaled,
)
from dpft.privacy.clipping.separation.flow import coarsest_dtype, signature_of
from dpft.privacy.clipping.separation.proof import describe_graph, ordinary_gradients
from dpft.privacy.clipping.separation.reexecution import (
    DeterministicMode,
    ModelSnapshot,
    RandomState,
    batch_size_of,
    evaluating,
)
from dpft.privacy.clipping.separation.row_subset import (
    Arguments,
    ModelCalls,
    OnCall,
    Survey,
    is_compiled,
)
from dpft.privacy.clipping.separation.single_example import (
    ExamplesMixed,
    check_modes,
    check_single_examples,
)
from dpft.privacy.clipping.trainable import Shares, TrainableParameters

FIRST_REPETITION = 16
GROWTH = 1.5
"""How many times the rows of all that were looked at a batch may have without a look."""
WITHOUT_THE_MODEL = "a submodule called alone"
NOT_REPEATABLE = (
    "compute_losses must return the same losses when it is called again with the same random state "
    "of torch, got others: draw its batch before accumulate, not inside."
)


class NotRepeatable(RunError):
    """What computes the losses gives others each time."""


class CheckSchedule:
    """Which batches of a call signature are checked: the 1st, 16th, 32nd, 64th and so on, doubling.

    So is one that has more than ``GROWTH`` times the rows of all that were: what mixes its rows in
    large batches alone does not show in small ones. Where gradients beside such as are not finite
    could not be compared, the next batch is checked too. Else the rule reads numbers and sizes.
    """

    def __init__(self) -> None:
        self._batches: Counter[Hashable] = Counter()
        self._checked: set[Hashable] = set()
        self._rows: dict[Hashable, int] = {}
        self._most: Counter[Hashable] = Counter()
        self._unseen: set[Hashable] = set()

    def meet(self, kind: Hashable, rows: int) -> None:
        """Notes how many rows the next batch of a signature has."""
        self._rows[kind] = rows

    def is_due(self, kind: Hashable) -> bool:
        """Whether the next batch of a signature is to be checked before it is used."""
        number = self._batches[kind] + 1
        doubled = number >= FIRST_REPETITION and number & (number - 1) == 0
        larger = self._rows.get(kind, 0) > GROWTH * self._most[kind]
        wanted = number == 1 or doubled or larger or kind in self._unseen
        return wanted and kind not in self._checked

    def note_checked(self, kinds: Iterable[Hashable]) -> None:
        """Remembers that the next batch of each signature was checked."""
        for kind in kinds:
            self._checked.add(kind)
            self._most[kind] = max(self._most[kind], self._rows.get(kind, 0))

    def note_compared(self, kinds: Iterable[Hashable], *, seen: bool) -> None:
        """Remembers whether gradients of the next batch of each signature could be compared."""
        self._unseen = self._unseen - {*kinds} if seen else self._unseen | {*kinds}

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
        self._alone: GradientsAlone | None = None

    @property
    def _kinds(self) -> list[Hashable]:
        """The signatures of the model's calls in the computation of losses just made."""
        raise NotImplementedError

    @property
    def _scale(self) -> float:
        """What losses are multiplied by before they are backpropagated."""
        return 1.0

    _apart = True
    """Whether the engine has finite gradients of rows beside such as are not."""

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
        """Returns losses of few rows of the bare model, which are those among all rows.

        Gradients of parts are taken by themselves, and wait for those among all rows.
        """
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
            found = check.compare(survey)
            if found is not None:
                gradients = CrossExampleGradients(check, apart=self._apart)
                self._alone = gradients.compare(found, self._trainable.now(), self._scale)
            return found

    @contextmanager
    def _calling(self) -> Iterator[OnCall]:
        """Makes the model ready to be called as the engine calls it."""
        yield lambda _: False

    def _gradients(
        self, losses: Tensor, factors: Tensor, *, units: Tensor | None, precisely: bool
    ) -> list[Prints]:
        """Returns fingerprints of a sum of gradients, as ``cross_gradients.EngineTake``."""
        raise NotImplementedError

    def _compare_parts(self) -> None:
        """Compares gradients as the engine has them of all rows with those of parts alone."""
        alone, self._alone = self._alone, None
        if alone is not None:
            seen = alone.compare(self._gradients, self._calling)
            self._schedule.note_compared(self._kinds, seen=seen)


class LoopLossCheck(LossCheck):
    """Computes losses for an engine that takes gradients one by one, and checks them where due."""

    _apart = False

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
                expected = losses.detach()
                del losses
                self._compare(asked, survey, expected, self._precision)
                self._compare_parts()
            finally:
                snapshot.restore()
            compared, self._forced = True, False
            self._schedule.note_checked(self._met)

    def _gradients(
        self, losses: Tensor, factors: Tensor, *, units: Tensor | None, precisely: bool
    ) -> list[Prints]:
        """Returns fingerprints of the sum of units' gradients, each taken by itself."""
        shares, parameters = Shares.of(units, losses), self._trainable.now()
        found: Prints = {}
        for unit in shares.losses[factors != 0].unique():
            own = shares.losses == unit
            factor = float(factors[own].max())
            # Of one factor but where as many rows must run, whatever units they are of.
            weights = torch.where(own, factors / factor, 0.0)
            taken = ordinary_gradients(losses, parameters, weights=weights, retain_graph=True)
            add_prints(found, scaled(fingerprints_of(taken), factor))
        return [found]

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
        count = batch_size_of(arguments)
        if count == 0:
            return False
        signature = signature_of(self._model, arguments, self._units)
        kind, self._precision = signature.kind, signature.precision
        self._met.append(kind)
        self._schedule.meet(kind, count)
        if not self._schedule.is_due(kind):
            return self._forced
        check_modes(self._model)
        self._draws[kind] = check_single_examples(self._model, self._own, arguments, self._units)
        return True

    def _check_without_the_model(self, asked: Computation, losses: Tensor) -> None:
        if self._met or not len(losses):
            return
        self._met = [(WITHOUT_THE_MODEL, self._graph)]
        self._schedule.meet(self._met[0], len(losses))
        if self._schedule.is_due(self._met[0]):
            after = RandomState.now(asked.state.device)
            check_halves(self._model, asked.compute_losses, asked.state)
            after.restore()
            self._schedule.note_checked(self._met)
