"""How the batch flows through a model: which tensors carry it in front, learned from two runs.

A leading dimension of 7 may be seven examples or seven positions; T5's (t, t) bias input at
t = b passes every check of one shape. So the model runs twice, on two and on
three rows of what it was called with, all else equal: a tensor carries the batch where its
leading dimension, and nothing else of its shape, follows. Weights are watched meanwhile: which
module put each to use, and with what input.

What was learned holds for calls of one signature (``signature_of``): they differ in sizes and
values alone. What differs in more (an argument given or not, a mask of another rank, a switch,
positions shared instead of one per example, one token instead of several) may put weights to use
in other ways, and is learned and proved by itself.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from dpft.privacy.clipping.separation.reexecution import (
    batch_size_of,
    leaves_of,
    named_tensors,
    state_preserved,
    take_rows,
)

ROWS = (2, 3)
"""Batch sizes of the two runs; which ones does not matter, only that they differ."""

Shape = tuple[int, ...]
Shapes = dict[str, Shape]


class Status(Enum):
    """What a tensor's shape does when the batch size changes."""

    BATCH = "its leading dimension is the batch"
    ONE = "it has a leading dimension of one, to be broadcast over the batch"
    SHARED = "it does not depend on the batch size"
    SECOND = "its second dimension is the batch"
    ODD = "it depends on the batch size in another way"


@dataclass(frozen=True)
class ModuleFlow:
    """How the batch passes through one module, over all its calls.

    Attributes:
        inputs: Status of each tensor argument, by its place among the arguments.
        outputs: Status of each tensor returned.
    """

    inputs: Mapping[str, Status]
    outputs: Mapping[str, Status]

    @property
    def carries_the_batch_in(self) -> bool:
        """Whether the first tensor argument, a layer's input, carries the batch."""
        return next(iter(self.inputs.values()), Status.SHARED) is Status.BATCH

    def can_run_example_by_example(self, *, widening: bool) -> bool:
        """Whether the module is a function of one example's inputs, giving one example's outputs.

        Args:
            widening: Whether an output of leading dimension one may gain the batch, which is
                well where its users broadcast it.
        """
        entering, leaving = set(self.inputs.values()), set(self.outputs.values())
        carrying = {Status.BATCH, Status.SECOND}
        fine = carrying | {Status.ONE} if widening else carrying
        return (
            bool(entering & carrying)
            and Status.ODD not in entering
            and bool(leaving)
            and leaving <= fine
        )


@dataclass(frozen=True)
class WeightUse:
    """One operation that a model does on one of its weights.

    Attributes:
        name: The weight's name.
        users: The modules whose forward it is in, the innermost first, the root last.
        function: The operation.
        status: Status of the operation's first tensor argument other than the weight.
        rank: How many dimensions that argument has.
    """

    name: str
    users: tuple[nn.Module, ...]
    function: Any
    status: Status
    rank: int

    @property
    def user(self) -> nn.Module:
        """The module that put the weight to use."""
        return self.users[0]


@dataclass(frozen=True)
class Flow:
    """How the batch passes through one model, and which of its weights meet it where.

    Attributes:
        modules: The flow through every module that was called.
        uses: Operations on the watched weights.
        repeaters: Modules whose forward repeats a tensor as often as there are examples.
    """

    modules: Mapping[nn.Module, ModuleFlow]
    uses: Sequence[WeightUse]
    repeaters: Collection[nn.Module] = ()


def learn_flow(
    root: nn.Module,
    forward: Callable[..., Any],
    arguments: tuple[Sequence[Any], Mapping[str, Any]],
    weights: Mapping[str, Tensor],
) -> Flow:
    """Returns how the batch flows through a call of ``root``.

    Args:
        root: The model; random state and gradients are left as they were.
        forward: The model's own forward.
        arguments: Positional and keyword arguments of a call; the first tensor among them
            carries the batch in front.
        weights: Whose uses to report, by name.
    """
    few, more = (_observe(root, forward, take_rows(arguments, rows), weights) for rows in ROWS)
    modules = {m: _module_flow(calls, more.calls.get(m, [])) for m, calls in few.calls.items()}
    same = len(few.uses) == len(more.uses)
    uses = [
        WeightUse(
            name,
            users,
            function,
            _status(shape, more.uses[i][3]) if same else Status.ODD,
            rank=len(shape),
        )
        for i, (name, users, function, shape) in enumerate(few.uses)
    ]
    return Flow(modules, uses, few.repeaters & more.repeaters)


class _Watch(TorchFunctionMode):
    """Notes the modules called and the weights used in one run, with the shapes they met."""

    def __init__(self, root: nn.Module, weights: Mapping[str, Tensor], rows: int) -> None:
        super().__init__()
        self._names = {id(weight): name for name, weight in weights.items()}
        self._running, self._rows = [root], rows
        self.calls: dict[nn.Module, list[tuple[Shapes, Shapes]]] = defaultdict(list)
        self.uses: list[tuple[str, tuple[nn.Module, ...], Any, Shape]] = []
        self.repeaters: set[nn.Module] = set()

    def before(self, module: nn.Module, _: Any) -> None:
        """Notes that a module is called; a hook."""
        self._running.append(module)

    def after(self, module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
        """Notes what it met and gave; a hook."""
        self._running.pop()
        self.calls[module].append((_shapes((args, kwargs)), _shapes(outputs)))

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) or any(
            isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(result)
        ):
            tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            used = dict.fromkeys(id(x) for x in tensors if id(x) in self._names)
            others = [tuple(x.shape) for x in tensors if id(x) not in used] if used else []
            for weight in used:
                users, shape = tuple(reversed(self._running)), others[0] if others else ()
                self.uses.append((self._names[weight], users, func, shape))
        repeats = func is Tensor.repeat and args[0].dim() and len(args[0]) == 1
        if repeats and len(result) == self._rows:
            self.repeaters.add(self._running[-1])
        return result


