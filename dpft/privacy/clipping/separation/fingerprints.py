"""Fingerprints of recorded uses: whether weighting the losses scaled each row by its weight.

A proof compares the uses of two backward passes. To hold both would take the memory of all the
layers' inputs and output gradients twice, so of each row two numbers are kept: its norm, and its
projection onto a fixed direction. Both are scaled exactly where the row is.
"""

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from dpft.privacy.clipping.uses import Use

HALF_TOLERANCE = 5e-2
LOST_TO_FLOAT16 = 1e-4
"""Norm of a whole row under which float16, with steps of 6e-8 there, says nothing."""
MIXED = {torch.float64: 1e-9, torch.float32: 1e-5}
"""Most that a row may differ from its scaled self: other rows' share in it."""
MIXED_ELSEWHERE = 1e-3
"""The same in half precision, and where an accelerator adds in any order."""


class Disproved(Exception):
    """What the layers record are not the examples' own gradients; the message says how so."""


@dataclass
class Pass:
    """The uses that one backward pass met, in order."""

    uses: list["Fingerprint"] = field(default_factory=list)

    def note(self, name: str, use: Use) -> None:
        """Keeps a fingerprint of a use."""
        self.uses.append(Fingerprint.of(name, use))

    def finite_rows(self, rows: Tensor) -> Tensor:
        """Returns which of the rows, shape (b,), are finite in every use."""
        each = [tensor.isfinite().all(0) for use in self.uses for tensor in use.rows]
        return torch.stack([rows, *each]).all(0)

    def parameters_with_gradients(self) -> set[str]:
        """Returns the names of parameters to whose gradient some row of a use adds something."""
        return {use.name for use in self.uses if use.smallest_peak_norm > 0}

    def check_scaled(
        self,
        other: "Pass",
        weights: Tensor,
        finite: Tensor,
        *,
        lossy: bool,
    ) -> bool:
        """Compares each use with itself in a pass with weights; False where float16 lost it.

        Args:
            other: The pass with weights.
            weights: Of the finite rows.
            finite: Which rows to compare, shape (b,).
            lossy: Whether anything was computed in float16.

        Raises:
            Disproved: A row that should be scaled by its weight is something else.
        """
        if len(self.uses) != len(other.uses):
            raise Disproved("two backward passes met different uses of its weights")
        for before, after in zip(self.uses, other.uses, strict=True):
            if before.at(finite).becomes(after.at(finite), weights, lossy=lossy):
                continue
            if lossy and before.smallest_peak_norm < LOST_TO_FLOAT16:
                return False
            raise Disproved(
                f"the gradient of {before.name} recorded for one example depends on "
                "another example's loss"
            )
        return True


@dataclass(frozen=True)
class Fingerprint:
    """Enough of a use to see whether each of its rows was scaled.

    Attributes:
        name: Name of the parameter whose use it is.
        dtype: The dtype of the use's tensors.
        rows: For each tensor of the use its rows' norms and projections, shape (2, b).
    """

    name: str
    dtype: torch.dtype
    rows: tuple[Tensor, ...]

    @classmethod
    def of(cls, name: str, use: Use) -> Self:
        """Returns the fingerprint of a use of the parameter called ``name``."""
        tensors = [t for t in vars(use).values() if isinstance(t, Tensor) and t.is_floating_point()]
        return cls(name, tensors[0].dtype, tuple(_norms_and_projections(t) for t in tensors))

    @property
    def smallest_peak_norm(self) -> float:
        """The least peak norm of the use's tensors: that of a tensor is its largest finite row's.

        It is 0 where a whole tensor of the use is 0, so that the use adds nothing to any gradient.
        """
        return min(float(rows[0].nan_to_num(0.0, 0.0).max()) for rows in self.rows)

    def at(self, rows: Tensor) -> Self:
        """Returns the fingerprint of some rows alone; ``rows`` picks them, shape (b,)."""
        return replace(self, rows=tuple(each[:, rows] for each in self.rows))

    def becomes(self, other: "Fingerprint", weights: Tensor, *, lossy: bool) -> bool:
        """Whether ``other`` is the fingerprint of this use with row i scaled by ``weights[i]``.

        Of a product's two tensors backward scales one; so each must be scaled or unchanged, and
        one at least scaled.
        """
        if self.name != other.name or len(self.rows) != len(other.rows):
            return False
        pairs = list(zip(self.rows, other.rows, strict=True))
        scaled = [self._close(mine * weights, theirs, lossy=lossy) for mine, theirs in pairs]
        same = [self._close(mine, theirs, lossy=lossy) for mine, theirs in pairs]
        return any(scaled) and all(a or b for a, b in zip(scaled, same, strict=True))

    def _close(self, expected: Tensor, got: Tensor, *, lossy: bool) -> bool:
        """Whether rows agree, each by its own norm, down to a trace of the largest."""
        if expected.shape[1] == 0:
            return True
        mixed, trace = MIXED.get(self.dtype, MIXED_ELSEWHERE), 1e-6
        if expected.device.type != "cpu":
            mixed = MIXED_ELSEWHERE
        if lossy:
            mixed, trace = HALF_TOLERANCE, 1e-3
        # Below 1e-30 float32 numbers lose digits.
        least = max(trace * float(expected[0].max()), 1e-30)
        return bool(((expected - got).abs() <= mixed * expected[0].clamp(min=least)).all())


def _norms_and_projections(tensor: Tensor) -> Tensor:
    """Returns two numbers a row that are scaled exactly where the row is, shape (2, b)."""
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    width = tensor.shape[-1] if tensor.dim() > 1 else 1
    rows = tensor.reshape(len(tensor), -1, width)
    norms = torch.linalg.vector_norm(rows.flatten(1), dim=1, dtype=dtype)
    projected = (rows @ _direction(rows, 2)).to(torch.float64) @ _direction(rows, 1).double()
    return torch.stack([norms, projected])


def _direction(rows: Tensor, dimension: int) -> Tensor:
    steps = torch.arange(rows.shape[dimension], device=rows.device, dtype=torch.float64)
    return (1.7 * steps).cos().to(rows.dtype)
