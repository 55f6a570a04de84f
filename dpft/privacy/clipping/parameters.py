"""Lists and groups of a model's trainable parameters, with the modules that use them.

Uses, sums and checks refer to a parameter by name, because a sharded model replaces the tensors of
its parameters between and during calls.

>>> model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3))
>>> model[1].weight = model[0].weight
>>> list(Parameters(model).shapes)
['0.weight', '1.bias']
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NoReturn

import torch
from torch import Tensor, nn

from dpft.errors import InputError, RunError


@dataclass(frozen=True)
class Owner:
    """A module that holds a trainable parameter; a tied parameter has several owners.

    Attributes:
        path: Path of the module in the model.
        module: The module.
        attribute: Attribute of the module that holds the parameter.
        name: Name of the parameter in the model: the same for all owners.
    """

    path: str
    module: nn.Module
    attribute: str
    name: str

    @property
    def parameter(self) -> nn.Parameter | None:
        """The parameter that the module currently holds."""
        return self.module._parameters[self.attribute]


class Parameters:
    """The parameters that are trainable when this object is made.

    Attributes:
        owners: All modules that hold a trainable parameter, in the model's order.
        shapes: The shape of each parameter by name, in the model's order.
    """

    def __init__(
        self, model: nn.Module, unsharded: Mapping[str, nn.Parameter] | None = None
    ) -> None:
        """List the trainable parameters.

        Args:
            model: The model.
            unsharded: For a sharded model, the parameters that the model uses while it runs, by
                name.

        Raises:
            InputError: No parameter is trainable, or a trainable parameter is in half precision.
        """
        self._model, self._unsharded = model, unsharded
        self.owners = list(_owners(model))
        current = {o.name: getattr(o.module, o.attribute) for o in reversed(self.owners)}
        self.shapes = {o.name: current[o.name].shape for o in self.owners}
        if not self.shapes:
            raise InputError(
                "the model must have trainable parameters, but none of its parameters requires"
                " grad.",
                key="model",
            )
        for name in self.shapes:
            if current[name].dtype not in (torch.float32, torch.float64):
                raise InputError(
                    f"trainable parameter {name} must be float32 or float64, got "
                    f"{current[name].dtype}. Load the model in float32.",
                    key=name,
                    value=current[name].dtype,
                )
        first = {o.name: o for o in reversed(self.owners)}
        self._first = [(name, first[name].module, first[name].attribute) for name in self.shapes]
        self._tied = [(first[o.name], o) for o in self.owners if first[o.name] is not o]
        self._places = [
            (module, attribute, p.requires_grad, p.shape, p.dtype)
            for module in model.modules()
            for attribute, p in module._parameters.items()
            if p is not None
        ]

    def now(self) -> dict[str, nn.Parameter]:
        """Return the parameters by name, as the model uses them while it runs."""
        if self._unsharded is not None:
            return {name: self._unsharded[name] for name in self.shapes}
        # Read from the modules' tables, because ``getattr`` of a module is slow.
        return {name: module._parameters[attr] for name, module, attr in self._first}  # type: ignore[misc]

    @property
    def device(self) -> torch.device:
        """Device of the first parameter."""
        name, module, attribute = self._first[0]
        first = getattr(module, attribute) if self._unsharded is None else self._unsharded[name]
        device: torch.device = first.device
        return device

    def check_unchanged(self) -> None:
        """Reject a model whose trainable parameters have changed.

        Raises:
            RunError: A parameter was frozen, unfrozen, tied, untied or added, or was replaced by a
                parameter of another shape or dtype.
        """
        for module, attribute, trains, shape, dtype in self._places:
            # The table of a traced module has no `get`.
            p = module._parameters[attribute] if attribute in module._parameters else None  # noqa: SIM401
            if p is None or p.requires_grad is not trains:
                self._reject(module, attribute)
            if trains and (p.shape != shape or p.dtype != dtype):
                self._reject(module, attribute)
        for owner, other in self._tied:
            if owner.parameter is not other.parameter:
                self._reject(other.module, other.attribute)

    def _reject(self, module: nn.Module, attribute: str) -> NoReturn:
        path = next((path for path, m in self._model.named_modules() if m is module), "")
        raise RunError(
            f"{path}.{attribute} was frozen, unfrozen or replaced after the clipper had been made."
            " Make a new clipper for the parameters that are trainable now."
        )

    @contextmanager
    def grads_set_aside(self) -> Iterator[None]:
        """Set every ``grad`` to None inside the block, and restore the gradients afterwards."""
        parameters = list(self.now().values())
        held = [p.grad for p in parameters]
        for p in parameters:
            p.grad = None
        try:
            yield
        finally:
            for p, grad in zip(parameters, held, strict=True):
                p.grad = grad

    def take_grads(self) -> dict[str, Tensor]:
        """Return the gradients that are not None, by name, and set them to None."""
        grads = {}
        for name, p in self.now().items():
            if p.grad is not None:
                grads[name], p.grad = p.grad, None
        return grads


def _owners(model: nn.Module) -> Iterator[Owner]:
    names: dict[nn.Parameter, str] = {}
    for path, module in model.named_modules():
        for attribute, p in module._parameters.items():
            if p is not None and p.requires_grad:
                name = names.setdefault(p, f"{path}.{attribute}" if path else attribute)
                yield Owner(path, module, attribute, name)


def parameter_groups(
    model: nn.Module, *, per_layer: bool, patterns: Sequence[str] | None = None
) -> dict[str, int]:
    """Return the group number, from 0, of each trainable parameter, by name.

    Args:
        model: The model. A tied parameter belongs to the first layer that holds it.
        per_layer: False puts all parameters into group 0.
        patterns: Shell patterns over parameter names, one per group; a parameter belongs to the
            first pattern that matches. None makes each layer a group.

    Raises:
        InputError: A parameter matches no pattern, or a pattern has no parameter.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> parameter_groups(model, per_layer=True)
    {'0.weight': 0, '0.bias': 0, '1.weight': 1, '1.bias': 1}
    >>> list(parameter_groups(model, per_layer=True, patterns=("*.weight", "*")).values())
    [0, 1, 0, 1]
    """
    names = list(dict.fromkeys(owner.name for owner in _owners(model)))
    if not per_layer:
        return dict.fromkeys(names, 0)
    if patterns is not None:
        return _groups_by_pattern(names, patterns)
    layers = [name.rpartition(".")[0] for name in names]
    number = {layer: index for index, layer in enumerate(dict.fromkeys(layers))}
    return {name: number[layer] for name, layer in zip(names, layers, strict=True)}


def _groups_by_pattern(names: Sequence[str], patterns: Sequence[str]) -> dict[str, int]:
    groups: dict[str, int] = {}
    for name in names:
        matches = [index for index, pattern in enumerate(patterns) if fnmatchcase(name, pattern)]
        if not matches:
            raise InputError(
                f"no pattern of `groups` matches the trainable parameter {name}. End the list with"
                " '*', which matches all remaining parameters.",
                key="groups",
                value=name,
            )
        groups[name] = matches[0]
    for index, pattern in enumerate(patterns):
        if index not in groups.values():
            raise InputError(
                f"the pattern {pattern!r} of `groups` matches no trainable parameter that an"
                " earlier pattern does not match. Remove it, or move it to the front.",
                key="groups",
                value=pattern,
            )
    return groups
