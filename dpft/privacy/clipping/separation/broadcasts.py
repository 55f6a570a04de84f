"""Broadcasts: layers that meet one row for all examples, and are given a row for each instead.

GPT-2's positions are looked up once, (1, t, d), and added to the texts' (b, t, d). With their ids
expanded to (b, t) the same layer gives (b, t, d), the sum is the same, and the layer's rule sees
each example's gradient: nothing must run example by example. Whether the model takes the b rows as
it took the one is not known from the flow; the proof decides.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.rules import intercepted_function
from dpft.privacy.clipping.separation.flow import Flow, Status, WeightUse
from dpft.privacy.clipping.separation.regions import is_recorded
from dpft.privacy.clipping.trainable import TrainableParameters


@dataclass(frozen=True)
class Broadcasts:
    """Where one row for all examples becomes a row for each.

    Attributes:
        layers: Layers with a rule whose input is expanded to the batch.
        repeaters: Modules whose forward repeats a row over the batch (peft repeats its prompt),
            which must not be done again with what already has a row for each example.
    """

    layers: Collection[nn.Module] = ()
    repeaters: Collection[nn.Module] = ()


def broadcasts_of(flow: Flow, trainable: TrainableParameters) -> Broadcasts:
    """Returns the layers that meet one row for all examples whenever their weights are used."""
    recorded, raw = [], set()
    for use in flow.uses:
        if is_recorded(use, trainable):
            recorded.append(use)
        else:
            raw.add(use.name)
    layers = {use.user for use in recorded if _meets_one_row(use, flow)}
    layers -= {use.user for use in recorded if not _meets_one_row(use, flow)}
    layers = {layer for layer in layers if not raw & set(trainable.own(layer).values())}
    return Broadcasts(layers, flow.repeaters) if layers else Broadcasts()


def _meets_one_row(use: WeightUse, flow: Flow) -> bool:
    """Whether a layer is at work on an input that is expanded by a leading dimension.

    That is a leading dimension of one, or of an embedding the ids of one sequence, shape (t,).
    """
    if isinstance(use.user, nn.Embedding) and use.status is Status.SHARED:
        return use.rank == 1
    if intercepted_function(use.user) is not None:
        return use.status is Status.ONE
    return next(iter(flow.modules[use.user].inputs.values()), None) is Status.ONE


class RepeatedOnce:
    """A module's forward in which what has a row for each example is not repeated over them.

    What else is repeated as often as there are examples would come out in another shape: the graph
    behind the losses is then another one, and its proof fails.
    """

    def __init__(self, forward: Callable[..., Any], recorder: Recorder) -> None:
        """Prepares for a module.

        Args:
            forward: Its own.
            recorder: Which knows the number of examples.
        """
        self._forward = forward
        self._recorder = recorder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module."""
        if not torch.is_grad_enabled() or self._recorder.in_region:
            return self._forward(*args, **kwargs)
        with _NotRepeating(self._recorder):
            return self._forward(*args, **kwargs)


class _NotRepeating(TorchFunctionMode):
    """Leaves out ``rows.repeat(b, 1, …)`` of (b, …) that gradients flow to."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.repeat and not kwargs and not self._recorder.in_region:
            rows, *sizes = args
            if rows.requires_grad and rows.dim() and self._is_over_the_batch(rows, sizes):
                return rows
        return func(*args, **(kwargs or {}))

    def _is_over_the_batch(self, rows: Tensor, sizes: Sequence[Any]) -> bool:
        examples = self._recorder.examples
        flat = tuple(sizes[0]) if isinstance(sizes[0], Sequence) else tuple(sizes)
        return len(rows) == examples and flat == (examples, *[1] * (rows.dim() - 1))
