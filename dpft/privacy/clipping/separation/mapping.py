"""Runs a module once per example, by vmap or a loop, for weights that no layer rule knows.

The weights are expanded to (b, …) without a copy, and the module's own forward is mapped over the
batch by ``torch.vmap``, each example as a batch of one: ordinary autograd then
gives (b, …) gradients, exact whatever the module computes, and weights used without the batch
dimension carry it. Layers with a rule step out of the map and record as ever. Where ``vmap``
cannot run the module (a value read from a tensor), a loop over the examples does.
"""

import logging
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from dpft.errors import RunError
from dpft.privacy.clipping.recorder import Recorder, WholeBatchAttention, expanded
from dpft.privacy.clipping.separation.flow import Status
from dpft.privacy.clipping.separation.reexecution import (
    map_tensors,
    named_tensors,
    random_state_restored_on_failure,
)
from dpft.privacy.clipping.separation.regions import Region

logger = logging.getLogger(__name__)
_logged: set[str] = set()
_said: WeakKeyDictionary[nn.Module, set[Hashable]] = WeakKeyDictionary()
REASONS = {
    "data-dependent control flow": "it reads a value from a tensor",
    ".item()": "it reads a value from a tensor",
    "dynamic shape": "the shape of one of its tensors depends on values",
    "accessing `data`": "it changes a weight as it runs",
    "inplace": "it writes in place into a tensor without the batch",
    "Batching rule not implemented": "one of its operations has no form over examples",
}
"""What is said, by what torch says."""
NOT_ITS_OWN = "mapped over its examples it gives other gradients than its own"

CARRYING = (Status.BATCH, Status.SECOND)