def _observe(
    root: nn.Module, forward: Callable[..., Any], arguments: Any, weights: Mapping[str, Tensor]
) -> _Watch:
    """Runs the model once, watching modules and weights."""
    watch = _Watch(root, weights, batch_size_of(arguments))
    with ExitStack() as stack:
        stack.enter_context(state_preserved(root))
        stack.enter_context(torch.enable_grad())
        for module in root.modules():
            if module is not root:
                handles = [
                    module.register_forward_pre_hook(watch.before),
                    module.register_forward_hook(watch.after, with_kwargs=True),
                ]
                for handle in handles:
                    stack.callback(handle.remove)
        args, kwargs = arguments
        with watch:
            outputs = forward(*args, **kwargs)
        watch.after(root, args, kwargs, outputs)
    return watch


def _shapes(tree: Any) -> Shapes:
    return {place: tuple(tensor.shape) for place, tensor in named_tensors(tree).items()}


def _module_flow(
    few: Sequence[tuple[Shapes, Shapes]], more: Sequence[tuple[Shapes, Shapes]]
) -> ModuleFlow:
    if len(few) != len(more):
        return ModuleFlow(inputs={"": Status.ODD}, outputs={})
    inputs, outputs = (
        _statuses([(a[side], b[side]) for a, b in zip(few, more, strict=True)]) for side in (0, 1)
    )
    return ModuleFlow(inputs, outputs)


def _statuses(calls: Sequence[tuple[Shapes, Shapes]]) -> dict[str, Status]:
    """Returns each place's status; one that differs from call to call is odd."""
    found: dict[str, Status] = {}
    for few, more in calls:
        for place, shape in few.items():
            status = _status(shape, more.get(place))
            found[place] = status if found.get(place, status) == status else Status.ODD
    return found


def _status(few: Shape, more: Shape | None) -> Status:
    if few == more:
        return Status.ONE if few and few[0] == 1 else Status.SHARED
    if more and few[:1] == ROWS[:1] and more == (ROWS[1], *few[1:]):
        return Status.BATCH
    if more and few[1:2] == ROWS[:1] and more == (few[0], ROWS[1], *few[2:]):
        return Status.SECOND
    return Status.ODD


PLAIN = (type(None), bool, str)


@dataclass(frozen=True)
class Signature:
    """The kind of a call.

    Attributes:
        kind: Places, dtypes and ranks of the tensor arguments, which of them lead with the batch
            size and where they have size one; the other arguments, numbers by their type alone;
            each module's training switch; and the precision.
        precision: What autocast computes in, or None.
        coincidences: Which sizes happen to equal the batch size, though they are not the leading
            one: from such a call it cannot be learned which tensors carry the batch.
    """

    kind: Hashable
    precision: torch.dtype | None
    coincidences: tuple[tuple[bool, ...], ...]

    @property
    def is_ambiguous(self) -> bool:
        """Whether some size equals the batch size by accident."""
        return any(any(sizes) for sizes in self.coincidences)


def signature_of(model: nn.Module, arguments: Any, units: Tensor | None = None) -> Signature:
    """Returns the kind of a call of ``model`` with nested arguments.

    Args:
        model: What is called.
        arguments: Of the call.
        units: Unit of each row. Rows of one unit say nothing of those of several: their calls are
            of another kind.
    """
    count = batch_size_of(arguments)
    places = leaves_of(arguments)
    leaves = tuple((place, _kind(leaf, count)) for place, leaf in places)
    switches = tuple(module.training for module in model.modules())
    sizes = (tuple(leaf.shape[1:]) for _, leaf in places if isinstance(leaf, Tensor))
    coincidences = tuple(tuple(size == count for size in each) for each in sizes)
    precision = _precision(places)
    one_unit = units is not None and len(units) == count and bool((units == units[0]).all())
    return Signature((leaves, switches, precision, one_unit), precision, coincidences)


def coarsest_dtype(model: nn.Module, precision: torch.dtype | None) -> torch.dtype:
    """Returns the coarsest of the dtypes of a model's weights and of what autocast computes in."""
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
    if precision is not None:
        dtypes.add(precision)
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def _precision(places: Any) -> torch.dtype | None:
    """Returns the dtype that autocast computes in, or None."""
    devices = [leaf.device.type for _, leaf in places if isinstance(leaf, Tensor)]
    if not devices or not torch.is_autocast_enabled(devices[0]):
        return None
    return torch.get_autocast_dtype(devices[0])


def _kind(leaf: Any, count: int) -> Hashable:
    if isinstance(leaf, Tensor):
        leads = leaf.dim() > 0 and len(leaf) == count
        return leaf.dtype, leads, tuple(size == 1 for size in leaf.shape)
    if isinstance(leaf, PLAIN):
        return leaf
    return type(leaf).__qualname__
