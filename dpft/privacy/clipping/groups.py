"""Groups of per-layer clipping: a partition of the trainable parameters, a tied one in one group.

>>> from torch import nn
>>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
>>> list(parameter_groups(model, per_layer=True).values())
[0, 0, 1, 1]
>>> list(parameter_groups(model, per_layer=True, patterns=("*.weight", "*")).values())
[0, 1, 0, 1]
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn

from dpft.errors import InputError


def parameter_groups(
    model: nn.Module, *, per_layer: bool, patterns: Sequence[str] | None = None
) -> dict[Tensor, int]:
    """Returns the group number, from 0, of every trainable parameter.

    Args:
        model: Each parameter counts once, under the name of the first layer that owns it.
        per_layer: False puts everything in group 0.
        patterns: Shell patterns over parameter names, one for each group; a parameter is in the
            first that fits. None makes one group of each layer that owns parameters.

    Raises:
        InputError: A parameter fits no pattern, or a pattern no parameter.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not per_layer:
        return dict.fromkeys((p for _, p in named), 0)
    if patterns is not None:
        return _by_pattern(named, patterns)
    owners = [name.rpartition(".")[0] for name, _ in named]
    number = {owner: index for index, owner in enumerate(dict.fromkeys(owners))}
    return {p: number[owner] for (_, p), owner in zip(named, owners, strict=True)}


def _by_pattern(
    named: Sequence[tuple[str, nn.Parameter]], patterns: Sequence[str]
) -> dict[Tensor, int]:
    groups: dict[Tensor, int] = {}
    for name, parameter in named:
        fitting = [index for index, pattern in enumerate(patterns) if fnmatchcase(name, pattern)]
        if not fitting:
            raise InputError(
                f"privacy.groups must have a pattern for every trainable parameter, got none for "
                f"{name}; end the list with '*'."
            )
        groups[parameter] = fitting[0]
    for index, pattern in enumerate(patterns):
        if index not in groups.values():
            raise InputError(
                f"privacy.groups must have a trainable parameter for every pattern, got none for "
                f"{pattern!r}; drop it, or put it before the pattern that takes its parameters."
            )
    return groups
