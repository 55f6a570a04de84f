"""Whether the loss of one example changes with the examples beside it.

A loss divided by the tokens of its batch, a rank, a baseline that is a mean, inputs that were mixed
before they reach the model: such a loss has no gradient through the other examples, and yet what
one of them does changes it. So losses are computed once on all rows and once on few of them, in
another order (``row_subset``), and must be the same. Where they cannot be computed on fewer rows
(labels in a list, sizes written as numbers) nothing is seen, and nothing is promised.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor, nn

from dpft.errors import RunError
from dpft.privacy.clipping.separation.held_still import HeldStill
from dpft.privacy.clipping.separation.kept_state import RandomState, evaluating, state_kept
from dpft.privacy.clipping.separation.root_calls import RootCalls, Survey
from dpft.privacy.clipping.separation.row_subset import RowSubset

logger = logging.getLogger(__name__)
ROUNDING = {torch.float64: 1e-6, torch.float32: 2e-4}
ROUNDING_IN_HALF = 3e-2
MOST_READINGS = 8
"""Tensors of the caller's that are tried as no rows though they have as many entries."""
LossFunction = Callable[[], Tensor]
Quiet = Callable[[], AbstractContextManager[object]]
NOT_COMPARED = "clipping: losses cannot be computed on fewer rows, and so not be compared (%s)"
COUPLED = (
    "what is computed for one example depends on another example's loss or inputs (their number, "
    "a mean, a count of the batch's tokens, ranks, contrastive pairs, inputs mixed before the "
    "model), so no clipping bounds what one of them does; compute each example's loss from that "
    "example alone, or give the rows that belong together as units."
)


class CannotBeCompared(Exception):
    """Losses cannot be computed on fewer rows, or say nothing there."""


@dataclass
class Few:
    """Losses of few rows of a batch.

    Attributes:
        losses: Of the bare model, one of each row or of each unit.
        survey: Of all rows; says which rows these are.
        whole: As ``RowSubset``: what of the caller's is no rows.
        inputs: First tensor of each call of the model.
    """

    losses: Tensor
    survey: Survey
    whole: tuple[int, ...]
    inputs: list[Tensor]
    alike: bool | None = None
    """Whether they are those among all rows; None where that cannot be seen."""

    def compare(self, expected: Tensor, precision: torch.dtype) -> None:
        """Looks whether these losses are among those of all rows.

        Args:
            expected: Losses of all rows.
            precision: The coarsest dtype that the model computes in.
        """
        try:
            self.alike = _are_alike(self, expected, precision)
        except CannotBeCompared as reason:
            logger.info(NOT_COMPARED, reason)

    @property
    def fits(self) -> bool:
        """Whether these are losses of the rows, or of their units, with a graph."""
        losses, units = self.losses, self.survey.units
        if not isinstance(losses, Tensor) or losses.dim() != 1 or not losses.requires_grad:
            return False
        number = len(self.survey.rows)
        return len(losses) in (number, number if units is None else len(units.unique()))


class LossCompany:
    """Computes losses in another company of rows."""

    def __init__(self, model: nn.Module, calls: RootCalls) -> None:
        """Prepares for a model whose calls are watched."""
        self._model, self._calls = model, calls

    def first(
        self,
        compute_losses: LossFunction,
        survey: Survey,
        expected: Tensor | None,
        state: RandomState,
        quiet: Quiet,
        precision: torch.dtype,
    ) -> Few | None:
        """Returns losses of few rows, and whether they are those among all rows; None for none.

        Args:
            compute_losses: As the clipper was given it.
            survey: Of all rows.
            expected: Losses of all rows; None where they are not to be compared.
            state: Random state that ``compute_losses`` is called with.
            quiet: Makes the model run as it did in the survey.
            precision: The coarsest dtype that the model computes in.
        """
        few = next(self._readings(compute_losses, survey, state, quiet), None)
        if few is None:
            logger.info(NOT_COMPARED, "it failed")
        elif expected is not None and not survey.drawn:
            few.compare(expected, precision)
        return few

    def other(
        self,
        compute_losses: LossFunction,
        few: Few,
        expected: Tensor | None,
        state: RandomState,
        quiet: Quiet,
        precision: torch.dtype,
    ) -> Few:
        """Returns losses of few rows in a reading in which they are those among all rows.

        Returns ``few`` where there is no such reading.
        """
        # Where fewer rows would not run at all, something else than rows was cut.
        ran = few.survey.compared is None
        for other in self._readings(compute_losses, few.survey, state, quiet, as_tables=ran):
            if expected is not None:
                other.compare(expected, precision)
            if other.alike:
                return other
        return few

    def _readings(
        self,
        compute_losses: LossFunction,
        survey: Survey,
        state: RandomState,
        quiet: Quiet,
        *,
        as_tables: bool = False,
    ) -> Iterator[Few]:
        """Yields losses of few rows: all that may be rows taken for them, or all but one.

        Where fewer rows do not fit, because the caller wrote their number down, as many are tried,
        of which some take the place of others. Of a tensor that has as many entries as the batch
        has rows nobody says that it is rows: there may be as many classes. Where all that may be
        rows can be taken for them, it is none only if it is looked things up in.
        """
        met = 0
        for whole, many in _ways(exchanged=survey.compared is None and not as_tables):
            if whole and whole[-1] >= met:
                continue
            taken = survey.exchanged() if many else survey
            state.restore()
            calls = self._calls.rehearsing(
                taken, lambda _: False, quiet, whole=whole, as_tables=as_tables
            )
            few = None
            with calls as subset, suppress(Exception):
                few = Few(compute_losses(), taken, whole, self._calls.inputs)
            # What runs between two of them must see all rows again.
            if few is not None and few.fits:
                yield few
            met = max(met, subset.met)

    def check_without_the_model(self, compute_losses: LossFunction, state: RandomState) -> None:
        """Computes losses on two halves of the rows, where the model itself is not called.

        Raises:
            RunError: They are others.
        """
        try:
            with state_kept(self._model), torch.no_grad(), HeldStill():
                alike = self._halves_alike(compute_losses, state)
                if not alike and state.was_left:
                    with evaluating(self._model):
                        alike = self._halves_alike(compute_losses, state)
        except Exception as error:
            logger.info(NOT_COMPARED, type(error).__name__)
            return
        if not alike:
            raise RunError(COUPLED)

    def _halves_alike(self, compute_losses: LossFunction, state: RandomState) -> bool:
        state.restore()
        expected = compute_losses()
        count = len(expected)
        for start in range(min(count, 2)):
            rows = torch.arange(count)[start::2].flip(0)
            subset = RowSubset([*self._model.parameters(), *self._model.buffers()])
            subset.choose(rows, count=count)
            state.restore()
            with subset:
                got = compute_losses()
            if got.shape != (len(rows),):
                raise CannotBeCompared
            if not _same(got, expected, rows, got.dtype):
                return False
        return True


