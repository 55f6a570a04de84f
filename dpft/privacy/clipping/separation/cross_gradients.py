"""The cross-example check of gradients: whether one example's changes with those beside it.

Losses need not show a coupling: a backward pass of one's own, a hook on a gradient, a checkpoint
that computes something else again may scale every gradient by what the batch held. So two gradients
are compared after the losses (``cross_example``): that of half of a few rows, while the other half
weighs nothing, with what that half alone gives (``_check_half``); and that of all rows of the batch
with the sum of those of a few parts, drawn in secret (``_check_sum``).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from secrets import SystemRandom

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
    adds_up,
    alike,
    are_finite,
    fingerprints_of,
    scaled,
    size_of,
)
from dpft.privacy.clipping.separation.proof import ordinary_gradients
from dpft.privacy.clipping.separation.reexecution import evaluating

MOST_PARTS = 4
"""Of how many parts' gradients that of all rows must be the sum."""
MOST_SPLITS = 64
"""How often parts are halved, in all, to find the rows in them that are not finite."""
MOST_ENLARGED = 1000.0
"""How much a part of small gradients weighs in that sum at most: rounding is enlarged with it."""
Fingerprints = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""(losses, weights, again=…): losses anew, and fingerprints of the gradients of their sum."""
COUPLED_GRADIENTS = (
    "the gradient of one example's loss depends on the other examples of its batch, though the loss"
    " does not, so no clipping bounds what one of them does: look for a backward pass of one's own,"
    " a hook on a gradient or on saved tensors, a checkpoint that computes something else again, or"
    " scale_grad_by_freq, and let each example's gradient follow from that example alone."
)


class CrossExampleGradients:
    """Compares gradients of some rows among others with those that they have without these.

    Args:
        check: Compared the rows' losses.
        first: Whether no batch was compared before.
    """

    def __init__(self, check: CrossExampleCheck, *, first: bool = True) -> None:
        self._check, self._first = check, first

    def compare(
        self, among: SubsetLosses, parameters: Mapping[str, Tensor], scale: float = 1.0
    ) -> bool:
        """Compares gradients of rows among others with those that they have without these.

        Args:
            among: Losses of some rows, whose graph is used up: each gradient needs its own.
            parameters: What trains, by name.
            scale: What losses are multiplied by before they are backpropagated.

        Returns:
            Whether they were compared: not where fewer than two are finite beside such as are not.

        Raises:
            RunError: They are others, or that cannot be seen.
        """
        everyone = among.of_all()
        among.fewer_run = len(among.owners.unique()) < len(everyone.owners.unique())
        everyone.fewer_run = among.fewer_run
        evaluated = partial(evaluating, self._check.model_calls.model)
        ways = (
            (self._check.deterministic, False),
            (self._check.deterministic, True),
            (evaluated, True),
        )
        for around, inside in ways:
            taken = partial(self._fingerprint, parameters=parameters, around=around, inside=inside)
            # What is computed again in the backward pass may want the rows taken there too, or draw
            # where nothing holds it off.
            with suppress(CheckpointError):
                half = self._check_half(among, scale, taken, again=inside)
                if self._check_sum(everyone, scale, taken) and half:
                    return True
                # One that is not finite spoils those of all rows beside it: 0 * nan is nan.
                rest = self._finite_owners(among, scale, taken)
                if rest is not None:
                    self._check_half(rest, scale, taken, again=True)
                    self._check_sum(rest, scale, taken)
                return rest is not None
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
        if not alike(expected, got, self._coarsest(theirs)):
            raise RunError(COUPLED_GRADIENTS)
        return all(are_finite(expected)) and all(are_finite(got))

    def _check_sum(self, among: SubsetLosses, scale: float, gradients: Fingerprints) -> bool:
        """Compares the gradient of all of some rows' losses with the sum of those of parts alone.

        What meets in large batches alone, or only where each row's loss weighs something, shows
        here. Which rows are a part's is drawn in secret. Either each part is of the same size in
        the sum, so that none hides the others; or all losses weigh the same, as where they are
        used, so that nothing tells the two apart. Both are compared at first, later one of them, by
        a secret coin. Of a part that is not finite the rows are found that are not, so that these
        alone are left out.

        Returns:
            Whether at least two parts that are finite were compared.
        """
        survey, theirs = among.survey, among.losses.detach()
        owners = among.owners.unique()
        if len(owners) < 2:
            return True
        number = 2 if survey.compared is not None else min(MOST_PARTS, max(2, len(owners) // 2))
        order = SystemRandom().sample(range(len(owners)), len(owners))
        waiting = [*owners[torch.tensor(order)].tensor_split(number)]
        parts: list[Tensor] = []
        prints: list[dict[str, Tensor]] = []
        sizes: list[float] = []
        in_order, lost, splits = True, False, 0
        while waiting:
            chosen = waiting.pop()
            part, weights = among.of(chosen)
            weights = scale * torch.where(part.losses.isfinite(), weights, 0.0)
            if survey.compared is not None and not bool(weights.any()):
                lost = True  # No loss says whether these rows are what was taken.
                continue
            found = self._alone(part, weights, theirs, gradients)
            if found is None:
                return True
            size = size_of(found[0])
            if not math.isfinite(size) and len(chosen) > 1 and splits < MOST_SPLITS:
                # One that is not finite is not to spare the others of its part.
                splits += 1
                waiting += chosen.tensor_split(2)
                continue
            parts.append(chosen)
            prints.append(found[0])
            sizes.append(size)
            in_order = in_order and found[1]  # A caller may sort its batch.
        finite = [math.isfinite(size) for size in sizes]
        largest = max((size for size, fine in zip(sizes, finite, strict=True) if fine), default=0.0)
        factors = [
            min(largest / size, MOST_ENLARGED) if in_order and fine and size else 1.0
            for size, fine in zip(sizes, finite, strict=True)
        ]
        as_used = [1.0] * len(parts)
        ways = [factors] if factors == as_used else [factors, as_used]
        compared = True
        for way in ways if self._first else [SystemRandom().choice(ways)]:
            every = [*zip(parts, prints, way, strict=True)]
            is_finite = not lost and self._check_whole(among, every, scale, gradients)
            if lost or not all(finite):
                kept = [each for each, fine in zip(every, finite, strict=True) if fine]
                if len(kept) < 2:
                    return False
                rest, _ = among.of(torch.cat([chosen for chosen, _, _ in kept]))
                is_finite = self._check_whole(rest, kept, scale, gradients)
            compared = compared and is_finite
        return compared

    def _check_whole(
        self,
        whole: SubsetLosses,
        parts: Sequence[tuple[Tensor, dict[str, Tensor], float]],
        scale: float,
        gradients: Fingerprints,
    ) -> bool:
        """Compares a gradient with the weighted sum of those of its parts: (owners, print, factor).

        Returns:
            Whether it is finite.
        """
        places = torch.zeros(len(whole.losses), dtype=whole.losses.dtype)
        for owners, _, factor in parts:
            places[whole.places_of(owners)] = scale * factor
        weights = places.to(whole.losses)
        _, seen = gradients(whole, torch.where(whole.losses.isfinite(), weights, 0.0))
        addends = [scaled(found, factor) for _, found, factor in parts]
        if not adds_up(seen, addends, self._coarsest(whole.losses)):
            raise RunError(COUPLED_GRADIENTS)
        return all(are_finite(seen))

    def _alone(
        self, part: SubsetLosses, weights: Tensor, among: Tensor, gradients: Fingerprints
    ) -> tuple[dict[str, Tensor], bool] | None:
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
                    if self._same(torch.where(weights != 0, losses, part.losses), part.losses):
                        return found, True
            raise RunError(COUPLED) if ran else NothingCompared("fewer do not run")
        if not of_units:
            losses, found = gradients(part, weights)
            return found, self._same(torch.where(weights != 0, losses, part.losses), part.losses)
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
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns a subset's losses, and a fingerprint of each gradient of their weighted sum.

        Args:
            subset: Whose losses.
            weights: Of each loss, shape (n,).
            parameters: What trains, by name.
            around: Makes the model run without randomness.
            again: Whether the losses are computed anew.
            inside: Whether their backward pass sees these rows alone, too.
        """
        if not again:
            with around():
                gradients = ordinary_gradients(subset.losses, parameters, weights=weights)
                return subset.losses, fingerprints_of(gradients)
        self._check.state.restore()
        try:
            with subset.again(self._check.model_calls, lambda _: False, around) as taken:
                losses = self._check.compute_losses()
                with taken.asleep():  # Weights may be as many as the rows that are cut.
                    if losses.shape != weights.shape:
                        raise CannotBeCompared("their number does not follow")
                if inside:
                    taken.mark(weights)
                    with around():
                        gradients = ordinary_gradients(losses, parameters, weights=weights)
                        with taken.asleep():
                            return losses, fingerprints_of(gradients)
            with around():
                gradients = ordinary_gradients(losses, parameters, weights=weights)
                return losses, fingerprints_of(gradients)
        except CheckpointError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise NothingCompared("fewer do not run") from error

    def _coarsest(self, losses: Tensor) -> torch.dtype:
        return max((losses.dtype, self._check.precision), key=lambda dtype: torch.finfo(dtype).eps)
