"""What becomes of the calls of the model that one computation of losses makes.

In training they pass, and are looked at. From a call on whose kind has to be proved the run of
``compute_losses`` is a survey: the bare model answers without a graph, and it is noted what it was
called with. In a rehearsal the model, and all that computes losses around it, sees few of the rows.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.separation.arguments import batch_size_of
from dpft.privacy.clipping.separation.few_rows import few_rows, other_rows
from dpft.privacy.clipping.separation.held_still import Draws, HeldStill
from dpft.privacy.clipping.separation.kept_state import RandomState
from dpft.privacy.clipping.separation.nested_values import map_tensors, named_tensors
from dpft.privacy.clipping.separation.row_subset import RowSubset

Arguments = tuple[Any, dict[str, Any]]
Forward = Callable[..., Any]
Meet = Callable[[Arguments], bool]
"""Looks at a call in training; says whether its kind must be proved first."""


@dataclass
class Survey:
    """What was seen of one computation of losses on all rows.

    Attributes:
        rows: Numbers of the rows that a rehearsal takes, shape (n,); ``choose`` says which.
        count: Rows of the batch.
        every_unit: Unit of each row of the batch, shape (count,), or None.
        inputs: First tensor of each call of the model.
        drawn: Whether random numbers were drawn outside of the model's calls.
        first: Arguments of the first call.
        with_graph: Whether the model answers with its graph, which takes its memory.
        compared: Which of the chosen rows' losses say something, shape (n,); None for all: a row
            that took another's place may meet what the caller keeps for that one in a list.
    """

    rows: Tensor
    count: int
    every_unit: Tensor | None
    inputs: list[Tensor] = field(default_factory=list)
    drawn: bool = False
    first: Any = None
    with_graph: bool = False
    compared: Tensor | None = None

    def choose(self, losses: Tensor) -> None:
        """Chooses the rows of a rehearsal.

        Args:
            losses: Of all rows.
        """
        self.rows = few_rows(self.first, self.count, self.every_unit, losses)

    def others(self, losses: Tensor) -> list["Survey"]:
        """Returns surveys of two more choices of rows; none where there is one row or unit.

        Args:
            losses: Of all rows.
        """
        choices = other_rows(self.count, self.every_unit, losses)
        return [replace(self, rows=rows) for rows in choices]

    def in_order(self) -> "Survey":
        """Returns a survey of the chosen rows in the order in which they are in the batch."""
        return replace(self, rows=self.rows.sort().values)

    def repeated(self) -> "Survey | None":
        """Returns a survey of the chosen rows twice, where they are as many as there are units.

        What the caller makes for so many rows looks like what it has for each unit. None where no
        number is another's.
        """
        units = self.chosen_units
        if units is None or len(self.rows) != units[1] or units[1] == self.count:
            return None
        return replace(self, rows=self.rows.repeat(2 if 2 * units[1] != self.count else 3))

    def exchanged(self) -> "Survey":
        """Returns a survey of as many rows, of which chosen ones replace those not chosen."""
        rows = torch.arange(self.count)
        stay = torch.isin(rows, self.rows)
        others = rows[~stay]
        rows[others] = self.rows[torch.arange(len(others)) % len(self.rows)]
        return replace(self, rows=rows, compared=stay)

    @property
    def chosen_units(self) -> tuple[Tensor, int] | None:
        """Numbers of the chosen rows' units among all units in order, and how many there are."""
        if self.every_unit is None:
            return None
        labels, index = self.every_unit.cpu().unique(return_inverse=True)
        return index[self.rows].unique(), len(labels)

    @property
    def units(self) -> Tensor | None:
        """Unit of each of the chosen rows, shape (n,), or None."""
        return None if self.every_unit is None else self.every_unit.cpu()[self.rows]


