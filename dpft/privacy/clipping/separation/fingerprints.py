"""Fingerprints of gradients: a norm and projections, by which those of two passes are compared.

To hold two gradients of a large model beside a graph would take the memory of a third model. Of
each gradient five numbers are kept instead: its norm, and its projections along four directions. A
projection is linear, so that the gradient of all losses has the sum of those of its parts
(``adds_up``); one alone would show little of a gradient that happens to be at right angles to it.
The directions are this process's own: a backward pass that knew them could turn a gradient about
them and leave all numbers as they are (``secret_directions``).
"""

from collections.abc import Mapping, Sequence
from secrets import SystemRandom

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

GRADIENT_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-3}
GRADIENT_ROUNDING_IN_HALF = 0.1
BLOCK = 2**20
"""Numbers of a gradient that stand in float64 at once."""
LEAST_SHARE = 1e-2
"""A parameter's gradient is compared by its own size, but not below this share of the whole."""
DIRECTIONS = 4
Prints = dict[str, Tensor]
"""Fingerprints by parameter."""


def fingerprints_of(gradients: Mapping[str, Tensor]) -> Prints:
    """Returns each gradient's fingerprint by name, shape (5,): its norm and its projections."""
    # Past the modes that a check runs in, each of which would see twenty functions a gradient.
    with torch._C.DisableTorchFunction():
        found = {name: fingerprint_of(gradient) for name, gradient in gradients.items()}
        for name, is_finite in zip(found, are_finite(found), strict=True):
            if not is_finite:
                found[name] = fingerprint_of(gradients[name], precisely=True)
    return found


