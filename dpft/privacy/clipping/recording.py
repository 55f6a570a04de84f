"""What algorithms that record uses share: units' rows, the norms of all parameters, and the sums.

A look at a number makes the host wait for an accelerator, so whether each parameter's norms can be
believed (``norms``) is found out on the device, and looked at once for all of them. Where one
cannot, which is rare, it is taken again. Many small operations are done as a few large ones: on
matrices of small gradients side by side, and on inner products of many layers in one tensor.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dpft.devices import add_rows, sent
from dpft.privacy.clipping.choices import Tuning, ghost_is_cheaper
from dpft.privacy.clipping.engine import (
    ClipDecision,
    ClippedBatch,
    ClippingStyle,
    Engine,
    LossFunction,
)
from dpft.privacy.clipping.exactness import ExactnessCheck
from dpft.privacy.clipping.norms import (
    CarefulSquares,
    GradientMatrix,
    SmallGradients,
    error_margin,
    formed_gradient,
    is_small,
    squared_norms,
    unchecked_squares,
)
from dpft.privacy.clipping.patches import Patches, watch_for_unrecorded_gradients
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.squares import (
    GramPair,
    Squares,
    gram_bands,
    gram_pairs,
    in_norm_dtype,
    in_rows,
    is_same_tensor,
    lost_by_underflow,
    numbers_at_a_time,
    squares_of_grams,
)
from dpft.privacy.clipping.trainable import Units
from dpft.privacy.clipping.uses import GradientUse, OuterProduct, Use


class Rows:
    """The rows of one batch; without units each row is a unit of its own.

    Gradients that are formed as tensors are added up by unit before anything else, so that what
    is summed is what the norm was taken of, to the last digit. Factored uses stay by row, and
    each row is weighted by its unit's factor.
    """

    def __init__(self, losses: Tensor, units: Tensor | None) -> None:
        self._units = None if units is None else Units.of(units)
        finite = losses.detach().isfinite()
        self.finite = finite if self._units is None else self._units.all_finite(finite)
        """Which units have finite losses only, shape (units,)."""

    def fold(self, use: Use) -> Use:
        """Returns a use with formed gradients added up by unit."""
        if self._units is None or not isinstance(use, GradientUse):
            return use
        return use.by_unit(self._units)

    def by_unit(self, uses: Sequence[Use]) -> Sequence[Use]:
        """Returns folded uses with one row for each unit."""
        units = self._units
        if units is None:
            return uses
        return [use if isinstance(use, GradientUse) else use.by_unit(units) for use in uses]

    def squared_norms(self, uses: Sequence[Use], negligible: float) -> CarefulSquares:
        """Returns the squared norms of a parameter's folded uses, shape (units,)."""
        return squared_norms(self.by_unit(uses), negligible=negligible)

    def weighted_sum(
        self, name: str, uses: list[Use], decision: ClipDecision, group: int
    ) -> Tensor:
        """Returns the weighted sum of a parameter's folded uses; what is not finite adds zero.

        Args:
            name: The parameter's name.
            uses: At most one of each kind; each is let go once it is added.
            decision: What decides the weights.
            group: The parameter's group.
        """
        formed = decision.formed.get(name)
        every = list(uses) if formed is not None else []
        total = None
        while uses:
            use, factors = self._weighted(uses.pop(0), decision, group, formed)
            if total is None:
                total = use.weighted_sum(factors)
            else:
                use.add_weighted_sum(factors.to(total.dtype), total)
        assert total is not None
        if formed is not None:
            # Gradients that are formed by themselves, one after the other.
            whole, factors = self.by_unit(every), decision.factors[group]
            for example in (formed & decision.finite).nonzero()[:, 0]:
                for rows, part in formed_gradient(whole, example):
                    part = part * factors[example].double()
                    total[rows].add_(part.to(total.dtype).view_as(total[rows]))
        return total

    def _weighted(
        self, use: Use, decision: ClipDecision, group: int, without: Tensor | None
    ) -> tuple[Use, Tensor]:
        """Returns a use of the examples that take part, and their factors, in its own dtype."""
        by_row = self._units is not None and not isinstance(use, GradientUse)
        factors = decision.factors_of(group, use.dtype)
        finite = None if decision.everyone_is_finite else decision.finite
        if without is not None:
            finite = decision.finite & ~without
        if by_row and self._units is not None:
            factors = factors[self._units.index]
            finite = None if finite is None else finite[self._units.index]
        return use if finite is None else use.keep(finite), factors


