"""A model, cut into shards where ``parallel=fsdp`` says so."""

import logging

import torch
from torch import nn

from dpft.config.schema import TrainConfig
from dpft.errors import InputError
from dpft.parallel.blocks import repeated_blocks
from dpft.parallel.cutting import ReadRows, check_can_be_sharded
from dpft.parallel.grid import make_grid
from dpft.parallel.parallel_config import SHARDED, ParallelConfig
from dpft.parallel.ranks import Ranks
from dpft.parallel.shards import ShardedModel
from dpft.training.optimizers import check_works_on_shards

logger = logging.getLogger(__name__)


def check_sharding(config: TrainConfig) -> None:
    """Refuses what does not go with a sharded model, before anything is read.

    Raises:
        InputError: The run is to be compiled, or its optimizer, its loss scale or its audit reads
            whole parameters.
    """
    if not config.parallel.shards_model:
        return
    check_works_on_shards(config.optimizer)
    if config.audit.white_box:
        raise InputError(
            "audit.white_box=true needs the whole model in each process, got parallel=fsdp; set"
            " audit.white_box=false, or parallel=ddp."
        )
    if config.train.adaptive_loss_scale:
        raise InputError(
            "train.adaptive_loss_scale=true needs the whole model in each process, got"
            " parallel=fsdp; set train.adaptive_loss_scale=false, or parallel=ddp."
        )
    if config.train.compile:
        raise InputError(
            "train.compile=true needs the whole model in each process, got parallel=fsdp; set"
            " train.compile=false, or parallel=ddp."
        )


def cut(
    model: nn.Module,
    config: ParallelConfig,
    device: torch.device,
    ranks: Ranks,
    read: ReadRows | None = None,
) -> ShardedModel | None:
    """Cuts a model in place, the same on every rank; None where it is to stay whole.

    Args:
        model: On the CPU or the device, and where ``read`` is given on the meta device.
        config: Whether, and into how many shards.
        device: What this rank computes on.
        ranks: The processes; from now on they may run the model inside ``settled``.
        read: Reads the shards of what is on the meta device.

    Raises:
        InputError: A parameter cannot be sharded.
    """
    if not config.shards_model:
        return None
    with ranks.settled():
        check_can_be_sharded(model)
    blocks = repeated_blocks(model)
    if not blocks:
        logger.warning(
            "parallel=fsdp: %s has no list of blocks, so that all of it is gathered to be run",
            type(model).__name__,
        )
    shards = ShardedModel(
        model,
        make_grid(ranks, config.shard_size, device),
        ranks,
        blocks=blocks,
        accumulates_shards=config.accumulate == SHARDED,
        offload=config.cpu_offload and device.type != "cpu",
        read=read,
    )
    ranks.served = shards.served
    return shards


def loading_device(config: ParallelConfig, device: torch.device) -> torch.device:
    """Returns where a model is loaded to: one that is cut goes to its device in shards."""
    return torch.device("cpu") if config.shards_model else device
