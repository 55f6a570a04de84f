"""The cross-example check of gradients: whether one example's changes with those beside it.

Losses need not show a coupling: a backward pass of one's own, a hook on a gradient, a checkpoint
that computes something else again may scale every gradient by what the batch held. So two gradients
are compared after the losses (``cross_example``): that of half of a few rows, while the other half
weighs nothing, with what that half alone gives; and those that an engine takes of all rows of the
batch with those of a few parts alone, drawn in secret (``GradientsAlone``).

A backward pass sees the losses that it is given and their weights. So the engine runs it as in
training, each loss weighing what it weighs there; only then is each row's gradient multiplied by a
factor, secret and its part's own, and added to the others. What one part takes from another shows
thereby, though it be such as cancels in the sum of all, or met only where all rows weigh the same.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from secrets import SystemRandom
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from dpft.errors import RunError, is_out_of_memory
from dpft.privacy.clipping.separation.cross_example import (
    COUPLED,
    WHOLE,
    CannotBeCompared,
    Context,
    CrossExampleCheck,
    NothingCompared,
    SubsetLosses,
    near,
)
from dpft.privacy.clipping.separation.fingerprints import (
    Prints,
    adds_up,
    alike,
    are_finite,
    fingerprints_of,
    scaled,
    size_of,
)
from dpft.privacy.clipping.separation.proof import ordinary_gradients
from dpft.privacy.clipping.separation.reexecution import evaluating
from dpft.privacy.clipping.separation.row_subset import OnCall

MOST_PARTS = 4
"""Of how many parts' gradients that of all rows must be the sum."""
MOST_SPLITS = 64
"""How often parts are halved, in all, to find the rows in them that are not finite."""
MOST_ENLARGED = 1000.0
"""How much a part of small gradients weighs in that sum at most: rounding is enlarged with it."""
Fingerprints = Callable[..., tuple[Tensor, Prints]]
"""(losses, weights, again=…): losses anew, and fingerprints of the gradients of their sum."""
Taken = TypeVar("Taken")
EngineTake = Callable[..., Sequence[Prints]]
"""(losses with their graph, factors, units=…, precisely=…): fingerprints of the sum of factor times
gradient, as an engine has it of each loss in each of its backward passes; ``precisely`` as
``fingerprint_of``."""
LARGEST = 1e30
"""Of gradients about as large float32 does not hold each fingerprint."""
Calling = Callable[[], AbstractContextManager[OnCall]]
"""Makes the model ready for one run; what it gives is told of the model's calls."""
COUPLED_GRADIENTS = (
    "the gradient of one example's loss depends on the other examples of its batch, though the loss"
    " does not, so no clipping bounds what one of them does: look for a backward pass of one's own,"
    " a hook on a gradient or on saved tensors, a checkpoint that computes something else again, or"
    " scale_grad_by_freq, and let each example's gradient follow from that example alone."
)


@dataclass(frozen=True)
class Part:
    """Some rows or units by themselves: whose, fingerprints of their gradients, and their norm."""

    owners: Tensor
    prints: Prints
    size: float

    @property
    def is_finite(self) -> bool:
        """Whether they are finite."""
        return math.isfinite(self.size)


@dataclass(frozen=True)
class PartsOf:
    """Parts of a batch, all of whose rows have gradients among the others.

    Attributes:
        whole: The rows, whose losses are to be computed anew.
        parts: Some of them.
        in_order: Whether losses of a part alone are in the order of those among all: a caller may
            sort its batch, and then nothing says which rows are a part's.
    """

    whole: SubsetLosses
    parts: Sequence[Part]
    in_order: bool

    def factors(self) -> list[float]:
        """Returns what to multiply each part's gradients by, so that it hides behind no other.

        All are brought near the size of the largest, but none by more than rounding allows.
        """
        if not self.in_order or not all(part.is_finite for part in self.parts):
            return [1.0] * len(self.parts)
        largest = max(part.size for part in self.parts)
        each = [min(largest / part.size, MOST_ENLARGED) if part.size else 1 for part in self.parts]
        return [share * SystemRandom().uniform(0.5, 1.0) for share in each]


