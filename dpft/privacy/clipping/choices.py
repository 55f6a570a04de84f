"""What may be chosen of a clipper, and what engines choose by shapes alone; without a tensor.

It stands apart from the engines and the styles because a configuration is checked before torch is
imported; whatever makes an engine or a style checks here as well.

Per-example gradients of a product are taken as ghost norms or instantiated, whichever a fixed cost
model calls cheaper. It never reads timings or data: two runs of one configuration make the same
choices, and a choice tells nothing of a record. The constants were measured once, on one CPU core
(GEMM rate; large freshly mapped blocks written once and read twice), and are fixed here.

Notation: b examples, t positions, a weight of (rows, columns). Book-keeping spends
``2 b t rows columns`` operations on the weighted contraction whatever it does. On top of it

- a ghost norm costs ``2 b t^2 (rows + columns)`` operations (Li et al. 2022, section 4);
- an instantiated gradient that is kept replaces the contraction by a weighted sum: bytes only;
- one that is not kept costs a contraction's operations again, in blocks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dpft.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn


DEFAULT_MEMORY_MB = 256
"""Memory for instantiated gradients kept until the factors are known."""
OPERATIONS_PER_SECOND = 1.1e11
SECONDS_PER_KEPT_BYTE = 7e-10
SECONDS_PER_BYTE_AT_HAND = 1.5e-10
AT_HAND = 2**25
"""Bytes up to which a block comes from memory that glibc holds, without new pages of the system."""
SECONDS_PER_BLOCK_BYTE = 2e-10
BLOCK_BYTES = 2**24
"""Largest block of instantiated gradients that is not kept; small enough for an allocator to
hand out the same memory again."""
FLOAT_BYTES = 4
HALF_STEPS = 192
"""Positions from which only the upper part of the symmetric ghost matrices is computed."""
HALF_BANDS = 4
HALF_SHARE = (HALF_BANDS + 1) / (2 * HALF_BANDS)


@dataclass(frozen=True)
class ProductShape:
    """The shapes of one use of a matrix product's weight, all of them public."""

    examples: int
    steps: int
    rows: int
    columns: int

    @property
    def instantiated_bytes(self) -> int:
        """Bytes of the per-example gradients, (b, rows, columns)."""
        return self.examples * self.rows * self.columns * FLOAT_BYTES

    @property
    def factored_bytes(self) -> int:
        """Bytes of input and output gradient, (b, t, rows) and (b, t, columns)."""
        return self.examples * self.steps * (self.rows + self.columns) * FLOAT_BYTES

    @property
    def ghost_seconds(self) -> float:
        """Seconds that the ghost norm adds to the contraction."""
        share = HALF_SHARE if self.steps >= HALF_STEPS else 1.0
        operations = 2 * self.examples * self.steps**2 * (self.rows + self.columns)
        return share * operations / OPERATIONS_PER_SECOND

    @property
    def kept_seconds(self) -> float:
        """Seconds that instantiating and keeping takes beyond the contraction that it replaces."""
        size = self.instantiated_bytes
        return size * (SECONDS_PER_BYTE_AT_HAND if size <= AT_HAND else SECONDS_PER_KEPT_BYTE)

    @property
    def block_seconds(self) -> float:
        """Seconds that instantiating for the norm alone adds to the contraction."""
        operations = 2 * self.examples * self.steps * self.rows * self.columns
        traffic = self.instantiated_bytes * SECONDS_PER_BLOCK_BYTE
        return operations / OPERATIONS_PER_SECOND + traffic


@dataclass(frozen=True)
class PatchShape(ProductShape):
    """The shapes of one use of a convolution's weight, whose patches are made from its inputs."""

    held_numbers: int
    """Numbers of inputs and output gradients."""

    @property
    def factored_bytes(self) -> int:
        """Bytes of inputs and output gradients; patches are not kept."""
        return self.held_numbers * FLOAT_BYTES


def ghost_is_cheaper(shape: ProductShape) -> bool:
    """Whether a norm whose gradients are not kept is taken without instantiating them."""
    return shape.ghost_seconds <= shape.block_seconds


def instantiated_is_smaller(shape: ProductShape) -> bool:
    """Whether per-example gradients take no more memory than what they are formed from."""
    return shape.instantiated_bytes <= shape.factored_bytes


def keeping_is_cheaper(shape: ProductShape, memory: int) -> bool:
    """Whether to instantiate at once and keep, with ``memory`` bytes left for it."""
    if instantiated_is_smaller(shape):
        return True
    cheapest = min(shape.ghost_seconds, shape.block_seconds)
    return shape.instantiated_bytes <= memory and shape.kept_seconds < cheapest


def examples_per_block(shape: ProductShape) -> int:
    """Returns how many examples' gradients to instantiate at a time."""
    return max(1, BLOCK_BYTES * shape.examples // max(1, shape.instantiated_bytes))


ENGINE_NAMES = ("book_keeping", "two_pass", "instantiate", "loop")
STYLE_NAMES = ("flat", "automatic", "automatic_v", "per_layer")
NORM_RANGE = (1e-10, 1e10)
"""Clipping norms whose squares, factors and noise float32 can hold."""
LOSS_SCALES = (1.0, 2.0**24)
"""Scales that lift float16 gradients without taking float32 sums out of range."""
LossScale = float | Callable[[], float]
"""A loss scale, or what says the one of the next micro-batch: a number that is public then."""


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
