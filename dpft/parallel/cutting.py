"""What of a model can be cut into shards, in which groups, and what its shards are filled with."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dpft.errors import InputError
from dpft.parallel.local import local, rows_here

ReadRows = Callable[[str, int, int], Tensor]
"""From a parameter's name, and the rows from the one up to the other, to their values."""


@torch.no_grad()
def fill(model: nn.Module, read: ReadRows, device: torch.device) -> None:
    """Gives each shard on the meta device storage, and the rows that it is to hold."""
    filled: dict[nn.Parameter, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        if not parameter.is_meta:
            continue
        made = torch.empty_like(parameter, device=device)
        first, last = rows_here(made) or (0, len(made))
        if last > first:
            local(made).copy_(read(name, first, last))
        filled[parameter] = nn.Parameter(made, requires_grad=parameter.requires_grad)
    for module in model.modules():
        for attribute, held in module._parameters.items():
            if held is not None and held in filled:
                module._parameters[attribute] = filled[held]


def blocks_apart(model: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """Returns the blocks whose parameters nothing else of the model holds."""
    holders: dict[nn.Parameter, set[int]] = {}
    inside = {module: number for number, block in enumerate(blocks) for module in block.modules()}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            holders.setdefault(parameter, set()).add(inside.get(module, -1))
    shared = {number for held in holders.values() if len(held) > 1 for number in held}
    return [
        block
        for number, block in enumerate(blocks)
        if number not in shared and any(True for _ in block.parameters())
    ]


def check_can_be_sharded(model: nn.Module) -> None:
    """Refuses what ``fully_shard`` cannot cut.

    Raises:
        InputError: Naming the parameter.
    """
    for name, parameter in model.named_parameters():
        reason = None
        if parameter.dim() == 0:
            reason = "it is one number without a dimension"
        elif not parameter.is_contiguous():
            reason = "it does not lie in one piece"
        elif isinstance(parameter, DTensor):
            reason = "it is cut already"
        if reason is not None:
            raise InputError(
                f"parallel=fsdp cannot shard the parameter {name} of {type(model).__name__}:"
                f" {reason}; choose parallel=ddp or another model."
            )
