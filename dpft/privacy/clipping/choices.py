"""What may be chosen of a clipper, by name and by number, without a tensor.

It stands apart from the engines and the styles because a configuration is checked before torch is
imported; whatever makes an engine or a style checks here as well.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dpft.errors import InputError
from dpft.privacy.clipping.costs import DEFAULT_MEMORY_MB

if TYPE_CHECKING:
    from torch import Tensor, nn

ENGINE_NAMES = ("book_keeping", "two_pass", "instantiate", "loop")
STYLE_NAMES = ("flat", "automatic", "automatic_v", "per_layer")
NORM_RANGE = (1e-10, 1e10)
"""Clipping norms whose squares, factors and noise float32 can hold."""
LOSS_SCALES = (1.0, 2.0**24)
"""Scales that lift float16 gradients without taking float32 sums out of range."""
LossScale = float | Callable[[], float]
"""A loss scale, or what says the one of the next micro-batch: a number that is public then."""


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """How forwards of a model are compiled, once they are proved as they are."""

    backend: str = "inductor"
    """Of ``torch.compile``."""
    takes: Callable[[tuple[int, ...]], bool] = lambda shape: True
    """Whether batches whose first tensor has this shape are compiled; each shape is by itself."""


class Shards(Protocol):
    """What a clipper must know of a model whose parameters are shards but while it runs."""

    @property
    def unsharded(self) -> "Mapping[str, nn.Parameter]":
        """What each parameter is while it runs, by name: the same tensor each time."""

    def new_sums(self) -> "Sums | None":
        """Returns what adds up a step's micro-batches; None where ``grad`` does, as ever."""


class Sums(Protocol):
    """Adds micro-batches' clipped sums to a step's, by parameter."""

    def add(self, name: str, total: "Tensor | None", part: "Tensor") -> "Tensor | None":
        """Returns the total to which a part is added; None where it is kept elsewhere.

        Args:
            name: Of the parameter.
            total: What was returned for the part before; None for nothing.
            part: Of the parameter's shape; it becomes the sums' own.
        """

    def flush(self) -> None:
        """Carries out the additions that wait."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What changes an engine's speed, memory and rounding, never what it computes."""

    memory_mb: int = DEFAULT_MEMORY_MB
    """For instantiated gradients that are kept until the factors are known."""
    loss_scale: LossScale = 1.0
    """The backward pass runs on losses times this; norms and sums are of the losses themselves."""
    compilation: Compilation | None = None
    """None: the model runs as it is."""
    shards: "Shards | None" = None
    """Of a sharded model; None: it is whole."""

    def __post_init__(self) -> None:
        if self.memory_mb < 0:
            raise InputError(f"`memory_mb` must not be negative, got {self.memory_mb}.")
        check_loss_scale(self.scale)

    @property
    def scale(self) -> float:
        """The loss scale as it is now."""
        return self.loss_scale() if callable(self.loss_scale) else self.loss_scale


def check_loss_scale(loss_scale: float) -> None:
    """Refuses a loss scale whose products float32 might not hold.

    Raises:
        InputError: It is out of range, or not a number.
    """
    least, most = LOSS_SCALES
    if not least <= loss_scale <= most:
        raise InputError(
            f"`loss_scale` must be from {least:g} to {most:g} (2^24), got {loss_scale}."
        )


def check_engine_name(name: str) -> None:
    """Refuses a name that is no engine's.

    Raises:
        InputError: No such engine.
    """
    if name != "auto" and name not in ENGINE_NAMES:
        known = ", ".join(ENGINE_NAMES)
        raise InputError(f"`engine` must be one of auto, {known}, got {name!r}.")


def check_style_name(name: str) -> None:
    """Refuses a name that is no style's.

    Raises:
        InputError: No such style.
    """
    if name not in STYLE_NAMES:
        known = ", ".join(STYLE_NAMES)
        raise InputError(f"`clipping` must be one of {known}, got {name!r}.")


def check_max_grad_norm(max_grad_norm: float) -> None:
    """Refuses a clipping norm that float32 might not bear.

    Raises:
        InputError: It is out of range, or not a number.
    """
    least, most = NORM_RANGE
    if not least <= max_grad_norm <= most:
        raise InputError(
            f"`max_grad_norm` must be positive and finite, from {least:g} to {most:g}, "
            f"got {max_grad_norm}."
        )
