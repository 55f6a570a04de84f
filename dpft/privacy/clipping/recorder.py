"""The recorder, to which layer rules hand each use of a parameter as the backward pass meets it."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from dpft.errors import RunError
from dpft.privacy.clipping.trainable import TrainableParameters
from dpft.privacy.clipping.uses import Use


class Recorder:
    """Collects uses per parameter, and checks that each carries the batch in front.

    Keyed by the parameter's name and not by module: a tied weight has one gradient, whoever
    computes it.
    """

    def __init__(self, trainable: TrainableParameters) -> None:
        """Starts empty.

        Args:
            trainable: The parameters whose uses are recorded.
        """
        self.trainable = trainable
        self._uses: dict[str, list[Use]] = defaultdict(list)
        self._batch_size = 0
        self.counts: Counter[str] = Counter()
        """How many uses of each parameter the backward pass has met."""
        self.receive: Callable[[str, Use], None] = self.keep
        """What an engine does with each use, in the middle of the backward pass."""
        self.token: Tensor | None = None
        """Inside a region that ``vmap`` maps over the batch, a tensor that it maps; None elsewhere.

        A layer needs it to be mapped itself, whatever its other inputs are."""
        self.looping = False
        """Whether a region is running that takes one example after another."""
        self.anchor: Tensor | None = None
        """In a compiled forward, what the layers' taps pass on (``traced``)."""
        self.room = 0
        """Bytes that a use may hold beside its factors, to save time."""
        self.examples = 0
        """How many examples the model was last called with, for layers that meet one row for all.
        """
        self._looked_up: dict[str, list[Tensor]] = defaultdict(list)

    def enter(self, examples: int) -> None:
        """Notes that the model is called with so many examples; forgets what was looked up."""
        self.examples = examples
        self._looked_up.clear()

    def look_up(self, layer: nn.Module, attribute: str, ids: Tensor) -> None:
        """Notes the rows of a parameter, (b, s), that a layer is about to look up."""
        if not self.in_region:
            self._looked_up[self.trainable.name_at(layer, attribute)].append(ids)

    def looked_up(self, layer: nn.Module, attribute: str) -> Sequence[Tensor]:
        """Returns the rows, (b, s) each, of a layer's parameter looked up in the model's call."""
        return self._looked_up.get(self.trainable.name_at(layer, attribute), ())

    def start(self, batch_size: int) -> None:
        """Begins a backward pass over ``batch_size`` examples; forgets anything left over."""
        self._batch_size = batch_size
        self._uses.clear()
        self.counts.clear()

    def record(self, layer: nn.Module, attribute: str, use: Use) -> None:
        """Takes one use of the parameter that a layer holds in one of its attributes.

        Raises:
            RunError: As ``record_as``.
        """
        self.record_as(self.trainable.name_at(layer, attribute), use)

    def record_as(self, name: str, use: Use) -> None:
        """Takes one use of the parameter called ``name``.

        Raises:
            RunError: The use does not carry the batch dimension, so that its examples' gradients
                cannot be told apart.
        """
        rows = _leading_size(use)
        if self._batch_size == 0:
            raise RunError(
                "backward must be left to the clipper inside its context, got a call of it outside "
                "of accumulate."
            )
        if rows != self._batch_size:
            raise RunError(
                f"parameter {name} was used with a leading dimension of {rows}, "
                f"expected the batch size {self._batch_size}: pass its layer inputs that carry the "
                "batch (for position embeddings: expanded position_ids), or, where a record has "
                "several rows, as in preference losses, name the rows' records as units."
            )
        self.counts[name] += 1
        self.receive(name, use)

    @contextmanager
    def inside(self, token: Tensor | None) -> Iterator[None]:
        """Marks what runs meanwhile as inside a region.

        Args:
            token: A tensor that ``vmap`` maps; None where the region loops over its examples.
        """
        self.token, self.looping = token, token is None
        try:
            yield
        finally:
            self.token, self.looping = None, False

    @property
    def in_region(self) -> bool:
        """Whether a region is running; one within it is part of it."""
        return self.looping or self.token is not None

    def keep(self, name: str, use: Use) -> None:
        """Holds a use until ``take``; the default of ``receive``."""
        self._uses[name].append(use)

    def take(self) -> dict[str, list[Use]]:
        """Returns what was recorded since the last call, by name, and forgets it."""
        taken = dict(self._uses)
        self._uses.clear()
        return taken

    def stop(self) -> None:
        """Ends a backward pass: uses are refused until the next one."""
        self._batch_size = 0


def _leading_size(use: Use) -> int:
    tensors: list[Tensor] = [value for value in vars(use).values() if isinstance(value, Tensor)]
    sizes = {tensor.shape[0] for tensor in tensors}
    return sizes.pop() if len(sizes) == 1 else -1
