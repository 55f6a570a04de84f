"""The cost of a squared norm: a deterministic model of operations and bytes, from shapes alone.

Never from timings or from data: two runs of one configuration make the same choices, and a
choice tells nothing of a record. The constants were measured once, on one CPU core (GEMM rate;
large freshly mapped blocks written once and read twice), and are fixed here.

Notation: b examples, t positions, a weight of (rows, columns). Book-keeping spends
``2 b t rows columns`` operations on the weighted contraction whatever it does. On top of it

- a ghost norm costs ``2 b t^2 (rows + columns)`` operations (Li et al. 2022, section 4);
- an instantiated gradient that is kept replaces the contraction by a weighted sum: bytes only;
- one that is not kept costs a contraction's operations again, in blocks.
"""

from dataclasses import dataclass

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