def _ways(*, exchanged: bool) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Yields what of the caller's to leave whole, and whether to take as many rows as there are."""
    yield (), False
    if exchanged:
        yield (), True
    for number in range(MOST_READINGS):
        yield (number,), False
    for pair in combinations(range(MOST_READINGS // 2), 2):
        yield pair, False


def _are_alike(few: Few, expected: Tensor, precision: torch.dtype) -> bool:
    """Whether losses of few rows are those among all losses.

    Raises:
        CannotBeCompared: The model's inputs for these rows have another shape.
    """
    survey, got = few.survey, few.losses.detach()
    if survey.every_unit is not None and len(expected) != survey.count:
        places = _places_of_units(survey.units, survey.every_unit)
    else:
        if few.inputs and few.inputs[0].shape[1:] != survey.inputs[0].shape[1:]:
            # Cut to the longest of them, and sorted perhaps: each is one of those, then.
            return all(bool(_near(loss, expected, expected, precision).any()) for loss in got)
        places = _places_among(few.inputs[0].detach(), survey) if few.inputs else survey.rows
    if places is not None and survey.compared is not None:
        got, places = got[survey.compared.to(got.device)], places[survey.compared]
    return places is not None and _same(got, expected, places, precision)


def _places_of_units(some: Tensor | None, every: Tensor) -> Tensor | None:
    """Returns where the units of some rows are among all units, both in ascending order."""
    return None if some is None else torch.searchsorted(every.cpu().unique(), some.unique())


def _places_among(given: Tensor, survey: Survey) -> Tensor | None:
    """Returns where the inputs of few rows are among all rows; None where they are nowhere.

    A caller may sort its batch before the model sees it, and then has other rows at these places.

    Raises:
        CannotBeCompared: They have another shape, cut to the longest of them perhaps.
    """
    everyone = survey.inputs[0]
    if given.shape != (len(survey.rows), *everyone.shape[1:]):
        raise CannotBeCompared("inputs of another shape")
    if _rows_alike(given, everyone[survey.rows.to(everyone.device)]).all():
        return survey.rows
    found = [_rows_alike(row.expand_as(everyone), everyone).nonzero()[:1, 0] for row in given]
    return None if any(len(place) == 0 for place in found) else torch.cat(found)


def _rows_alike(one: Tensor, other: Tensor) -> Tensor:
    """Returns which rows are the same, shape (n,)."""
    if one.is_floating_point():
        return (
            torch.isclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True)
            .reshape(len(one), -1)
            .all(1)
        )
    return (one == other).reshape(len(one), -1).all(1)


def _same(got: Tensor, expected: Tensor, places: Tensor, precision: torch.dtype) -> bool:
    """Whether some losses are those at some places among all, but for rounding."""
    among = expected[places.to(expected.device)]
    return bool(_near(got, among, expected, precision).all())


def _near(one: Tensor, other: Tensor, every: Tensor, precision: torch.dtype) -> Tensor:
    """Returns which losses are the same but for rounding, of the size of the largest of all."""
    share = max(ROUNDING.get(dtype, ROUNDING_IN_HALF) for dtype in (one.dtype, precision))
    size = float(every.detach().abs().nan_to_num(0.0, 0.0, 0.0).max())
    atol = 1e-2 * share * size
    return torch.isclose(one, other.detach(), rtol=share, atol=atol, equal_nan=True)