@dataclass(frozen=True)
class GradientsAlone:
    """Gradients of parts of a batch by themselves, which they must have among all.

    Attributes:
        check: What compared the losses.
        sums: What is to be compared.
        seen: Whether gradients were finite so far, so that they were compared.
        ways: Contexts of the model's calls, and whether the backward pass sees the rows alone.
    """

    check: CrossExampleCheck
    sums: Sequence[PartsOf]
    seen: bool
    ways: Sequence[tuple[Context, bool]]

    def compare(self, take: EngineTake, calling: Calling) -> bool:
        """Compares gradients that an engine takes of all rows with those of the parts.

        Args:
            take: Runs a backward pass as the engine does.
            calling: Makes the model ready for it.

        Returns:
            Whether all was finite that is so alone.

        Raises:
            RunError: They are others, or that cannot be seen.
        """
        return all([self._are_sums(each, take, calling) for each in self.sums]) and self.seen

    def _are_sums(self, compared: PartsOf, take: EngineTake, calling: Calling) -> bool:
        whole, factors = compared.whole, compared.factors()
        every = [*zip(compared.parts, factors, strict=True)]
        places = torch.zeros(len(whole.losses), dtype=whole.losses.dtype)
        for part, factor in every:
            places[whole.places_of(part.owners)] = factor
        precisely = any(part.size * factor > LARGEST for part, factor in every)
        taken = partial(take, units=whole.survey.units, precisely=precisely)
        for around, inside in self.ways:
            with suppress(CheckpointError), calling() as on_call:
                of_losses = places.to(whole.losses)
                run = partial(run_rows, self.check, whole, of_losses, taken, on_call=on_call)
                try:
                    _, passes = run(around=around, inside=inside)
                except NothingCompared as error:
                    if isinstance(error.__cause__, RunError):
                        raise error.__cause__ from error
                    raise
                addends = [scaled(part.prints, factor) for part, factor in every]
                dtype = _coarsest(self.check, whole.losses)
                if not all(adds_up(seen, addends, dtype) for seen in passes):
                    raise RunError(COUPLED_GRADIENTS)
                return all(are_finite(passes[0])) or not all(part.is_finite for part, _ in every)
        raise NothingCompared("a checkpoint computes something else again")


