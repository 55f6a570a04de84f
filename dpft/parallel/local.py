"""Tensors that may be cut into shards: what of them lies here, and all of them."""

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def local(tensor: Tensor) -> Tensor:
    """Returns this process's shard of a tensor, or the tensor where it is whole; no copy."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def is_cut(tensor: Tensor) -> bool:
    """Returns whether a tensor is cut into shards, of which one lies here."""
    return isinstance(tensor, DTensor)


def rows_here(tensor: Tensor) -> tuple[int, int] | None:
    """Returns from and up to which row a tensor lies here; None: it is whole."""
    if not isinstance(tensor, DTensor):
        return None
    mesh = tensor.device_mesh
    place = mesh.get_coordinate()
    assert place is not None, "every process of a run is in its mesh"
    length = -(-tensor.shape[0] // mesh.size(-1))
    first, last = place[-1] * length, (place[-1] + 1) * length
    return min(first, tensor.shape[0]), min(last, tensor.shape[0])


def from_rows(parameter: Tensor, rows: Tensor) -> Tensor:
    """Returns this process's rows of a tensor of a parameter's shape, cut as the parameter is.

    Nothing passes between processes. Rows for a parameter that is whole are returned as they are.
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