class RegionArguments:
    """The arguments of a region's call, with the tensors that carry the batch set apart.

    Most carry it in front. Of some it is the second dimension: of a time-major model's texts, of a
    recurrent layer's states, of the copies of each token that Gemma 3n keeps.

    Attributes:
        count: How many examples they carry.
        device: Where.
        rows: The tensors that carry the batch, brought to the front.
    """

    def __init__(self, tree: Any, region: Region) -> None:
        self._tree = tree
        tensors = {place: leaf for place, leaf in named_tensors(tree).items() if leaf.dim()}
        status = {place: region.inputs.get(place) for place in tensors}
        known = [place for place in tensors if status[place] in CARRYING]
        first = next(iter(known or tensors), None)
        if first is None:
            raise RunError(
                f"a {type(region.module).__name__} layer, whose {', '.join(region.expanded)} is "
                "trainable, must take an input that carries the batch, got none; freeze it or "
                "choose `engine='loop'`."
            )
        self.count = tensors[first].shape[_axis(status[first])]
        self.device = tensors[first].device
        # What had one row to be broadcast may have b of them behind another region.
        everyones = {Status.SHARED} if region.widened else {Status.SHARED, Status.ONE}
        self._axes = {
            place: _axis(status[place])
            for place, leaf in tensors.items()
            if status[place] not in everyones
            and leaf.shape[_axis(status[place]) :][:1] == (self.count,)
        }
        self.rows: list[Tensor] = [tensors[p].movedim(axis, 0) for p, axis in self._axes.items()]

    def with_rows(self, rows: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with others in the place of ``rows``, the batch in front too."""
        pairs = zip(self._axes.items(), rows, strict=True)
        taken = {place: row.movedim(0, axis) for (place, axis), row in pairs}
        arguments: tuple[tuple[Any, ...], dict[str, Any]] = map_tensors(
            self._tree, lambda place, leaf: taken.get(place, leaf)
        )
        return arguments


def split_tensors(outputs: Any) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
    """Returns the tensors of nested outputs, and what puts others in their places."""
    found = named_tensors(outputs)

    def build(tensors: Sequence[Tensor]) -> Any:
        others = dict(zip(found, tensors, strict=True))
        return map_tensors(outputs, lambda place, _: others[place])

    return list(found.values()), build


def output_axes(tensors: Sequence[Tensor], region: Region) -> list[int]:
    """Returns which dimension of each output carries the batch."""
    learned = list(region.outputs.values())
    if len(learned) != len(tensors):
        return [0] * len(tensors)
    return [_axis(status) for status in learned]


def _axis(status: Status | None) -> int:
    return 1 if status is Status.SECOND else 0


logger = logging.getLogger(__name__)


class _Body(nn.Module):
    """A region's forward, without its hooks, as a module whose parameters can be swapped."""

    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self.run = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


class MappedForward:
    """The forward of a region: the module's own on each example alone, mapped over all of them."""

    def __init__(
        self, region: Region, recorder: Recorder, forward: Callable[..., Any] | None = None
    ) -> None:
        self._region = region
        self._recorder = recorder
        own = partial(type(region.module).forward, region.module)
        self._body = _Body(region.module, forward or own)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module; as it is where no gradient is asked for or a region is around it."""
        if not torch.is_grad_enabled() or self._recorder.in_region:
            return self._body(*args, **kwargs)
        with _keeping_activations(self._region.module):
            return self._run(RegionArguments((args, kwargs), self._region))

    def _run(self, arguments: RegionArguments) -> Any:
        region = self._region
        if not region.loops and not region.failures:
            try:
                with random_state_restored_on_failure(arguments.device):
                    outputs = self._mapped(arguments)
            except (RuntimeError, NotImplementedError) as error:
                region.failures.append(reason_of(error))
                # Not its message, which may tell the records' lengths.
                self._say(f"cannot be mapped over its examples ({type(error).__name__})")
            else:
                self._say(f"is mapped over its examples, since {region.cause.why}")
                return outputs
        reason = region.failures[0] if region.failures else NOT_ITS_OWN
        self._say(
            f"runs one example after another, which is slow, since {region.cause.why}, and "
            f"{reason}; {region.cause.remedy}",
            logging.WARNING,
        )
        return self._looped(arguments)

    def _say(self, predicate: str, level: int = logging.INFO) -> None:
        module, what = self._region.module, predicate.partition(",")[0]
        kind = (type(module), what, frozenset(self._region.inputs))
        say_once(self._region.model or module, kind, f"{type(module).__name__} {predicate}", level)

    def _mapped(self, arguments: RegionArguments) -> Any:
        weights = self._expand(self._region.expanded, arguments.count)
        rebuild: list[Callable[[Sequence[Tensor]], Any]] = []
        axes: list[int] = []

        def one(token: Tensor, own: dict[str, Tensor], rows: list[Tensor]) -> list[Tensor]:
            with self._recorder.inside(token), WholeBatchAttention(token):
                args, kwargs = arguments.with_rows([row.unsqueeze(0) for row in rows])
                outputs = functional_call(self._body, own, args, dict(kwargs), tie_weights=False)
            tensors, build = split_tensors(outputs)
            axes[:] = output_axes(tensors, self._region)
            rebuild[:] = [build]
            return [t.movedim(axis, 0) for t, axis in zip(tensors, axes, strict=True)]

        token = torch.zeros(arguments.count, device=arguments.device)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            stacked = torch.vmap(one, randomness="different")(token, weights, arguments.rows)
        joined = [self._joined(tensor) for tensor in stacked]
        return rebuild[0]([t.movedim(0, axis) for t, axis in zip(joined, axes, strict=True)])

    def _looped(self, arguments: RegionArguments) -> Any:
        """Runs example after example, with every trainable weight of the subtree expanded."""
        names = self._recorder.trainable.within(self._region.module)
        every = self._expand(names, arguments.count)
        parts: list[list[Tensor]] = []
        with self._recorder.inside(None):
            for row in range(arguments.count):
                args, kwargs = arguments.with_rows([r[row : row + 1] for r in arguments.rows])
                own = {name: values[row] for name, values in every.items()}
                outputs = functional_call(self._body, own, args, dict(kwargs), tie_weights=False)
                tensors, build = split_tensors(outputs)
                parts.append(tensors)
        axes = output_axes(parts[0], self._region)
        joined = zip(zip(*parts, strict=True), axes, strict=True)
        return build([torch.cat(rows, axis) for rows, axis in joined])

    def _expand(self, names: Mapping[str, str], count: int) -> dict[str, Tensor]:
        """Returns weights as (count, …) under their paths in the body; a tied one is one tensor.

        Args:
            names: What the weights are called in the model, by their paths in the region.
            count: The batch size.
        """
        known: dict[str, Tensor] = {}
        for path, name in names.items():
            if name not in known:
                owner, _, own = path.rpartition(".")
                # A caller's functional_call may have put a plain tensor in its place.
                weight = getattr(self._region.module.get_submodule(owner), own)
                if not isinstance(weight, nn.Parameter):
                    continue
                known[name] = expanded(weight, count, partial(self._recorder.record_as, name))
        return {f"module.{path}": known[name] for path, name in names.items() if name in known}

    def _joined(self, stacked: Tensor) -> Tensor:
        """Returns (b, …) from (b, 1, …)."""
        if stacked.dim() < 2 or stacked.shape[1] != 1:
            raise RunError(
                f"a {type(self._region.module).__name__} layer must give outputs that carry the "
                f"batch in front, got {tuple(stacked.shape[1:])} for one example; choose "
                "`engine='loop'`."
            )
        return stacked.flatten(0, 1)


@contextmanager
def _keeping_activations(module: nn.Module) -> Iterator[None]:
    """Turns off gradient checkpointing inside a region: recomputing would happen outside of it."""
    switched = [m for m in module.modules() if vars(m).get("gradient_checkpointing") is True]
    for layer in switched:
        vars(layer)["gradient_checkpointing"] = False
    try:
        yield
    finally:
        for layer in switched:
            vars(layer)["gradient_checkpointing"] = True


class RepeatedOnce:
    """A module's forward in which what has a row for each example is not repeated over them.

    What else is repeated as often as there are examples would come out in another shape: the graph
    behind the losses is then another one, and its proof fails.
    """

    def __init__(self, forward: Callable[..., Any], recorder: Recorder) -> None:
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


def reason_of(error: BaseException) -> str:
    """Returns in words why a module cannot be mapped over its examples."""
    message = str(error)
    return next(
        (words for sign, words in REASONS.items() if sign in message),
        "it does what cannot be mapped over examples",
    )


def say_once(model: nn.Module, kind: Hashable, message: str, level: int) -> None:
    """Logs a message of a model, the first time that one of its kind is given."""
    said = _said.setdefault(model, set())
    if kind not in said:
        said.add(kind)
        logger.log(level, "clipping: %s", message)


def log_once(message: str) -> None:
    """Logs a message of the clipper, the first time that it is given."""
    if message not in _logged:
        _logged.add(message)
        logger.info("clipping: %s", message)
