"""A process group of one rank, and models in shards of which it holds all: what cutting costs."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from dpft.commands.run_cost import shard_model
from dpft.parallel.parallel_config import ParallelConfig
from dpft.parallel.processes import current_ranks, started
from dpft.parallel.rank_sums import STRETCH
from dpft.parallel.sharding import repeated_blocks
from dpft.parallel.shards import ShardedModel

FSDP = ParallelConfig(name="fsdp")


@contextmanager
def one_rank() -> Iterator[None]:
    """Join this process with itself inside the block, as torchrun with one process would."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        port = tried.getsockname()[1]
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with mock.patch.dict(os.environ, place), started(FSDP):
        yield


def in_dpft_shards(model: nn.Module, device: torch.device, resources: ExitStack) -> ShardedModel:
    """Cuts a model as ``parallel=fsdp`` does; its ranks run it until the resources are left."""
    shards = shard_model(model, FSDP, device, current_ranks())
    assert shards is not None
    resources.enter_context(shards.serving_other_ranks())
    return shards


def in_torch_shards(model: nn.Module, device: torch.device) -> None:
    """Cuts a model by torch's FSDP2 alone, into the same groups."""
    mesh = init_device_mesh(device.type, (1,))
    for block in repeated_blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def finish_shards(shards: ShardedModel) -> None:
    """End a step: leaves the sum's shards in the parameters' gradients, without noise."""
    shards.reduce_sums(STRETCH, lambda parts: None)