Names = tuple[str, ...]
GRAM_SHARE = 4
"""A part of the numbers worked on at a time are a layer's inner products: there are two of each."""
MOST_SHARED = 2**22
"""Inner products that are kept for the next layer (16 MB)."""


@dataclass(frozen=True)
class CollectedNorms:
    """Squared norms that nobody has looked at yet.

    Attributes:
        names: Which parameters each row of ``values`` is of.
        groups: The group of each row.
        values: Squared norms of the parameters of a row together, shape (rows, b), float64.
        believed: Which of them can be believed, shape (rows, b).
        matrices: The small gradients, side by side.
    """

    names: Sequence[Names]
    groups: Sequence[int]
    values: Tensor
    believed: Tensor
    matrices: Sequence[GradientMatrix]

    @property
    def small(self) -> set[str]:
        """Names of the parameters whose gradients stand in ``matrices``."""
        return {name for matrix in self.matrices for name in matrix.names}

    @property
    def all_are_small(self) -> bool:
        """Whether every parameter that was used is among ``small``."""
        return self.small.issuperset(name for names in self.names for name in names)

    def squares(self, count: int) -> Tensor:
        """Returns the squared norms of each group, shape (count, b)."""
        if count == 1:
            return self.values.sum(0, keepdim=True)
        index = sent(self.groups, torch.long, self.values.device)
        zeros = self.values.new_zeros(count, self.values.shape[1])
        return add_rows(zeros, index, self.values)

    def with_squares(self, rows: Sequence[int], squares: Mapping[str, Tensor]) -> "CollectedNorms":
        """Returns the norms with some rows taken again.

        Args:
            rows: Which.
            squares: By parameter, shape (b,).
        """
        values = self.values.clone()
        for row in rows:
            values[row] = torch.stack([squares[n].double() for n in self.names[row]]).sum(0)
        return replace(self, values=values)

    def needs_recheck(self, finite: Tensor) -> Tensor:
        """Returns whether anything here must be taken again, a number to be looked at.

        Args:
            finite: Which examples' losses are finite; the others are left out whatever they give.
        """
        return (self.believed | ~finite).all().logical_not()

    def rows_to_recheck(self, finite: Tensor) -> list[int]:
        """Returns the rows to take again; looks at the device."""
        rows = (self.believed | ~finite).all(1).tolist()
        return [i for i, fine in enumerate(rows) if not fine]


