"""The cross-example leakage check: whether the loss of one example changes with those beside it.

A loss divided by the tokens of its batch, a rank, a baseline that is a mean, inputs that were mixed
before they reach the model: such a loss has no gradient through the other examples, and yet what
one of them does changes it. So losses are computed once on all rows and on three small subsets of
them in another order (``row_subset``), and must be the same. What the caller draws for all rows is
kept, and each row gets its own again. Where losses cannot be computed on other rows in any of the
ways that are tried, nothing is seen, and the batch is refused.

The gradients of the last subset, and of all rows, are compared after them (``cross_gradients``).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor, nn

from dpft.errors import RunError, is_out_of_memory
from dpft.privacy.clipping.separation.reexecution import (
    DeterministicMode,
    Draws,
    RandomState,
    evaluating,
    state_preserved,
)
from dpft.privacy.clipping.separation.row_subset import (
    ModelCalls,
    OnCall,
    RowSubset,
    Survey,
)

ROUNDING = {torch.float64: 1e-6, torch.float32: 2e-4}
ROUNDING_IN_HALF = 3e-2
MOST_READINGS = 8
WHOLE: tuple[tuple[int, ...], ...] = (
    *((number,) for number in range(MOST_READINGS)),
    *combinations(range(MOST_READINGS // 2), 2),
)
"""Numbers of the caller's tensors that are tried as no rows though they have as many entries."""
LossFunction = Callable[[], Tensor]
Context = Callable[[], AbstractContextManager[object]]
NOT_COMPARED = (
    "the losses cannot be computed on some of the batch's rows ({}), so that nobody can see "
    "whether one example's loss depends on the others; compute them by torch's functions from "
    "tensors that carry the batch in front, after one call of the model on all rows, "
    "whatever their number."
)
COUPLED = (
    "what is computed for one example depends on another example's loss or inputs (their number, "
    "a mean, a count of the batch's tokens, ranks, contrastive pairs, inputs mixed before the "
    "model), so no clipping bounds what one of them does; compute each example's loss from that "
    "example alone, or give the rows that belong together as units."
)


class CannotBeCompared(Exception):
    """Losses cannot be computed on fewer rows, or say nothing there."""


class NothingCompared(RunError):
    """It cannot be seen whether the loss of one example changes with the examples beside it."""

    def __init__(self, reason: str) -> None:
        super().__init__(NOT_COMPARED.format(reason))


