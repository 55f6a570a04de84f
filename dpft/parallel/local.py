"""Tensors that may be cut into shards: what of them lies here, and all of them."""

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def local(tensor: Tensor) -> Tensor:
    """Returns this process's shard of a tensor, or the tensor where it is whole; no copy."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """Returns all of a tensor that is cut into shards; collective, on every rank that has one.

    One that is whole is returned as it is.
    """
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def cut_like(parameter: Tensor, values: Tensor) -> Tensor:
    """Returns values of a parameter's shape, the same on every rank, cut as the parameter is."""
    if not isinstance(parameter, DTensor):
        return values
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(values, mesh, placements, src_data_rank=None)