class NormCollector:
    """Takes parameters' uses, each parameter once, and gives the norms of all."""

    def __init__(self, groups: Mapping[str, int], rows: Rows, *, uses_stay: bool = False) -> None:
        """Starts with none.

        Args:
            groups: Group number of every trainable parameter.
            rows: The batch's rows.
            uses_stay: Whether the uses outlive this anyway, so that it may hold on to one.
        """
        self._groups, self._batch = groups, rows
        self._count, self._device = len(rows.finite), rows.finite.device
        self._rows: list[tuple[Names, int]] = []
        self._squares: dict[torch.dtype, list[tuple[int, Squares]]] = defaultdict(list)
        self._stacks: list[tuple[list[int], Squares]] = []
        self._grams: dict[tuple[int, ...], list[tuple[int, GramPair]]] = defaultdict(list)
        self._lengths: dict[tuple[int, torch.dtype], list[tuple[str, Tensor]]] = defaultdict(list)
        self._formed: list[tuple[int, Tensor, Tensor]] = []
        self._matrices: list[GradientMatrix] = []
        self._small = SmallGradients()
        self._shared = SharedInputs() if uses_stay else None

    def add(self, name: str, folded: Sequence[Use]) -> None:
        """Takes all uses of a parameter, folded by unit, at most one of each kind."""
        uses = self._batch.by_unit(folded)
        use = uses[0]
        if len(uses) == 1 and isinstance(use, GradientUse):
            self._add_formed(name, use.values)
        elif len(uses) == 1 and type(use) is OuterProduct and ghost_is_cheaper(use.shape):
            row = self._new_row(name)
            left, right = use.left, use.right
            known = None if self._shared is None else self._shared.bands(right)
            for pair in gram_pairs(left, right, known=known):
                key = (*pair.left.shape, pair.left.element_size(), pair.steps)
                self._grams[key].append((row, pair))
                most = numbers_at_a_time(pair.left.device) // GRAM_SHARE
                if (len(self._grams[key]) + 1) * pair.left.numel() > most:
                    self._close_grams(key)
        else:
            squares = unchecked_squares(uses)
            self._squares[squares.values.dtype].append((self._new_row(name), squares))

    def result(self, negligible: float) -> CollectedNorms:
        """Returns the norms of what was added.

        Args:
            negligible: A square so small that no factor depends on it; errors of its size stay.
        """
        for matrix in self._small.rest():
            self._take_matrix(matrix)
        for key in list(self._grams):
            self._close_grams(key)
        self._close_lengths()
        for squares in self._squares.values():
            values, terms = (
                torch.stack([getattr(s, x) for _, s in squares]) for x in ("values", "terms")
            )
            self._stacks.append(([row for row, _ in squares], Squares(values, terms)))
        values, distances = self._assembled()
        names, groups = [names for names, _ in self._rows], [group for _, group in self._rows]
        believed = distances >= -negligible
        return CollectedNorms(names, groups, values, believed, self._matrices)

    def _assembled(self) -> tuple[Tensor, Tensor]:
        """Returns the squares of all rows and their distance from doubt, shape (rows, b)."""
        if not self._rows:
            return (torch.zeros(0, self._count, dtype=torch.float64, device=self._device),) * 2
        rows = [row for stack, _ in self._stacks for row in stack]
        values = [squares.values.double() for _, squares in self._stacks]
        distances = [error_margin(squares).double() for _, squares in self._stacks]
        for row, formed, distance in self._formed:
            rows.append(row)
            values.append(formed.unsqueeze(0))
            distances.append(distance.unsqueeze(0))
        whole = (torch.cat(values), torch.cat(distances))
        if len(rows) == 1:
            return whole
        index = sent(rows, torch.long, self._device)
        zeros = torch.zeros(len(self._rows), self._count, dtype=torch.float64, device=self._device)
        values_of_rows, distances_of_rows = (zeros.index_add(0, index, each) for each in whole)
        return values_of_rows, distances_of_rows

    def _new_row(self, *names: str) -> int:
        self._rows.append((names, self._groups[names[0]]))
        return len(self._rows) - 1

    def _add_formed(self, name: str, values: Tensor) -> None:
        if is_small(values):
            full = self._small.add(name, self._groups[name], values)
            if full is not None:
                self._take_matrix(full)
            return
        values = in_norm_dtype(values)
        lengths: Tensor = torch.linalg.vector_norm(in_rows(values), dim=2)
        self._lengths[self._groups[name], values.dtype].append((name, lengths))

    def _close_lengths(self) -> None:
        for lengths in self._lengths.values():
            whole = torch.cat([each for _, each in lengths], 1)
            squares = torch.linalg.vector_norm(whole, dim=1, dtype=torch.float64).square()
            row = self._new_row(*(name for name, _ in lengths))
            # Nothing cancels, but a length that float32 does not hold is to be seen.
            dtype = whole.dtype
            terms = torch.full_like(squares, lost_by_underflow(dtype) * len(lengths))
            doubt = error_margin(Squares(squares, terms), dtype)
            self._formed.append((row, squares, doubt.clamp(max=0) + (squares - squares)))

    def _take_matrix(self, matrix: GradientMatrix) -> None:
        squares = matrix.squares()
        # What float64 does not hold is not finite.
        self._formed.append((self._new_row(*matrix.names), squares, torch.zeros_like(squares)))
        self._matrices.append(matrix)

    def _close_grams(self, key: tuple[int, ...]) -> None:
        rows, pairs = zip(*self._grams.pop(key), strict=True)
        self._stacks.append((list(rows), squares_of_grams(pairs)))


class SharedInputs:
    """The inner products of the last inputs, which the next layer may have as well.

    Query, key and value of attention have one input, as have both halves of a gated layer, and
    the backward pass meets them one after the other.
    """

    def __init__(self) -> None:
        self._inputs: Tensor | None = None
        self._bands: list[Tensor] = []

    def bands(self, inputs: Tensor) -> Sequence[Tensor] | None:
        """Returns the bands of inputs (b, t, ·); None where they are too many to be kept."""
        count, steps, _ = inputs.shape
        if count * steps**2 > MOST_SHARED:
            return None
        if self._inputs is None or not is_same_tensor(self._inputs, inputs):
            self._inputs, self._bands = inputs, list(gram_bands(inputs))
        return self._bands


Receiver = Callable[[str, Use], None]
"""Takes a parameter's name and one use of it, in the middle of a backward pass."""