class CrossExampleGradients:
    """Compares gradients of some rows among others with those that they have without these.

    Args:
        check: Compared the rows' losses.
        apart: Whether an engine has finite gradients of rows beside such as are not.
    """

    def __init__(self, check: CrossExampleCheck, *, apart: bool = True) -> None:
        self._check, self._apart = check, apart

    def compare(
        self, among: SubsetLosses, parameters: Mapping[str, Tensor], scale: float = 1.0
    ) -> GradientsAlone:
        """Compares gradients of half of few rows; returns those of parts of the batch alone.

        Args:
            among: Losses of some rows, whose graph is used up: each gradient needs its own.
            parameters: What trains, by name.
            scale: What losses are multiplied by before they are backpropagated.

        Raises:
            RunError: They are others, or that cannot be seen.
        """
        everyone = among.of_all()
        among.fewer_run = len(among.owners.unique()) < len(everyone.owners.unique())
        everyone.fewer_run = among.fewer_run
        evaluated = partial(evaluating, self._check.model_calls.model)
        ways: list[tuple[Context, bool]] = [
            (self._check.deterministic, False),
            (self._check.deterministic, True),
            (evaluated, True),
        ]
        for number, (around, inside) in enumerate(ways):
            taken = partial(self._fingerprint, parameters=parameters, around=around, inside=inside)
            # What is computed again in the backward pass may want the rows taken there too, or draw
            # where nothing holds it off.
            with suppress(CheckpointError):
                is_finite = self._check_half(among, scale, taken, again=inside)
                sums, enough = self._parts_of(everyone, scale, taken)
                seen = is_finite and enough
                if not seen:
                    # One that is not finite spoils those of all rows beside it: 0 * nan is nan.
                    rest = self._finite_owners(among, scale, taken)
                    if rest is not None:
                        self._check_half(rest, scale, taken, again=True)
                        sums += self._parts_of(rest, scale, taken)[0]
                    seen = rest is not None
                return GradientsAlone(self._check, sums, seen, ways[number:])
        raise NothingCompared("a checkpoint computes something else again")

    def _check_half(
        self, among: SubsetLosses, scale: float, gradients: Fingerprints, *, again: bool
    ) -> bool:
        """Compares the gradient of half of some rows, the others weighing nothing, with its own.

        Returns:
            Whether what was compared is finite; what is not is passed.
        """
        halves = [*among.parts()]
        if not halves:
            return True
        rows, places = SystemRandom().choice(halves)
        survey, theirs = among.survey, among.losses.detach()
        each = torch.exp2(torch.arange(len(places), device=theirs.device) % 8 - 4).to(theirs)
        if survey.every_unit is not None:
            each = torch.ones_like(each)  # Which of a unit's rows bears its loss is the caller's.
        weights = torch.zeros_like(theirs)
        # Losses that are not finite are not added; nor can they be told apart.
        weights[places] = scale * torch.where(theirs[places].isfinite(), each, 0.0)
        _, expected = gradients(among, weights, again=again or not among.losses.requires_grad)
        among.losses = theirs
        of_part = weights if survey.compared is not None else weights[places]
        known = theirs if survey.compared is not None else theirs[places]
        alone = replace(among, losses=known, survey=replace(survey, rows=rows))
        found = self._alone(alone, of_part, theirs, gradients)
        if found is None:
            return True
        got, _ = found
        if not alike(expected, got, _coarsest(self._check, theirs)):
            raise RunError(COUPLED_GRADIENTS)
        return all(are_finite(expected)) and all(are_finite(got))

    def _parts_of(
        self, among: SubsetLosses, scale: float, gradients: Fingerprints
    ) -> tuple[list[PartsOf], bool]:
        """Returns gradients of parts alone, and whether two parts at least are finite.

        What meets in large batches alone, or only where each row's loss weighs something, shows
        where these are compared with the gradients of all. Which rows are a part's is drawn in
        secret. Of a part that is not finite the rows are found that are not, so that these alone
        are left out.
        """
        survey, theirs = among.survey, among.losses.detach()
        every = among.owners.unique()
        if len(every) < 2:
            return [], True
        owners = among.finite_owners()  # An engine leaves others out.
        if len(owners) < 2:
            return [], False
        number = 2 if survey.compared is not None else min(MOST_PARTS, max(2, len(owners) // 2))
        order = SystemRandom().sample(range(len(owners)), len(owners))
        waiting = [*owners[torch.tensor(order)].tensor_split(number)]
        parts: list[Part] = []
        in_order, splits = True, 0
        while waiting:
            chosen = waiting.pop()
            part, weights = among.of(chosen)
            found = self._alone(part, scale * weights, theirs, gradients)
            if found is None:
                return [], True
            size = size_of(found[0])
            if not math.isfinite(size) and len(chosen) > 1 and splits < MOST_SPLITS:
                # One that is not finite is not to spare the others of its part.
                splits += 1
                waiting += chosen.tensor_split(2)
                continue
            parts.append(Part(chosen, found[0], size))
            in_order = in_order and found[1]  # A caller may sort its batch.
        kept = [part for part in parts if part.is_finite]
        lost = [part for part in parts if not part.is_finite]
        # What is lost alone is to be lost among all, too; or where other rows had to run beside it,
        # or nothing says which rows it is, in the sum.
        if in_order and survey.compared is None:
            sums = [PartsOf(among, [part], in_order) for part in lost]
        elif lost and len(owners) == len(every):
            sums = [PartsOf(among, parts, in_order)]
        else:
            sums = []
        if len(kept) < 2:
            return sums, False
        left_out = lost or len(owners) < len(every)
        if left_out and not (in_order and self._apart):
            among, _ = among.of(torch.cat([part.owners for part in kept]))
        return [*sums, PartsOf(among, kept, in_order)], True

    def _alone(
        self, part: SubsetLosses, weights: Tensor, among: Tensor, gradients: Fingerprints
    ) -> tuple[Prints, bool] | None:
        """Returns fingerprints of some rows' gradients by themselves; whether losses are in order.

        None where losses agree, but are those of other rows: the caller has units in an order of
        its own, or what is cut where as many rows run is none of them; or where no fewer units run.

        Args:
            part: The rows, with the losses that they have among others.
            weights: Of each loss.
            among: Losses of all that are compared.
            gradients: Computes both.
        """
        of_units, ran = part.survey.every_unit is not None, False
        if part.survey.compared is not None:
            # Rows that stay have the losses they had, unless what was cut is none of the rows.
            for whole in dict.fromkeys((part.whole, *WHOLE)):
                with suppress(NothingCompared):
                    losses, found = gradients(replace(part, whole=whole), weights)
                    ran = True
                    if self._same(losses[weights != 0], part.losses[weights != 0]):
                        return found, True
            raise RunError(COUPLED) if ran else NothingCompared("fewer do not run")
        if not of_units:
            losses, found = gradients(part, weights)
            return found, self._same(losses[weights != 0], part.losses[weights != 0])
        tried = [(part, weights)]
        # What the caller makes for as many rows as there are units looks like what it has for each.
        repeated = part.survey.repeated() if len(part.losses) == len(part.survey.rows) else None
        if repeated is not None:
            times = len(repeated.rows) // len(part.losses)
            losses = part.losses.repeat(times)
            again = replace(part, losses=losses, survey=repeated)
            tried = [(again, weights.repeat(times) / times), *tried]
        for rows, weights in tried:
            expected = rows.losses.sort().values
            for whole in dict.fromkeys((rows.whole, *WHOLE)):
                with suppress(NothingCompared):
                    losses, found = gradients(replace(rows, whole=whole), weights)
                    ran, mine = True, losses.detach()
                    if self._same(mine.sort().values, expected):
                        return found, self._same(mine, rows.losses)
                    if self._are_some_of(mine, among):
                        return None
        if ran:
            raise RunError(COUPLED)
        if part.fewer_run:
            raise NothingCompared("fewer do not run")
        return None

    def _finite_owners(
        self, among: SubsetLosses, scale: float, gradients: Fingerprints
    ) -> SubsetLosses | None:
        """Returns the rows or units that have finite gradients by themselves; None for one."""
        owners = among.owners.unique()
        fine = torch.zeros(len(owners), dtype=torch.bool)
        for number in range(len(owners)):
            alone, weights = among.of(owners[number])
            with suppress(NothingCompared):
                fine[number] = all(are_finite(gradients(alone, scale * weights)[1]))
        return among.of(owners[fine])[0] if fine.sum() > 1 else None

    def _are_some_of(self, losses: Tensor, among: Tensor) -> bool:
        """Whether each of some losses is another one of all."""
        found = [
            [int(near(loss, each, among, self._check.precision).sum()) for each in (losses, among)]
            for loss in losses
        ]
        return all(here <= there for here, there in found)

    def _same(self, one: Tensor, other: Tensor) -> bool:
        """Whether losses are the same but for rounding."""
        return not len(other) or bool(near(one, other, other, self._check.precision).all())

    def _fingerprint(
        self,
        subset: SubsetLosses,
        weights: Tensor,
        *,
        parameters: Mapping[str, Tensor],
        around: Context,
        again: bool = True,
        inside: bool,
    ) -> tuple[Tensor, Prints]:
        """Returns a subset's losses, and a fingerprint of each gradient of their weighted sum.

        Args:
            subset: Whose losses.
            weights: Of each loss, shape (n,).
            parameters: What trains, by name.
            around: Makes the model run without randomness.
            again: Whether the losses are computed anew.
            inside: Whether their backward pass sees these rows alone, too.
        """
        take = partial(_of_sum, parameters=parameters)
        if not again:
            with around():
                return subset.losses.detach(), take(subset.losses, weights)
        return run_rows(self._check, subset, weights, take, around=around, inside=inside)


def run_rows(
    check: CrossExampleCheck,
    subset: SubsetLosses,
    weights: Tensor,
    take: Callable[[Tensor, Tensor], Taken],
    *,
    on_call: OnCall = lambda _: False,
    around: Context,
    inside: bool,
) -> tuple[Tensor, Taken]:
    """Computes losses of some rows anew; returns them, and what is taken of their gradients.

    Args:
        check: Compared the rows' losses.
        subset: Whose losses.
        weights: Of each loss, shape (n,).
        take: Runs the backward pass.
        on_call: Is told of the model's calls.
        around: Context of each call of the model, and of the backward pass.
        inside: Whether the backward pass sees these rows alone, too.

    Raises:
        CheckpointError: A checkpoint computes something else again.
        NothingCompared: They cannot be computed.
    """
    check.state.restore()
    try:
        with subset.again(check.model_calls, on_call, around) as taken:
            losses = check.compute_losses()
            with taken.asleep():  # Weights may be as many as the rows that are cut.
                if losses.shape != weights.shape:
                    raise CannotBeCompared("their number does not follow")
            if inside:
                taken.mark(weights)
                with around():
                    return losses.detach(), take(losses, weights)
        with around():
            return losses.detach(), take(losses, weights)
    except CheckpointError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise NothingCompared("fewer do not run") from error


def _of_sum(losses: Tensor, weights: Tensor, *, parameters: Mapping[str, Tensor]) -> Prints:
    """Returns fingerprints of the gradients of a weighted sum of losses."""
    return fingerprints_of(ordinary_gradients(losses, parameters, weights=weights))


def _coarsest(check: CrossExampleCheck, losses: Tensor) -> torch.dtype:
    return max((losses.dtype, check.precision), key=lambda dtype: torch.finfo(dtype).eps)
