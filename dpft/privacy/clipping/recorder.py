"""Recorder of the uses of each parameter in a micro-batch, which computes norms and clipped sums.

A recording forward (``rules``) passes (input, output gradient) to the recorder during the backward
pass: a *use* of its parameter. After the backward pass, the engine gets the norms of each unit's
gradients from the recorder and computes clip factors. The engine then gets the weighted sum of each
parameter (book-keeping, Bu et al. 2023). Uses are kept by parameter and not by layer, because the
gradient of a weight that several layers share is the sum of all its uses.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from dpft.errors import RunError
from dpft.privacy.clipping.products import (
    SMALL_OPERANDS,
    GradientNorms,
    Lookup,
    Outer,
    formed_gradients,
    formed_norms,
    formed_weighted_sum,
    formed_without,
    lookup_norms,
    outer_norms,
    rounded_down,
    tied_norms,
    weighted_sums,
)

TOGETHER = 2**20
"""Maximum number of entries per unit of the concatenated gradients of several small parameters."""
ALONE = 2**16
"""Number of entries per unit from which a gradient is not concatenated with others."""
HALF = (torch.bfloat16, torch.float16)


class UseError(RunError):
    """Error if a parameter's per-example gradients cannot be recorded as assigned.

    ``PerExampleClipper.accumulate`` then runs the micro-batch with the engine ``rows``. During a
    self-check, the clipper instead tries another assignment.

    Attributes:
        reason: The cause of the error; the whole message adds how to fix it.
        names: The parameters.
        outside: Whether a module used these parameters that does not hold them.
    """

    def __init__(self, reason: str, names: Sequence[str], *, outside: bool = False) -> None:
        super().__init__(f"{reason}; choose `engine='rows'`.")
        self.reason, self.names, self.outside = reason, tuple(names), outside


class Recorder:
    """Uses of all parameters in one micro-batch of u privacy units.

    The rows of a unit are contiguous. A tensor whose leading dimension is k times the number of
    rows is therefore viewed as (u, k r t, d), with r rows per unit.

    Attributes:
        rows: Number of rows of the micro-batch.
        units: Number of privacy units of the micro-batch.
        inside_map: Whether a module is currently being mapped over its rows.
        saw_half: Whether a half-precision tensor was recorded since this attribute was reset. If
            so, checks compare less strictly.
    """

    def __init__(self, groups: Mapping[str, int], device: torch.device) -> None:
        """Record uses of the parameters in ``groups``, which maps names to group numbers."""
        self._groups, self._device = groups, device
        self._count = max(groups.values()) + 1
        self.inside_map = self.saw_half = False
        self.begin(0, 0)

    def begin(self, rows: int, units: int) -> None:
        """Forget all uses, and prepare for a micro-batch; (0, 0) between micro-batches."""
        self.rows, self.units = rows, units
        self._outer: dict[str, list[Outer]] = defaultdict(list)
        self._lookups: dict[str, list[Lookup]] = defaultdict(list)
        self._formed: dict[str, Tensor] = {}
        self._joined: list[tuple[list[str], Tensor]] = []
        self._last_cast: tuple[Tensor, int, bool, Tensor] | None = None
        self._saw_double = False

    @property
    def has_uses(self) -> bool:
        """Whether a backward pass has recorded anything."""
        return bool(self._outer or self._lookups or self._formed)

    @contextmanager
    def mapping(self) -> Iterator[None]:
        """Mark the block as running inside a map over rows."""
        self.inside_map = True
        try:
            yield
        finally:
            self.inside_map = False

    # Recording forwards call these methods, in the backward pass except for `cast`.

    def cast(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a layer's inputs in another dtype; layers that share inputs share the cast."""
        if self._last_cast is not None:
            last_inputs, version, has_graph, cast = self._last_cast
            is_same = last_inputs is inputs and version == inputs._version
            if is_same and has_graph == torch.is_grad_enabled() and cast.dtype == dtype:
                return cast
        cast = inputs.to(dtype)
        self._last_cast = inputs, inputs._version, torch.is_grad_enabled(), cast
        return cast

    def outer(self, name: str, left: Tensor, right: Tensor) -> None:
        """Record a use with the gradient ``sum_t left_t right_t^T``.

        Args:
            name: Name of the parameter.
            left: Output gradients, shape (n, t, p), where n is a multiple of the number of rows.
            right: Inputs, shape (n, t, d).
        """
        use = Outer(self._by_unit(name, left), self._by_unit(name, right))
        if use.size > SMALL_OPERANDS and use.is_better_formed:
            self._add_formed(name, use.formed().flatten(1))
        else:  # Gradients of small uses are formed together.
            self._outer[name].append(use)

    def lookup(self, name: str, ids: Tensor, values: Tensor, count: int) -> None:
        """Record a use of an embedding.

        Args:
            name: Name of the parameter.
            ids: Entries of the embedding that were looked up, shape (n, t).
            values: Output gradients of these entries, shape (n, t, d).
            count: Number of entries of the embedding.
        """
        ids = self._by_unit(name, ids.unsqueeze(2)).squeeze(2)
        use = Lookup(ids, self._by_unit(name, values), count)
        if use.is_better_formed:
            self._add_formed(name, use.formed().flatten(1))
        else:
            self._lookups[name].append(use)

    def formed(self, name: str, gradients: Tensor) -> None:
        """Record formed gradients, one per row, shape (n, ...), and add up each unit's rows."""
        # This avoids views, because there are many small parameters.
        whole = gradients if gradients.dim() == 2 else gradients.reshape(len(gradients), -1)
        if not len(whole) == self.rows == self.units:
            whole = self._by_unit(name, whole.unsqueeze(1)).sum(1)
        self._saw(whole.dtype)
        self._add_formed(name, whole if whole.dtype not in HALF else whole.float())

    def _add_formed(self, name: str, gradients: Tensor) -> None:
        earlier = self._formed.get(name)
        self._formed[name] = gradients if earlier is None else earlier + gradients

    def _saw(self, dtype: torch.dtype) -> None:
        self.saw_half = self.saw_half or dtype in HALF
        self._saw_double = self._saw_double or dtype == torch.float64

    def _by_unit(self, name: str, values: Tensor) -> Tensor:
        """Return (u, t', d) from (n, t, d)."""
        n, t, d = values.shape
        if not self.rows or n % self.rows:
            raise UseError(
                f"parameter {name} was used on a tensor whose leading dimension is {n}, in a"
                f" micro-batch of {self.rows} rows",
                [name],
            )
        self._saw(values.dtype)
        return values if n == self.units else values.reshape(self.units, n // self.units * t, d)

    # The engine calls these methods after the backward pass.

    def norms(self) -> tuple[Tensor, Tensor]:
        """Return squared norms of the units' gradients, and the squares of their upper bounds.

        Returns:
            Shape (groups, u) each, float64. Infinite or NaN bounds mark units that overflowed.
        """
        self._settle()
        named_norms: list[tuple[Sequence[str], GradientNorms]] = []
        for names, whole in self._joined:
            named_norms.append((names[:1], formed_norms(whole)))
        lookups = self._lookup_norms()
        by_length: dict[int, list[str]] = defaultdict(list)
        for name, (use,) in self._outer.items():
            by_length[use.left.shape[1]].append(name)
        for names in by_length.values():
            norms, start = outer_norms([self._outer[name][0] for name in names]), 0
            for k, name in enumerate(names):
                if name in lookups:  # A tied weight: its two uses have a cross term.
                    uses = self._outer[name][0], self._lookups[name][0]
                    tied = tied_norms(norms.of(k), lookups.pop(name), *uses)
                    named_norms += [(names[start:k], norms.of(slice(start, k))), ([name], tied)]
                    start = k + 1
            named_norms.append((names[start:], norms.of(slice(start, None))))
        named_norms += [([name], norms) for name, norms in lookups.items()]
        return self._totals(named_norms)

    def _lookup_norms(self) -> dict[str, GradientNorms]:
        """Return the norms of look-ups; small look-ups of equal shape are processed together."""
        by_shape: dict[tuple[object, ...], list[str]] = defaultdict(list)
        for name, (use,) in self._lookups.items():
            is_small = use.values.numel() <= SMALL_OPERANDS
            by_shape[use.values.shape, use.values.dtype, "" if is_small else name].append(name)
        norms_by_name = {}
        for names in by_shape.values():
            norms = lookup_norms([self._lookups[name][0] for name in names])
            norms_by_name.update({name: norms.of(k) for k, name in enumerate(names)})
        return norms_by_name

    def _totals(
        self, named_norms: Sequence[tuple[Sequence[str], GradientNorms]]
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of squares and bounds over the parameters of each group."""
        if not named_norms:
            nothing = torch.zeros(self._count, self.units, dtype=torch.float64, device=self._device)
            return nothing, nothing
        fields = zip(*((n.square, n.error, n.rounding) for _, n in named_norms), strict=True)
        norms = GradientNorms(
            *(torch.cat([v.view(-1, self.units) for v in field]) for field in fields)
        )
        squares, bounds = norms.square.clamp(min=0), norms.bounds()
        if self._count == 1:
            return squares.sum(0, keepdim=True), bounds.sum(0, keepdim=True)
        groups = [self._groups[name] for names, _ in named_norms for name in names]
        index = torch.tensor(groups, device=squares.device)
        totals = squares.new_zeros(2, self._count, self.units)
        squares, bounds = totals.index_add_(1, index, torch.stack([squares, bounds])).unbind()
        return squares, bounds

    def _settle(self) -> None:
        """Join the uses of each parameter into one (two if tied), and join small gradients."""
        for name, outers in self._outer.items():
            self._outer[name] = [Outer.concatenate(outers)]
        for name, lookups in self._lookups.items():
            self._lookups[name] = [Lookup.concatenate(lookups)]
        names, outers = [], []
        for name in [*dict.fromkeys([*self._outer, *self._lookups])]:
            uses = [*self._outer.get(name, ()), *self._lookups.get(name, ())]
            if name in self._formed or any(use.is_better_formed for use in uses):
                for outer in self._outer.pop(name, ()):
                    names.append(name)
                    outers.append(outer)
                for lookup in self._lookups.pop(name, ()):
                    self._add_formed(name, lookup.formed().flatten(1))
        for index, gradients in formed_gradients(outers):
            self._add_formed(names[index], gradients)
        for names in list(self._buckets()):  # A list: the loop changes the dict behind _buckets.
            parts = [self._formed.pop(name) for name in names]
            self._joined.append((names, parts[0] if len(parts) == 1 else torch.cat(parts, 1)))

    def _buckets(self) -> Iterator[list[str]]:
        """Yield names of formed gradients of one group and dtype that are processed together."""
        open_buckets: dict[tuple[int, torch.dtype], tuple[list[str], int]] = {}
        for name, gradients in self._formed.items():
            size = gradients.shape[1]
            if size > ALONE:
                yield [name]
                continue
            key = self._groups[name], gradients.dtype
            names, filled = open_buckets.pop(key, ([], 0))
            if filled + size > TOGETHER:
                yield names
                names, filled = [], 0
            open_buckets[key] = [*names, name], filled + size
        for names, _ in open_buckets.values():
            yield names

    def _with_lookups(
        self, name: str, total: Tensor | None, factors: Tensor, keep: Tensor | None
    ) -> Tensor:
        """Return a parameter's weighted sum, including that of its look-ups."""
        (use,) = self._lookups.pop(name, (None,))
        if use is None:
            assert total is not None
            return total
        use = use if keep is None else use.without(keep)
        return use.weighted_sum(factors[self._groups[name]], total)

    def weighted_sums(
        self, factors: Tensor, keep: Tensor | None, sizes: Mapping[str, int]
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield each parameter's ``sum_i factors_i gradient_i``, flat or with two dimensions.

        Each use is released as soon as its sum is computed.

        Args:
            factors: Clip factors, shape (groups, u), float64.
            keep: Which units contribute, shape (u,); None if all units do. The other units, whose
                values may be infinite or NaN, contribute exactly zero.
            sizes: Number of entries of each parameter.
        """
        if not self._saw_double:
            factors = rounded_down(factors, torch.float32)  # only once, not for each sum
        small: dict[int, list[str]] = defaultdict(list)
        for name, (use,) in self._outer.items():
            if use.size <= SMALL_OPERANDS:
                small[self._groups[name]].append(name)
        for group, names in small.items():
            outers = [self._outer.pop(name)[0] for name in names]
            outers = outers if keep is None else [use.without(keep) for use in outers]
            for index, total in weighted_sums(outers, factors[group]):
                yield names[index], self._with_lookups(names[index], total, factors, keep)
        for name in list(self._outer):
            (use,) = self._outer.pop(name)
            use = use if keep is None else use.without(keep)
            total = use.weighted_sum(factors[self._groups[name]])
            yield name, self._with_lookups(name, total, factors, keep)
        for name in list(self._lookups):
            yield name, self._with_lookups(name, None, factors, keep)
        while self._joined:
            names, whole = self._joined.pop()
            if keep is not None:
                whole = formed_without(whole, keep)
            joined = formed_weighted_sum(whole, factors[self._groups[names[0]]])
            if len(names) == 1:
                yield names[0], joined
                continue
            # Copies, because a view of a larger tensor would keep all of it alive in grad.
            parts = torch.ops.aten.split_with_sizes_copy(joined, [sizes[name] for name in names])
            yield from zip(names, parts, strict=True)
