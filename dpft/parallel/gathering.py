"""What a model in shards is saved from: its parameters whole, one group of them at a time.

While a model is saved, its parameters are replaced by ones that have their shapes and no values,
``Unread``; whoever writes one to a file, by ``contiguous``, gets its values then. So a writer that
goes file by file, as ``save_pretrained`` does, holds one file's tensors and one group's.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from dpft.parallel.shards import ShardedModel


class Unread(Tensor):
    """A parameter without values, which ``contiguous`` and its like read; a copy each time."""

    _is_param = True  # What torch takes for a parameter.
    read: Callable[[], Tensor]

    def __new__(cls, like: Tensor, read: Callable[[], Tensor]) -> "Unread":
        """Returns a stand-in of a parameter's shape and type."""
        empty = torch.empty(like.shape, dtype=like.dtype, device="meta")
        made = cast(Unread, empty.as_subclass(cls).requires_grad_(like.requires_grad))
        made.read = read
        return made

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Reads where values are asked for; whatever else torch does sees no values."""
        if func is Tensor.detach:
            return args[0]
        if func in READING and isinstance(args[0], Unread):
            return func(args[0].read(), *args[1:], **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def whole_reader(shards: ShardedModel) -> Callable[[Tensor], Tensor]:
    """Returns what reads all of a parameter, on the CPU; whatever else it is given it returns.

    One group of parameters is held at a time. The other ranks serve it: inside ``ranks.settled()``.
    """
    names: dict[Tensor, str] = {p: name for name, p in shards.model.named_parameters()}
    group: dict[str, Tensor] = {}

    def read(parameter: Tensor) -> Tensor:
        name = names.get(parameter)
        if name is None:
            return parameter
        if name not in group:
            group.clear()
            group.update(shards.group_of(name))
        return group[name]

    return read


READING = frozenset({Tensor.contiguous, Tensor.clone, Tensor.cpu, Tensor.to})
"""What asks a parameter for its values."""


@contextmanager
def gathered(shards: ShardedModel, *, held: Callable[[nn.Parameter], bool]) -> Iterator[None]:
    """Lets one rank save a model, which the others serve: inside ``ranks.settled()``.

    Args:
        shards: The model; its parameters are as they were afterwards.
        held: Which parameters are to be real in the meantime, in the processor's memory.
    """
    places = [
        (module, attribute, parameter)
        for module in shards.model.modules()
        for attribute, parameter in module._parameters.items()
        if parameter is not None
    ]
    names = {parameter: name for name, parameter in shards.model.named_parameters()}
    group: dict[str, Tensor] = {}

    def values(name: str) -> Tensor:
        if name not in group:
            group.clear()
            group.update(shards.group_of(name))
            replace()
        return group[name]

    stand_ins: dict[Tensor, Tensor] = {}

    def replace() -> None:
        for module, attribute, parameter in places:
            if parameter in stand_ins:
                module._parameters[attribute] = stand_ins[parameter]  # type: ignore[assignment]

    for parameter, name in names.items():
        stand_ins[parameter] = (
            nn.Parameter(values(name).clone(), requires_grad=parameter.requires_grad)
            if held(parameter)
            else Unread(parameter, lambda name=name: values(name))  # type: ignore[misc]
        )
    replace()
    try:
        yield
    finally:
        for module, attribute, parameter in places:
            module._parameters[attribute] = parameter
