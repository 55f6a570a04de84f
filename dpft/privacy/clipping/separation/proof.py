"""Proof on the batch at hand that what the layers record are the examples' own gradients.

Rules and regions are exact if they see what they think they see; a model can still surprise them
(positions that look like examples, rows permuted inside, a layer that computes something else).
So the first batch of each kind of call is run three ways before it is used:

1. the bare model's losses, and the gradient of their sum weighted by random powers of two;
2. the clipped model's losses, which must be the same;
3. its recorded uses with and without those weights: row i must be scaled by weight i, so that it
   depends on loss i alone, and the uses must add up to the bare model's gradient.

Backward is linear, so together these say that row i is the gradient of loss i. Dropout is off
meanwhile: its masks are drawn in another order where modules run example by example.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from dpft.errors import RunError
from dpft.privacy.clipping.uses import Use

EXPONENTS = 8
"""Weights are 2^-4 to 2^3: exact to multiply by, and no overflow."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
HALF_TOLERANCE = 5e-2
LEAST_SHARE = 1e-2
"""A parameter's gradient is compared by its own size, but not below this share of the whole."""
LOST_TO_FLOAT16 = 1e-4
"""Norm of a whole row under which float16, with steps of 6e-8 there, says nothing."""
MIXED = 1e-4
"""Most that a row may differ from its scaled self: other rows' share in it."""

Run = Callable[[Tensor, Callable[[Tensor, Use], None]], Tensor]
"""(weights, receive): forward, then backward of the weighted losses, each use to ``receive``;
returns the losses, (b,), without a graph."""


class Disproved(Exception):
    """What the layers record are not the examples' own gradients; the message says how so."""


@dataclass(frozen=True)
class BareRun:
    """What the bare model gives.

    Attributes:
        losses: Shape (b,).
        weights: What each loss is multiplied by, shape (b,).
        gradients: Of the weighted sum, for each trainable parameter.
        others: What else the losses have a gradient for, which a proof must leave alone.
    """

    losses: Tensor
    weights: Tensor
    gradients: dict[Tensor, Tensor]
    others: Sequence[Tensor]


def bare_run(
    compute_losses: Callable[[], Tensor], names: Mapping[Tensor, str], loss_scale: float
) -> BareRun:
    """Returns losses and weighted gradient of the bare model.

    Raises:
        RunError: The losses depend on a trainable tensor that the clipper does not know.
    """
    losses = compute_losses()
    others = check_leaves(losses, names)
    exponents = torch.randint(EXPONENTS, (len(losses),), device=losses.device) - EXPONENTS // 2
    weights = torch.exp2(exponents.to(losses.dtype))
    found = torch.autograd.grad(
        losses, list(names), grad_outputs=weights * loss_scale, allow_unused=True
    )
    pairs = zip(names, _apart(found), strict=True)
    gradients = {p: torch.zeros_like(p) if g is None else g for p, g in pairs}
    return BareRun(losses.detach(), weights, gradients, others)


def _apart(found: Sequence[Tensor | None]) -> Iterator[Tensor | None]:
    """Yields gradients in memory of their own: autograd may hand out one tensor as two."""
    seen: set[int] = set()
    for gradient in found:
        if gradient is None:
            yield None
            continue
        memory = gradient.untyped_storage()
        owned = memory.nbytes() == gradient.numel() * gradient.element_size()
        yield gradient if owned and memory.data_ptr() not in seen else gradient.clone()
        seen.add(memory.data_ptr())


def check_against(bare: BareRun, run: Run, names: Mapping[Tensor, str]) -> bool:
    """Compares the clipped model's run with the bare one's.

    Args:
        bare: From ``bare_run``; its gradients are used up.
        run: Runs the clipped model; called twice, the same each time. Two runs need less memory
            than two backward passes over one graph.
        names: The trainable parameters.

    Returns:
        Whether anything is proved: False where a value is not finite.

    Raises:
        Disproved: They differ.
    """
    plain: list[_Fingerprint] = []
    weighted: list[_Fingerprint] = []
    sizes = {p: g.norm() for p, g in bare.gradients.items()}

    def note(parameter: Tensor, use: Use) -> None:
        plain.append(_Fingerprint.of(parameter, use))

    def note_and_subtract(parameter: Tensor, use: Use) -> None:
        weighted.append(_Fingerprint.of(parameter, use))
        ones = bare.losses.new_ones(len(bare.losses), dtype=parameter.dtype)
        use.add_weighted_sum(-ones, bare.gradients[parameter])

    with _gradients_kept(bare.others):
        losses = run(torch.ones_like(bare.weights), note)
        run(bare.weights, note_and_subtract)
    if not _all_finite([bare.losses, losses, *sizes.values()]):
        return False
    dtypes = {losses.dtype, *(use.dtype for use in plain)}
    tolerance = max(TOLERANCE.get(dtype, HALF_TOLERANCE) for dtype in dtypes)
    mixed = HALF_TOLERANCE if torch.float16 in dtypes else MIXED
    _check_losses(losses, bare.losses, tolerance)
    if len(plain) != len(weighted):
        raise Disproved("two backward passes over one graph met different uses")
    for before, after in zip(plain, weighted, strict=True):
        if not before.becomes(after, bare.weights, mixed):
            if torch.float16 in dtypes and before.smallest < LOST_TO_FLOAT16:
                return False
            raise Disproved(
                f"the gradient of {names[before.parameter]} recorded for one example depends on "
                "another example's loss"
            )
    _check_rest(bare.gradients, sizes, names, tolerance)
    return True


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts every module into evaluation mode for a while."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def _gradients_kept(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Puts gradients back that a proof's backward passes add to."""
    held = [(tensor, tensor.grad) for tensor in tensors]
    for tensor in tensors:
        tensor.grad = None
    try:
        yield
    finally:
        for tensor, gradient in held:
            tensor.grad = gradient


