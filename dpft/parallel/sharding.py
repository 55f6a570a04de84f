"""Helpers for sharded models: which blocks are sharded, and which rows a rank has of a parameter.

``local``, ``whole`` and related functions read a tensor that may be sharded. ``repeated_blocks``
finds the consecutive layers of one class that are sharded as blocks. ``fill`` gives shards their
values.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from dpft.errors import InputError


def local(tensor: Tensor) -> Tensor:
    """Return this process's shard of a tensor, or the tensor itself if it is whole; no copy."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def is_cut(tensor: Tensor) -> bool:
    """Return whether a tensor is sharded, so that this process has only one shard."""
    return isinstance(tensor, DTensor)


def rows_here(tensor: Tensor) -> tuple[int, int] | None:
    """Return the first and the end row of a tensor's shard on this rank; None if it is whole."""
    if not isinstance(tensor, DTensor):
        return None
    mesh = tensor.device_mesh
    place = mesh.get_coordinate()
    assert place is not None, "every process of a run is in its mesh"
    length = -(-tensor.shape[0] // mesh.size(-1))
    first, last = place[-1] * length, (place[-1] + 1) * length
    return min(first, tensor.shape[0]), min(last, tensor.shape[0])


def from_rows(parameter: Tensor, rows: Tensor) -> Tensor:
    """Return this process's rows as a shard of a tensor with the shape and sharding of a parameter.

    No data is exchanged between processes. If the parameter is whole, the rows are returned
    unchanged.
    """
    if not isinstance(parameter, DTensor):
        return rows
    return DTensor.from_local(
        rows.to(parameter.to_local().device),
        parameter.device_mesh,
        parameter.placements,
        shape=parameter.shape,
        stride=parameter.stride(),
        run_check=False,
    )


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a sharded tensor; collective on every rank that has a shard.

    A tensor that is not sharded is returned unchanged.
    """
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def cut_like(parameter: Tensor, values: Tensor) -> Tensor:
    """Shard values like a parameter; they have its shape and are the same on every rank."""
    if not isinstance(parameter, DTensor):
        return values
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(values, mesh, placements, src_data_rank=None)


ReadRows = Callable[[str, int, int], Tensor]
"""Function from a parameter's name, a first row and an end row to the values of these rows."""


@torch.no_grad()
def fill(model: nn.Module, read: ReadRows, device: torch.device) -> None:
    """Allocate storage for each shard on the meta device, and copy its rows into the shard."""
    filled: dict[nn.Parameter, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        if not parameter.is_meta:
            continue
        shard = torch.empty_like(parameter, device=device)
        first, last = rows_here(shard) or (0, len(shard))
        if last > first:
            local(shard).copy_(read(name, first, last))
        filled[parameter] = nn.Parameter(shard, requires_grad=parameter.requires_grad)
    for module in model.modules():
        for attribute, held in module._parameters.items():
            if held is not None and held in filled:
                module._parameters[attribute] = filled[held]


def blocks_apart(model: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the blocks that share no parameter with any other part of the model."""
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
    """Reject a model with parameters that ``fully_shard`` does not support.

    Raises:
        InputError: A parameter cannot be sharded; the message names the parameter.
    """
    for name, parameter in model.named_parameters():
        reason = None
        if parameter.dim() == 0:
            reason = "it is one number without a dimension"
        elif not parameter.is_contiguous():
            reason = "it is not contiguous in memory"
        elif isinstance(parameter, DTensor):
            reason = "it is sharded already"
        if reason is not None:
            raise InputError(
                f"parallel=fsdp cannot shard the parameter {name} of {type(model).__name__}:"
                f" {reason}. Choose another model or parallel=ddp.",
                key="parallel",
                value="fsdp",
                hint="parallel=ddp",
            )


def block_lists(model: nn.Module) -> list[nn.ModuleList]:
    """Return the outermost lists of modules of one class that contain parameters.

    A seq2seq model has two lists: the layers of its encoder and the layers of its decoder.
    """
    lists = [
        m
        for m in model.modules()
        if isinstance(m, nn.ModuleList)
        and (len({type(module) for module in m}) == 1 and size_of(m.parameters()) > 0)
    ]
    inner = {module for outer in lists for module in outer.modules() if module is not outer}
    return [module for module in lists if module not in inner]


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the modules of a model's block lists, in the order of the model."""
    return [block for blocks in block_lists(model) for block in blocks]


def size_of(parameters: Iterable[nn.Parameter]) -> int:
    """Return the total number of elements of parameters."""
    return sum(parameter.numel() for parameter in parameters)