def with_signature(forward: Forward, own: Forward) -> Forward:
    """Returns a forward that shows the signature of the module's own: ``generate`` asks for it."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    vars(run)["__signature__"] = signature(own)
    return run


class RootCalls:
    """The calls of one model, as what runs means them."""

    def __init__(self, model: nn.Module) -> None:
        """Prepares for a model that nobody has called yet."""
        self._model = model
        self._meet: Meet | None = None
        self._subset: RowSubset | None = None
        self._entering: Callable[[Arguments], object] = lambda _: None
        self._units: Tensor | None = None
        self._begun: Callable[[], AbstractContextManager[object]] = nullcontext
        self._after: RandomState | None = None
        self.compiled = is_compiled(model)
        """Whether a caller compiled the model. A rehearsal is not: no compiler sees rows taken."""
        self.with_graph = False
        """Whether surveys answer with a graph, for a caller who needs one."""
        self.survey: Survey | None = None
        """What became of the run that is watched, or was last; None where it was no survey."""
        self.inputs: list[Tensor] = []
        """First tensor of each call of a rehearsal."""

    def watched(
        self,
        own: Forward,
        *,
        passes: Callable[[], bool] = lambda: False,
        entering: Callable[[Arguments], object] = lambda _: None,
    ) -> Forward:
        """Returns a forward for the model of whose calls this decides.

        Args:
            own: What answers a call that passes.
            passes: Whether calls pass unseen at the moment.
            entering: Is told of what the model is called with in a rehearsal.
        """
        self._entering = entering
        # Under torch.compile calls are considered outside of what is compiled; the model is inside.
        consider = torch.compiler.disable(self._consider)
        answer = torch.compiler.disable(self._answer)

        def run(*args: Any, **kwargs: Any) -> Any:
            if passes() or not consider((args, kwargs)):
                return own(*args, **kwargs)
            return answer(own, (args, kwargs))

        forward = torch.compiler.disable(run, recursive=False)
        return with_signature(forward, partial(type(self._model).forward, self._model))

    @contextmanager
    def training(
        self,
        meet: Meet,
        units: Tensor | None,
        begun: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> Iterator[None]:
        """Looks at the calls that are made meanwhile, one of which may begin a survey.

        Args:
            meet: Is told of each call that gradients are asked for.
            units: Unit of each row, or None.
            begun: Called before each call of a survey; makes the model ready for it.
        """
        self._meet, self._units, self._begun, self.survey = meet, units, begun, None
        self._after = RandomState.now(next(self._model.parameters()).device)
        try:
            yield
            if self.survey is not None and self._after is not None:
                self.survey.drawn |= self._after.was_left
        finally:
            self._meet = self._after = None

    @contextmanager
    def rehearsing(
        self,
        survey: Survey,
        meet: Meet,
        begun: Callable[[], AbstractContextManager[object]],
        *,
        whole: Collection[int] = (),
        as_tables: bool = False,
        draws: Draws | None = None,
    ) -> Iterator[RowSubset]:
        """Makes the model, and all that computes losses around it, see few rows.

        Args:
            survey: Whose rows are taken.
            meet: As in ``training``; what it says is not heeded.
            begun: As in ``training``, for each call of the rehearsal.
            whole: As ``RowSubset``.
            as_tables: As ``RowSubset``.
            draws: As ``RowSubset``.
        """
        weights = [*self._model.parameters(), *self._model.buffers()]
        subset = RowSubset(weights, whole, as_tables=as_tables, draws=draws)
        subset.choose(survey.rows, count=survey.count, units=survey.chosen_units)
        with self._answering(subset, meet, begun):
            yield subset

    @contextmanager
    def recording(
        self, draws: Draws, begun: Callable[[], AbstractContextManager[object]]
    ) -> Iterator[None]:
        """Keeps what the caller draws, on all rows, beside a model that runs as in a rehearsal."""
        with self._answering(RowSubset((), draws=draws), lambda _: False, begun):
            yield

    @contextmanager
    def _answering(
        self,
        subset: RowSubset,
        meet: Meet,
        begun: Callable[[], AbstractContextManager[object]],
    ) -> Iterator[None]:
        self._meet, self._subset, self.inputs, self._begun = meet, subset, [], begun
        try:
            with self._uncompiled(), HeldStill(noise=False), subset:
                yield
        finally:
            self._meet = self._subset = None

    def _uncompiled(self) -> AbstractContextManager[object]:
        return torch.compiler.set_stance("force_eager") if self.compiled else nullcontext()

    def _consider(self, arguments: Arguments) -> bool:
        """Looks at a call of the model; returns whether it must be answered otherwise."""
        if torch.is_grad_enabled() and self._meet is not None:
            due = self._meet(arguments)
            if due and self._subset is None and self.survey is None:
                self.survey = self._new_survey(arguments)
        return self._subset is not None or self.survey is not None and self._meet is not None

    def _new_survey(self, arguments: Arguments) -> Survey:
        count = batch_size_of(arguments)
        units = self._units if self._units is not None and len(self._units) == count else None
        rows = torch.arange(count)
        return Survey(rows, count, units, first=arguments, with_graph=self.with_graph)

    def _answer(self, forward: Forward, arguments: Arguments) -> Any:
        subset = self._subset
        if subset is None:
            return self._surveyed(forward, arguments)
        with subset.asleep():
            args, kwargs = subset.rows_of(arguments)
            if torch.is_grad_enabled():
                self.inputs.append(_first((args, kwargs)))
            with self._begun():
                self._entering((args, kwargs))
                outputs = forward(*args, **kwargs)
        subset.mark(outputs)
        return outputs

    def _surveyed(self, forward: Forward, arguments: Arguments) -> Any:
        survey = self.survey
        assert survey is not None
        if self._after is not None:
            survey.drawn |= self._after.was_left
        if torch.is_grad_enabled():
            survey.inputs.append(_first(arguments).detach())
        args, kwargs = arguments
        graph = survey.with_graph and torch.is_grad_enabled()
        with self._begun(), torch.set_grad_enabled(graph):
            outputs = forward(*args, **kwargs)
        self._after = RandomState.now(_first(arguments).device)
        return outputs if survey.with_graph else map_tensors(outputs, _as_a_leaf)


def _as_a_leaf(_: str, output: Tensor) -> Tensor:
    """Returns an output that requires grad, as a caller may expect, and has no graph."""
    if not output.is_floating_point():
        return output
    return output.detach().requires_grad_()


def is_compiled(model: nn.Module) -> bool:
    """Whether ``torch.compile`` was applied to a model, or to a part of it."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def _first(arguments: Any) -> Tensor:
    return next(x for x in named_tensors(arguments).values() if x.dim())
