"""Groups of per-layer clipping: a partition of the trainable parameters, a tied one in one group.

>>> from torch import nn
>>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
>>> parameter_groups(model, per_layer=True)
{'0.weight': 0, '0.bias': 0, '1.weight': 1, '1.bias': 1}
>>> list(parameter_groups(model, per_layer=True, patterns=("*.weight", "*")).values())
[0, 1, 0, 1]
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from dpft.errors import InputError
from dpft.privacy.clipping.trainable import TrainableParameters


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
