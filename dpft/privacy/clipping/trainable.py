"""The trainable parameters of one model, by name, and the units whose gradients are added up.

What is recorded, summed and checked of a parameter goes by its name, and the parameter itself is
looked up when it is needed: a sharded model puts other tensors in the place of its parameters
between two calls, and during one.

>>> model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3))
>>> model[1].weight = model[0].weight
>>> trainable = TrainableParameters(model)
>>> trainable.names
('0.weight', '1.bias')
>>> trainable.name_at(model[1], "weight")
'0.weight'
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from dpft.devices import add_rows, moved
from dpft.errors import InputError

Place = tuple[nn.Module, str]
"""A module and its attribute that holds a parameter."""


class TrainableParameters:
    """The names of what trains in one model, and the parameters that bear them at the moment.

    A tied parameter has one name, that of the first module that holds it, whichever of its places
    it is used at.
    """

    def __init__(
        self, model: nn.Module, unsharded: Mapping[str, nn.Parameter] | None = None
    ) -> None:
        """Takes those that require grad now.

        Args:
            model: Whose.
            unsharded: Of a model whose places hold shards, what they hold while it runs, by name.
        """
        self._model, self._unsharded = model, unsharded
        self._places, found = _survey(model)
        self._shapes = {name: parameter.shape for name, parameter in found.items()}
        self._own: dict[nn.Module, dict[str, str]] = defaultdict(dict)
        self._first: dict[str, Place] = {}
        for (module, attribute), name in self._places.items():
            self._own[module][attribute] = name
            self._first.setdefault(name, (module, attribute))

    @property
    def names(self) -> tuple[str, ...]:
        """The names, each once, in the order of the model."""
        return tuple(self._first)

    @property
    def shared(self) -> set[str]:
        """The names of the parameters that are held at several places."""
        return {name for name, count in Counter(self._places.values()).items() if count > 1}

    @property
    def device(self) -> torch.device:
        """The device of the first parameter."""
        return next(iter(self.now().values())).device

    def now(self) -> dict[str, nn.Parameter]:
        """Returns the parameters that bear the names where the model runs.

        Those of a sharded model are whole in shape alone: their numbers are there while it runs.
        """
        if self._unsharded is not None:
            return {name: self._unsharded[name] for name in self._first}
        return {name: getattr(*place) for name, place in self._first.items()}

    def name_at(self, module: nn.Module, attribute: str) -> str:
        """Returns the name of the parameter that a module holds in one of its attributes."""
        return self._places[module, attribute]

    def own(self, module: nn.Module) -> Mapping[str, str]:
        """Returns the names of what a module holds itself, by its attributes."""
        return self._own.get(module, {})

    def within(self, module: nn.Module) -> dict[str, str]:
        """Returns the names of what a module and those in it hold, by their paths in the module."""
        return {
            f"{path}.{attribute}" if path else attribute: name
            for path, inner in module.named_modules()
            for attribute, name in self.own(inner).items()
        }

    def owners(self, name: str) -> Sequence[nn.Module]:
        """Returns the modules that hold a parameter."""
        return [module for (module, _), held in self._places.items() if held == name]

    def first_changed(self) -> str | None:
        """Returns the name of a parameter that is not as it was, or None where all are.

        It was frozen or unfrozen, tied or untied, taken away, or replaced by one of another shape
        or dtype. One that another tensor of its shape took the place of is what it was: all that
        is kept of it goes by its name.
        """
        places, parameters = _survey(self._model)
        for place in {**places, **self._places}:
            if places.get(place) != self._places.get(place):
                return places.get(place, self._places.get(place))
        for name, parameter in parameters.items():
            if parameter.shape != self._shapes[name] or not is_summable(parameter):
                return name
        return None


def is_summable(parameter: nn.Parameter) -> bool:
    """Whether a parameter's gradient has the precision that clipped sums need."""
    return parameter.dtype in (torch.float32, torch.float64)


def _survey(model: nn.Module) -> tuple[dict[Place, str], dict[str, nn.Parameter]]:
    """Returns the name of what trains at each place, and the parameters by name."""
    places: dict[Place, str] = {}
    names: dict[nn.Parameter, str] = {}
    for path, module in model.named_modules():
        for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter.requires_grad:
                full = f"{path}.{attribute}" if path else attribute
                places[module, attribute] = names.setdefault(parameter, full)
    return places, {name: parameter for parameter, name in names.items()}