@dataclass(frozen=True)
class _Fingerprint:
    """Enough of a use to see whether each of its rows was scaled: little is kept.

    Attributes:
        parameter: Whose use it is.
        dtype: Of the use.
        rows: For each tensor of the use its rows' norms and projections, shape (2, b).
    """

    parameter: Tensor
    dtype: torch.dtype
    rows: tuple[Tensor, ...]

    @classmethod
    def of(cls, parameter: Tensor, use: Use) -> "_Fingerprint":
        tensors = [getattr(use, field.name) for field in fields(use)]
        tensors = [t for t in tensors if isinstance(t, Tensor) and t.is_floating_point()]
        return cls(parameter, tensors[0].dtype, tuple(_norms_and_projections(t) for t in tensors))

    def becomes(self, other: "_Fingerprint", weights: Tensor, mixed: float) -> bool:
        """Whether each tensor is the same or scaled by the weights, one at least scaled."""
        if self.parameter is not other.parameter or len(self.rows) != len(other.rows):
            return False
        pairs = list(zip(self.rows, other.rows, strict=True))
        scaled = [_close(mine * weights, theirs, mixed) for mine, theirs in pairs]
        same = [_close(mine, theirs, mixed) for mine, theirs in pairs]
        return any(scaled) and all(a or b for a, b in zip(scaled, same, strict=True))

    @property
    def smallest(self) -> float:
        """The largest norm of a row, of the tensor where that is least."""
        return min(float(rows[0].max()) for rows in self.rows)


def _norms_and_projections(tensor: Tensor) -> Tensor:
    """Returns two numbers a row that are scaled exactly where the row is."""
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    norms = torch.linalg.vector_norm(tensor.flatten(1), dim=1, dtype=dtype)
    rows = tensor.reshape(len(tensor), -1, tensor.shape[-1])
    projected = (rows @ _direction(rows, 2)).to(torch.float64) @ _direction(rows, 1).double()
    return torch.stack([norms, projected])


def _direction(rows: Tensor, dimension: int) -> Tensor:
    steps = torch.arange(rows.shape[dimension], device=rows.device, dtype=torch.float64)
    return (1.7 * steps).cos().to(rows.dtype)


def _close(expected: Tensor, got: Tensor, mixed: float) -> bool:
    # By a row's own norm, but not below a trace of the largest: below it is rounding.
    size = expected[0].clamp(min=1e-3 * float(expected[0].max()))
    return bool(((expected - got).abs() <= mixed * size).all())


def _check_losses(got: Tensor, expected: Tensor, tolerance: float) -> None:
    if not torch.allclose(got, expected, rtol=tolerance, atol=tolerance * 1e-2):
        raise Disproved("its losses are not those of the model itself")


def _check_rest(
    rest: Mapping[Tensor, Tensor],
    sizes: Mapping[Tensor, Tensor],
    names: Mapping[Tensor, str],
    tolerance: float,
) -> None:
    """Checks that nothing is left of the bare model's gradient."""
    whole = torch.stack(list(sizes.values())).norm()
    for parameter, left in rest.items():
        allowed = tolerance * sizes[parameter].clamp(min=LEAST_SHARE * float(whole))
        if not bool(left.norm() <= allowed + torch.finfo(left.dtype).tiny):
            raise Disproved(
                f"what its layers record does not add up to the gradient of {names[parameter]}"
            )


def _all_finite(tensors: list[Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def check_leaves(losses: Tensor, names: Mapping[Tensor, str]) -> list[Tensor]:
    """Returns what else the losses have a gradient for: inputs, such as a caller's embeddings.

    Raises:
        RunError: A parameter is among it, whose gradient would not be clipped.
    """
    nodes, seen, others = [losses.grad_fn], set(), []
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter) and leaf not in names:
            raise RunError(
                f"the losses depend on a trainable parameter of shape {tuple(leaf.shape)} outside "
                "the clipped model, whose gradient would not be clipped; make it a part of the "
                "model or freeze it."
            )
        if leaf is not None and leaf not in names:
            others.append(leaf)
        nodes.extend(following for following, _ in node.next_functions)
    return others