@dataclass
class SubsetLosses:
    """Losses of a few rows of a batch.

    Attributes:
        losses: Of the bare model, one of each row or of each unit.
        survey: Of all rows; says which rows these are.
        whole: As ``RowSubset``: what of the caller's is no rows.
        inputs: First tensor of each call of the model.
        every: Of all rows.
        draws: What the caller drew for all rows, or None.
        fewer_run: Whether losses of fewer units than all were computed.
    """

    losses: Tensor
    survey: Survey
    whole: tuple[int, ...]
    inputs: list[Tensor]
    every: Tensor
    draws: Draws | None = None
    fewer_run: bool = False

    def again(
        self, calls: ModelCalls, on_call: OnCall, around: Context
    ) -> AbstractContextManager[RowSubset]:
        """Makes the same rows run once more, with what was drawn for them."""
        if self.draws is not None:
            self.draws.again()
        return calls.on_subset(self.survey, on_call, around, whole=self.whole, draws=self.draws)

    def of_all(self) -> "SubsetLosses":
        """Returns those of all rows as they lie, whose graph is to be made anew."""
        rows = torch.arange(self.survey.count)
        compared = None if self.survey.compared is None else torch.ones_like(rows, dtype=torch.bool)
        survey = replace(self.survey, rows=rows, compared=compared)
        return replace(self, losses=self.every.detach(), survey=survey)

    @property
    def fits(self) -> bool:
        """Whether these are losses of the rows, or of their units, with a graph."""
        losses, units = self.losses, self.survey.units
        if not isinstance(losses, Tensor) or losses.dim() != 1 or not losses.requires_grad:
            return False
        number = len(self.survey.rows)
        return len(losses) in (number, number if units is None else len(units.unique()))

    def parts(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields halves of the rows, and where their losses are; none of one row or unit.

        Where as many rows must run, the rest of them is exchanged for other rows instead.
        """
        survey, losses = self.survey, self.losses
        if survey.compared is not None:
            places = survey.compared.nonzero()[:, 0]
            others = (~survey.compared).nonzero()[:, 0]
            if len(places) > 1 and not len(others) and len(losses) == len(places):
                # Of two or three rows all were chosen, and none was exchanged.
                for half in places.tensor_split(2):
                    rows = survey.rows[half[torch.arange(len(places)) % len(half)]]
                    rows[half] = survey.rows[half]
                    yield rows, half
            elif len(places) > 1 and len(losses) == len(survey.rows):
                # All others become one row, which not all of them are.
                now, rows = survey.rows[others], survey.rows.clone()
                rows[others] = next(row for row in survey.rows[places] if bool((now != row).any()))
                yield rows, places
            return
        every = self.owners.unique()
        for half in every.tensor_split(2) if len(every) > 1 else ():
            mine, told = self._places_of(half)
            yield survey.rows[mine], told.nonzero()[:, 0]

    @property
    def owners(self) -> Tensor:
        """Whose each of the rows is: its unit's, or its own; where as many run, of those compared.

        There rows stand beside others of their unit at the places of others.
        """
        survey = self.survey
        if survey.compared is not None:
            return survey.rows[survey.compared]
        return survey.rows if survey.units is None else survey.units

    def finite_owners(self) -> Tensor:
        """Returns the owners all of whose losses are finite, each once."""
        survey, finite = self.survey, self.losses.isfinite().cpu()
        if survey.compared is not None:
            finite = finite[survey.compared]
        each = self.owners if len(finite) == len(self.owners) else self.owners.unique()
        every: Tensor = each.unique()
        return every[~torch.isin(every, each[~finite])]

    def places_of(self, chosen: Tensor) -> Tensor:
        """Returns which of the losses are some owners'."""
        survey = self.survey
        if survey.compared is not None:
            return survey.compared & torch.isin(survey.rows, chosen)
        return self._places_of(chosen)[1]

    def _places_of(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Returns which rows are some owners', and which losses."""
        mine = torch.isin(self.owners, chosen)
        as_many = len(self.losses) == len(mine)
        return mine, mine if as_many else torch.isin(self.owners.unique(), chosen)

    def of(self, chosen: Tensor) -> tuple["SubsetLosses", Tensor]:
        """Returns the losses of some owners, whose graph is to be made anew, and their weights.

        Where as many rows must run, they take the places of all others, and weigh nothing there;
        and as one row would be stretched to any number, it is taken more than once.
        """
        survey, losses = self.survey, self.losses.detach()
        weights = torch.ones_like(losses)
        if survey.compared is not None:
            stay = self.places_of(chosen)
            rows, others = survey.rows.clone(), (~stay).nonzero()[:, 0]
            rows[others] = chosen.view(-1)[torch.arange(len(others)) % chosen.numel()]
            exchanged = replace(survey, rows=rows, compared=stay)
            return replace(self, losses=losses, survey=exchanged), weights * stay.to(weights)
        mine, told = self._places_of(chosen)
        rows, losses, weights = survey.rows[mine], losses[told], weights[told]
        if len(rows) == len(losses) == 1:
            copies = 3 if survey.count == 2 else 2
            rows, losses = rows.repeat(copies), losses.repeat(copies)
            weights = weights.repeat(copies) / copies
        return replace(self, losses=losses, survey=replace(survey, rows=rows)), weights

    def agree_with(self, expected: Tensor, precision: torch.dtype) -> bool:
        """Whether these losses are those among all rows.

        Raises:
            CannotBeCompared: The model's inputs for these rows have another shape.
        """
        survey, got = self.survey, self.losses.detach()
        if survey.every_unit is not None and len(expected) != survey.count:
            # Where the units of these rows are among all units, both in ascending order.
            assert survey.units is not None
            every = survey.every_unit.cpu().unique()
            places: Tensor | None = torch.searchsorted(every, survey.units.unique())
        else:
            if self.inputs and self.inputs[0].shape[1:] != survey.inputs[0].shape[1:]:
                # Cut to the longest of them, and sorted perhaps: each is one of those, then.
                return all(bool(near(loss, expected, expected, precision).any()) for loss in got)
            if not self.inputs and survey.compared is not None:
                raise CannotBeCompared("nothing shows that rows took the place of others")
            places = survey.rows
            if self.inputs:
                places = _places_among(self.inputs[0].detach(), survey)
        if places is not None and survey.compared is not None:
            if len(got) != len(survey.compared) or len(places) != len(survey.compared):
                raise CannotBeCompared("their number does not follow")
            got, places = got[survey.compared.to(got.device)], places[survey.compared]
        if places is not None and len(got) != len(places):
            raise CannotBeCompared("their number does not follow")
        return places is not None and _same(got, expected, places, precision)


@dataclass(frozen=True, kw_only=True)
class CrossExampleCheck:
    """Compares the losses of some rows with those of all rows.

    Attributes:
        model_calls: The calls of the model, which are watched.
        compute_losses: As the clipper was given it.
        expected: Losses of all rows.
        state: Random state that ``compute_losses`` is called with.
        deterministic: Makes the model run as it did in the survey.
        precision: The coarsest dtype that the model computes in.
        check_repeatable: Refuses losses that differ though the random state does not.
    """

    model_calls: ModelCalls
    compute_losses: LossFunction
    expected: Tensor
    state: RandomState
    deterministic: Context
    precision: torch.dtype
    check_repeatable: Callable[[], object]

    def compare(self, survey: Survey) -> SubsetLosses | None:
        """Returns losses of few rows, which are those among all rows, as on two more subsets.

        None where the batch is one row or unit, of which nothing says more than it does itself,
        and it does not run again.

        Raises:
            RunError: They are not, or that cannot be seen.
        """
        check, draws = self, None
        if survey.drawn:
            # What the caller draws in a way that is not known here differs from run to run, and
            # so is refused.
            draws = Draws()
            self.state.restore()
            with self.model_calls.recording(draws, self.deterministic):
                check = replace(self, expected=self.compute_losses().detach())
        if survey.every_unit is not None:
            is_one = bool((survey.every_unit == survey.every_unit[0]).all())
        else:
            is_one = survey.count == 1 and check.expected.shape == (1,)
        if is_one:
            return next(check._readings(survey, draws), None)
        # One graph at a time: the last is the one that is gone on with.
        for other in survey.others(check.expected):
            check._agreeing(other, draws)
        return check._agreeing(survey, draws)

    def _agreeing(self, survey: Survey, draws: Draws | None) -> SubsetLosses:
        """Returns losses of the survey's rows in a reading in which they are those among all."""
        first = next(self._readings(survey, draws), None)
        if first is None:
            raise NothingCompared("fewer do not run")
        reason = ""
        try:
            if first.agree_with(self.expected, self.precision):
                return first
        except CannotBeCompared as error:
            reason = str(error)
        self.check_repeatable()
        # Where fewer rows would not run at all, something else than rows was cut.
        ran = first.survey.compared is None
        for subset in self._readings(first.survey, draws, as_tables=ran):
            with suppress(CannotBeCompared):
                if subset.agree_with(self.expected, self.precision):
                    return subset
        raise NothingCompared(reason) if reason else RunError(COUPLED)

    def _readings(
        self, survey: Survey, draws: Draws | None, *, as_tables: bool = False
    ) -> Iterator[SubsetLosses]:
        """Yields losses of few rows: all that may be rows taken for them, or all but one.

        Where fewer rows do not fit in another order (a packed sequence wants the longest first),
        they are tried in their own, and where the caller wrote their number down, as many, of which
        some take the place of others. Of a tensor that has as many entries as the batch
        has rows nobody says that it is rows: there may be as many classes. Where all that may be
        rows can be taken for them, it is none only if it is looked things up in.
        """
        met = 0
        others = survey.compared is None and not as_tables
        repeated = survey.repeated() if survey.compared is None else None
        if repeated is not None and len(survey.rows) == 1 and len(self.expected) == survey.count:
            survey = repeated  # one row would be stretched to any number, and so run always
        first = [survey, survey.in_order(), survey.exchanged()] if others else [survey]
        tried = [*(((), each) for each in first), *((w, survey) for w in WHOLE)]
        if repeated is not None:
            tried += [((), repeated), *((w, repeated) for w in WHOLE)]
        for whole, taken in tried:
            if whole and whole[-1] >= met:
                continue
            self.state.restore()
            if draws is not None:
                draws.again()
            calls = self.model_calls.on_subset(
                taken,
                lambda _: False,
                self.deterministic,
                whole=whole,
                as_tables=as_tables,
                draws=draws,
            )
            found = None
            with calls as subset:
                try:
                    losses = self.compute_losses()
                    inputs = self.model_calls.inputs
                    found = SubsetLosses(losses, taken, whole, inputs, self.expected, draws)
                except Exception as error:
                    if is_out_of_memory(error):
                        raise
            # What runs between two of them must see all rows again.
            if found is not None and found.fits:
                yield found
            met = max(met, subset.met)


def check_halves(model: nn.Module, compute_losses: LossFunction, state: RandomState) -> None:
    """Compares losses of two halves of the rows, where the model itself is not called.

    Raises:
        RunError: They are others than among all, or that cannot be seen.
    """
    try:
        with state_preserved(model), torch.no_grad(), DeterministicMode():
            alike = _halves_alike(model, compute_losses, state)
            if not alike and state.was_left:
                with evaluating(model):
                    alike = _halves_alike(model, compute_losses, state)
    except CannotBeCompared as reason:
        raise NothingCompared(str(reason)) from reason
    except Exception as error:
        if is_out_of_memory(error):
            raise
        # Its message may tell the records' lengths.
        raise NothingCompared("fewer do not run") from error
    if not alike:
        raise RunError(COUPLED)


def _halves_alike(model: nn.Module, compute_losses: LossFunction, state: RandomState) -> bool:
    state.restore()
    expected = compute_losses()
    count = len(expected)
    for start in range(min(count, 2)):
        rows = torch.arange(count)[start::2].flip(0)
        subset = RowSubset([*model.parameters(), *model.buffers()])
        subset.choose(rows, count=count)
        state.restore()
        with subset:
            got = compute_losses()
        if got.shape != (len(rows),):
            raise CannotBeCompared("their number does not follow")
        if not _same(got, expected, rows, got.dtype):
            return False
    return True


def _places_among(given: Tensor, survey: Survey) -> Tensor | None:
    """Returns where the inputs of few rows are among all rows; None where they are nowhere.

    A caller may sort its batch before the model sees it, and then has other rows at these places.
    """
    everyone = survey.inputs[0]
    if given.shape != (len(survey.rows), *everyone.shape[1:]):
        raise CannotBeCompared("inputs of another shape")
    of_rows = everyone[survey.rows.to(everyone.device)]
    if _rows_alike(given, of_rows).all():
        return survey.rows
    found = _first_places(given, everyone)
    if found is not None and survey.compared is not None:
        # Had no row taken another's place, all would be what they were, and say nothing.
        chosen = _first_places(of_rows, everyone)
        if chosen is None or not torch.isin(found, chosen).all():
            raise CannotBeCompared("other rows than these came to the model")
    return found


def _first_places(rows: Tensor, everyone: Tensor) -> Tensor | None:
    """Returns where each of some rows is first among all; None where one is nowhere."""
    found = [_rows_alike(row.expand_as(everyone), everyone).nonzero()[:1, 0] for row in rows]
    return None if any(len(place) == 0 for place in found) else torch.cat(found)


def _rows_alike(one: Tensor, other: Tensor) -> Tensor:
    """Returns which rows are the same, shape (n,)."""
    same = one == other
    if one.is_floating_point():
        same = torch.isclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True)
    return same.reshape(len(one), -1).all(1)


def _same(got: Tensor, expected: Tensor, places: Tensor, precision: torch.dtype) -> bool:
    """Whether some losses are those at some places among all, but for rounding."""
    among = expected[places.to(expected.device)]
    return bool(near(got, among, expected, precision).all())


def near(one: Tensor, other: Tensor, every: Tensor, precision: torch.dtype) -> Tensor:
    """Returns which losses are the same but for rounding, of the size of the largest of all."""
    share = max(ROUNDING.get(dtype, ROUNDING_IN_HALF) for dtype in (one.dtype, precision))
    size = float(every.detach().abs().nan_to_num(0.0, 0.0, 0.0).max())
    atol = 1e-2 * share * size
    return torch.isclose(one, other.detach(), rtol=share, atol=atol, equal_nan=True)