class RecordingEngine(Engine):
    """An engine whose layers report each use of their weights as the backward pass meets it."""

    passes = 1
    """How often at most it goes backward through a graph."""

    def __init__(
        self,
        model: nn.Module,
        style: ClippingStyle,
        *,
        groups: Mapping[str, int] | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        super().__init__(model, style, groups=groups, tuning=tuning)
        self.recorder = Recorder(self.trainable)
        self._patches = Patches(model, self.recorder)
        self._check = ExactnessCheck(model, self._patches, self.backward, self.tuning, self.passes)
        self._rows: int | None = None
        self.shared = self.trainable.shared
        """Names of the parameters of several layers, whose uses add up before the norm."""

    def install(self) -> None:
        """Gives each layer its recording forward.

        Raises:
            InputError: A layer's forward is already replaced, by a second clipper or by hand.
        """
        self._patches.install()

    def remove(self) -> None:
        """Takes the recording forwards away; the layers' own reappear."""
        self._patches.remove()

    def compute(self, compute_losses: LossFunction, units: Tensor | None = None) -> Tensor:
        """Returns the losses, once it is proved that their gradients can be told apart.

        Raises:
            RunError: They cannot.
        """
        self._rows = None if units is None else len(units)
        return self._check.losses(compute_losses, units)

    def decide(
        self,
        collected: CollectedNorms,
        rows: Rows,
        recheck: Callable[[set[str]], Mapping[str, CarefulSquares]],
    ) -> ClipDecision:
        """Returns what the norms of a batch decide.

        Args:
            collected: The norms, not yet checked.
            rows: The batch's rows.
            recheck: Takes the norms of some parameters with care, which is rare.
        """
        count = self.style.groups
        unsure = collected.needs_recheck(rows.finite)
        decision = self.decide_clipping(collected.squares(count), rows.finite, unsure)
        if not decision.needs_recheck:
            return decision
        wrong = collected.rows_to_recheck(rows.finite)
        careful = recheck({name for row in wrong for name in collected.names[row]})
        squares = {name: squares.values for name, squares in careful.items()}
        values = collected.with_squares(wrong, squares).squares(count)
        formed = {n: squares.formed for n, squares in careful.items() if squares.formed is not None}
        return replace(self.decide_clipping(values, rows.finite), formed=formed)

    def add_clipped(self, uses: dict[str, list[Use]], rows: Rows) -> ClippedBatch:
        """Adds the clipped sum of all parameters' folded uses, each freed once contracted."""
        collector = NormCollector(self.groups, rows, uses_stay=True)
        for name, kept in uses.items():
            collector.add(name, kept)
        collected = collector.result(self.negligible)
        for name in collected.small:
            del uses[name]

        def recheck(names: set[str]) -> dict[str, CarefulSquares]:
            return {name: rows.squared_norms(uses[name], self.negligible) for name in names}

        decision = self.decide(collected, rows, recheck)
        parameters = self.trainable.now()
        while uses:
            name, kept = uses.popitem()
            part = rows.weighted_sum(name, kept, decision, self.groups[name])
            self._add(parameters, name, part)
        self.add_small_gradients(collected.matrices, decision)
        self.sums.flush()
        return decision.clipped_batch()

    def add_small_gradients(
        self, matrices: Iterable[GradientMatrix], decision: ClipDecision
    ) -> None:
        """Adds the weighted sums of small gradients, of many parameters at a time."""
        parameters = self.trainable.now()
        finite = None if decision.everyone_is_finite else decision.finite
        for matrix in matrices:
            factors = decision.factors_of(matrix.group, matrix.values.dtype)
            for name, part in matrix.weighted_sums(factors, finite).items():
                self._add(parameters, name, part)

    def _add(self, parameters: Mapping[str, nn.Parameter], name: str, part: Tensor) -> None:
        parameter = parameters[name]
        parameter.grad = self.sums.add(name, parameter.grad, part.to(parameter.dtype))

    def backward(
        self,
        losses: Tensor,
        receive: Receiver,
        *,
        retain_graph: bool = False,
        rows: int | None = None,
    ) -> None:
        """Runs a backward pass of the scaled losses, handing every use to ``receive``.

        Args:
            losses: One of each row, or of each unit.
            receive: What takes each use.
            retain_graph: Whether another pass over the graph follows.
            rows: Rows that each use must have; None takes those of the batch that was computed.

        Raises:
            RunError: A use does not carry the batch, or a parameter got an ordinary gradient.
        """
        self.recorder.start(rows or self._rows or len(losses))
        self.recorder.receive = receive
        with torch.enable_grad():
            total = losses.sum() * self.tuning.scale
        try:
            with watch_for_unrecorded_gradients(self.trainable.now()):
                torch.autograd.backward(total, retain_graph=retain_graph)
        finally:
            self.recorder.receive = self.recorder.keep
            self.recorder.stop()