def parameter_groups(
    model: nn.Module, *, per_layer: bool, patterns: Sequence[str] | None = None
) -> dict[str, int]:
    """Returns the group number, from 0, of every trainable parameter, by its name.

    Args:
        model: Each parameter counts once, under the name of the first layer that owns it.
        per_layer: False puts everything in group 0.
        patterns: Shell patterns over parameter names, one for each group; a parameter is in the
            first that fits. None makes one group of each layer that owns parameters.

    Raises:
        InputError: A parameter fits no pattern, or a pattern no parameter.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> parameter_groups(model, per_layer=True)
    {'0.weight': 0, '0.bias': 0, '1.weight': 1, '1.bias': 1}
    >>> list(parameter_groups(model, per_layer=True, patterns=("*.weight", "*")).values())
    [0, 1, 0, 1]
    """
    names = TrainableParameters(model).names
    if not per_layer:
        return dict.fromkeys(names, 0)
    if patterns is not None:
        return _by_pattern(names, patterns)
    owners = [name.rpartition(".")[0] for name in names]
    number = {owner: index for index, owner in enumerate(dict.fromkeys(owners))}
    return {name: number[owner] for name, owner in zip(names, owners, strict=True)}


def _by_pattern(names: Sequence[str], patterns: Sequence[str]) -> dict[str, int]:
    groups: dict[str, int] = {}
    for name in names:
        fitting = [index for index, pattern in enumerate(patterns) if fnmatchcase(name, pattern)]
        if not fitting:
            raise InputError(
                f"`groups` must have a pattern for every trainable parameter, got none for "
                f"{name}; end the list with '*'."
            )
        groups[name] = fitting[0]
    for index, pattern in enumerate(patterns):
        if index not in groups.values():
            raise InputError(
                f"`groups` must have a trainable parameter for every pattern, got none for "
                f"{pattern!r}; drop it, or put it before the pattern that takes its parameters."
            )
    return groups


@dataclass(frozen=True)
class Units:
    """Which rows of a batch belong to which privacy unit.

    Attributes:
        index: Unit of each row, 0 to count - 1, shape (b,).
        position: Place of each row among its unit's rows, shape (b,).
        count: Number of units.
        longest: Most rows that a unit has.
    """

    index: Tensor
    position: Tensor
    count: int
    longest: int

    @classmethod
    def of(cls, units: Tensor) -> "Units":
        """Returns the grouping of ``units``, shape (b,), in the order of ``torch.unique``."""
        # On the host, so that a device is looked at once.
        labels, index = torch.unique(units.cpu(), return_inverse=True)
        same_before = torch.tril(index[:, None] == index[None, :], diagonal=-1)
        position = same_before.sum(1)
        longest = int(position.max()) + 1
        index, position = (moved(each, units.device) for each in (index, position))
        return cls(index=index, position=position, count=len(labels), longest=longest)

    def concatenate(self, rows: Tensor) -> Tensor:
        """Returns (count, longest * t, …) from (b, t, …): a unit's rows end to end, zero padded."""
        grouped = rows.new_zeros(self.count, self.longest, *rows.shape[1:])
        grouped[self.index, self.position] = rows
        return grouped.flatten(1, 2)

    def all_finite(self, finite: Tensor) -> Tensor:
        """Returns whether all losses of each unit are finite, shape (count,).

        Args:
            finite: Of each row's loss, or of each unit's.
        """
        if len(finite) != len(self.index):
            return finite
        return self.sum((~finite).int()) == 0

    def sum(self, rows: Tensor) -> Tensor:
        """Returns (count, …) from (b, …): each unit's rows added up."""
        return add_rows(rows.new_zeros(self.count, *rows.shape[1:]), self.index, rows)


@dataclass(frozen=True)
class Shares:
    """The unit of each loss and of each row of a batch, numbered from 0.

    Attributes:
        losses: Shape (losses,).
        rows: Shape (rows,).
        count: Number of units.
    """

    losses: Tensor
    rows: Tensor
    count: int

    @classmethod
    def of(cls, units: Tensor | None, losses: Tensor) -> "Shares":
        """Returns the shares of losses that are one of each row, or one of each unit.

        Args:
            units: Unit of each row, in any numbers; None where each row is its own.
            losses: In the order of the rows, or of ``torch.unique(units)``.
        """
        if units is None:
            each = torch.arange(len(losses), device=losses.device)
            return cls(each, each, len(losses))
        labels, index = torch.unique(units.to(losses.device), return_inverse=True)
        by_row = len(losses) == len(units)
        each = torch.arange(len(labels), device=losses.device)
        return cls(index if by_row else each, index, len(labels))

    def all_of_unit(self, mask: Tensor) -> Tensor:
        """Returns whether a mask over the losses is True of all losses of each unit, (units,)."""
        lacking = torch.zeros(self.count, dtype=torch.int64, device=mask.device)
        return lacking.index_add_(0, self.losses, (~mask).long()) == 0
