"""Options of a clipper and checks of their values; does not import torch.

A configuration is validated before torch is imported, so names and ranges are checked only here.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from dpft.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

LossFunction = Callable[[Any, Any], "Tensor"]
"""Function (model, batch of b rows) -> per-example losses, shape (b,); each loss depends only on
its row."""
LossScale = float | Callable[[], float]
"""A loss scale, or a function that returns the (public) scale of the next micro-batch."""

ENGINE_NAMES = ("book_keeping", "rows")
STYLE_NAMES = ("flat", "automatic", "automatic_v", "per_layer")
NORM_RANGE = (1e-10, 1e10)
"""Range of clipping norms whose squares, factors and noise float32 can represent."""
LOSS_SCALES = (1.0, 2.0**24)
"""Range of loss scales that lift float16 gradients and keep float32 sums in range."""


class Sums(Protocol):
    """Object that adds the clipped sums of micro-batches, by parameter."""

    def add(self, name: str, total: "Tensor | None", part: "Tensor") -> "Tensor | None":
        """Return the total with a part added, or None if the total is stored elsewhere.

        Args:
            name: Name of the parameter.
            total: The sum of the parts so far; None for the first part.
            part: Tensor of the parameter's shape, which the sums may overwrite.
        """

    def flush(self) -> None:
        """Carry out pending additions."""


class Shards(Protocol):
    """A model whose parameters are sharded, except while it runs."""

    @property
    def unsharded(self) -> "Mapping[str, nn.Parameter]":
        """Parameters by name that the model uses while it runs: the same tensors every time."""

    def new_sums(self) -> Sums | None:
        """Return the object that adds up micro-batches; None if ``grad`` of ``unsharded`` does."""


def check_loss_scale(loss_scale: float) -> None:
    """Reject a loss scale whose products float32 might not represent.

    Raises:
        InputError: The scale is out of range, or not a number.
    """
    least, most = LOSS_SCALES
    if not least <= loss_scale <= most:
        raise InputError(
            f"`loss_scale` must be from {least:g} to {most:g} (2^24), got {loss_scale}.",
            key="loss_scale",
            value=loss_scale,
        )


def check_engine_name(name: str) -> None:
    """Reject an unknown engine.

    Raises:
        InputError: No engine has this name.
    """
    if name != "auto" and name not in ENGINE_NAMES:
        names = ", ".join(ENGINE_NAMES)
        raise InputError(
            f"`engine` must be one of auto, {names}, got {name!r}.", key="engine", value=name
        )


def check_style_name(name: str) -> None:
    """Reject an unknown clipping style.

    Raises:
        InputError: No style has this name.
    """
    if name not in STYLE_NAMES:
        names = ", ".join(STYLE_NAMES)
        raise InputError(
            f"`clipping` must be one of {names}, got {name!r}.", key="clipping", value=name
        )


def check_max_grad_norm(max_grad_norm: float) -> None:
    """Reject a clipping norm that float32 might not represent.

    Raises:
        InputError: The norm is out of range, or not a number.
    """
    least, most = NORM_RANGE
    if not least <= max_grad_norm <= most:
        raise InputError(
            f"`max_grad_norm` must be positive and finite, from {least:g} to {most:g}, "
            f"got {max_grad_norm}.",
            key="max_grad_norm",
            value=max_grad_norm,
        )