def fingerprint_of(gradient: Tensor, *, precisely: bool = False) -> Tensor:
    """Returns a gradient's norm and its projections onto secret directions, shape (5,).

    What is not finite is not compared. Where float32 does not hold them though the gradient is
    finite, they are taken precisely, in float64: of some rows at a time, since all would take twice
    the gradient's memory.
    """
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    dense = torch.view_as_real(dense) if dense.is_complex() else dense
    width = dense.shape[-1] if dense.dim() else 1
    rows = dense.reshape(dense.numel() // max(width, 1), width)
    down, across = secret_directions(rows.shape, rows.device)

    def taken(part: Tensor, down: Tensor) -> Tensor:
        dtype = torch.promote_types(part.dtype, torch.float32)
        along = ((part @ across.to(part.dtype)).double() * down).sum(0)
        each = torch.linalg.vector_norm(part, dim=1, dtype=dtype)
        return torch.cat([torch.linalg.vector_norm(each, dtype=along.dtype).view(1), along])

    if not precisely:
        return taken(rows, down)
    height = max(1, BLOCK // max(width, 1))
    parts = zip(rows.split(height), down.split(height), strict=True)
    found = torch.stack([taken(part.double(), place) for part, place in parts])
    return torch.cat([torch.linalg.vector_norm(found[:, 0]).view(1), found[:, 1:].sum(0)])


def are_finite(prints: Mapping[str, Tensor]) -> list[bool]:
    """Returns which fingerprints are finite, by one look at a device."""
    if not prints:
        return []
    device = next(iter(prints.values())).device
    stacked = torch.stack([each.to(device) for each in prints.values()])
    return [bool(each) for each in stacked.isfinite().all(1).tolist()]


def alike(one: Mapping[str, Tensor], other: Mapping[str, Tensor], dtype: torch.dtype) -> bool:
    """Whether gradients are the same but for rounding.

    Those that are not finite are passed; but for half precision, where rounding may overflow, not
    those that are finite beside others whose losses weigh nothing (``one``) and not without them.
    """
    names = [*dict.fromkeys([*one, *other])]
    if not names:
        return True
    device = next(iter((*one.values(), *other.values()))).device
    zero = torch.zeros(1 + DIRECTIONS, dtype=torch.float64, device=device)
    a, b = (
        torch.stack([each.get(name, zero).to(device) for name in names]) for each in (one, other)
    )
    finite = (a.isfinite() & b.isfinite()).all(1, keepdim=True)
    lost = a.isfinite().all(1) & ~b.isfinite().all(1) & (dtype in GRADIENT_ROUNDING)
    a, b = torch.where(finite, a, 0), torch.where(finite, b, 0)
    share = GRADIENT_ROUNDING.get(dtype, GRADIENT_ROUNDING_IN_HALF)
    sizes = torch.maximum(a[:, 0], b[:, 0])
    least = LEAST_SHARE if dtype in GRADIENT_ROUNDING else 1.0
    allowed = share * torch.maximum(sizes, least * sizes.norm()) + 1e-30
    return bool((~lost & ((a - b).abs() <= allowed.unsqueeze(1)).all(1)).all())


def add_prints(total: Prints, prints: Mapping[str, Tensor]) -> None:
    """Adds fingerprints to others; of what is in both the norms are added up, as a bound."""
    for name, each in prints.items():
        total[name] = total[name] + each if name in total else each


def scaled(prints: Mapping[str, Tensor], factor: float) -> Prints:
    """Returns the fingerprints of gradients that are so many times as large."""
    return {name: factor * each for name, each in prints.items()}


def size_of(prints: Mapping[str, Tensor]) -> float:
    """Returns the norm of all gradients together, nan if one is not finite."""
    if not prints:
        return 0.0
    device = next(iter(prints.values())).device
    stacked = torch.stack([each.to(device) for each in prints.values()])
    return float(torch.where(stacked.isfinite().all(), stacked[:, 0].norm(), torch.nan))


def adds_up(
    whole: Mapping[str, Tensor], parts: Sequence[Mapping[str, Tensor]], dtype: torch.dtype
) -> bool:
    """Whether gradients of all losses are the sums of those of parts, finite where those are.

    Their projections are; norms do not add up, and say here how large a difference rounding makes.
    In half precision, where rounding may overflow, what is not finite is passed.
    """
    names = [*dict.fromkeys(name for each in (whole, *parts) for name in each)]
    if not names:
        return True
    device = next(each[names[0]] for each in (whole, *parts) if names[0] in each).device
    zero = torch.zeros(1 + DIRECTIONS, dtype=torch.float64, device=device)
    seen, *addends = (
        torch.stack([each.get(name, zero).to(device) for name in names]) for each in (whole, *parts)
    )
    sums = torch.stack(addends).sum(0)
    are_finite = [each.isfinite().all(1) for each in (seen, sums)]
    if dtype in GRADIENT_ROUNDING and not torch.equal(*are_finite):
        return False
    seen[:, 0] = sums[:, 0]
    both = (are_finite[0] & are_finite[1]).unsqueeze(1)
    one, other = (
        dict(zip(names, torch.where(both, each, 0), strict=True)) for each in (sums, seen)
    )
    return alike(one, other, dtype)


def secret_directions(shape: Sequence[int], device: torch.device) -> list[Tensor]:
    """Returns what to multiply a matrix by from the left and from the right, (n, 4), in float64.

    They are waves of random length, drawn once for this process: a crafted model that knew them
    could change gradients by what their product with these does not show. What they begin with is
    kept, and nobody may write to it: most of a model's sizes are short.
    """
    return [_waves(side, n, device) for side, n in zip(range(2), shape, strict=True)]


def _waves(side: int, n: int, device: torch.device) -> Tensor:
    if n > KEPT:
        return _new_waves(side, n, device)
    beginning = _BEGINNINGS.get((side, device))
    if beginning is None:
        beginning = _new_waves(side, KEPT, device)
        if not isinstance(beginning, FakeTensor):
            _BEGINNINGS[side, device] = beginning
    return beginning[:n]


def _new_waves(side: int, n: int, device: torch.device) -> Tensor:
    # Whichever mode a check runs in: the next one reads it too.
    with torch.inference_mode(False), torch._C.DisableTorchFunction():
        places = torch.arange(n, device=device, dtype=torch.float64)
        return torch.stack([places.mul(step).add(first).cos() for step, first in _WAVES[side]], 1)


_WAVES = [
    [(SystemRandom().uniform(1, 2), SystemRandom().uniform(0, 3)) for _ in range(DIRECTIONS)]
    for _ in range(2)
]
"""Radians from one number to the next, and of the first, of the secret directions of both sides."""
KEPT = 2**12
"""How long a beginning of them is kept, on each device."""
_BEGINNINGS: dict[tuple[int, torch.device], Tensor] = {}
