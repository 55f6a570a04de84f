"""The ranks of a sharded model in rows: each row holds all of it."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dpft.parallel.ranks import Ranks

REPLICAS, SHARDS = "replicas", "shards"
"""The mesh's dimensions."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The ranks in rows: each row holds the whole model, and each rank of it one shard."""

    mesh: DeviceMesh
    """(replicas, shards)."""
    words: dist.ProcessGroup
    """The ranks of this row, through the processor's memory."""
    device: torch.device
    """What this rank computes on."""

    @property
    def shard_size(self) -> int:
        """Into how many shards the model is cut."""
        return self.mesh.size(1)

    @property
    def replicas(self) -> int:
        """How many times there is the whole model."""
        return self.mesh.size(0)

    @property
    def place(self) -> tuple[int, int]:
        """Row of this rank, and the place of its shard."""
        row, column = self.mesh.get_coordinate() or (0, 0)
        return row, column


def make_grid(ranks: Ranks, shard_size: int | None, device: torch.device) -> Grid:
    """Arranges the ranks; every rank calls it.

    Args:
        ranks: All of the run.
        shard_size: Into how many shards to cut the model; None: one for each rank.
        device: What the ranks compute on.

    Raises:
        ValueError: The ranks do not make whole rows.
    """
    size = ranks.size if shard_size is None else shard_size
    if ranks.size % size:
        raise ValueError(f"shard_size must divide {ranks.size}, got {size}.")
    shape = (ranks.size // size, size)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=(REPLICAS, SHARDS))
    words = [
        dist.new_group(list(range(first, first + size)), backend="gloo")
        for first in range(0, ranks.size, size)
    ]
    return Grid(mesh=mesh, words=words[ranks.rank // size], device=device)
