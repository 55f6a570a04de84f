"""The weights and moments of a checkpoint: one file each, or one for each shard of the model.

Where the model is in shards, each rank of the first row of the grid writes the shard that it has;
the other rows have the same. What is whole on every rank, such as a buffer or Adam's ``step``, is
written once, with the first shard. A shard holds rows in order, so that a checkpoint may be read
by any number of ranks, each of which reads the rows that are its own and no others.

``torch.distributed.checkpoint`` does as much, but its ranks send each other pickled objects (rule
11), and where a file of safetensors is gone it may leave tensors as they were, without a word.
"""

import json
import math
from pathlib import Path

import torch
from torch import Tensor

from dpft.errors import RunError, StateError
from dpft.parallel.local import from_rows, is_cut, local, rows_here
from dpft.parallel.ranks import Ranks
from dpft.parallel.shards import ShardedModel
from dpft.run_folder import OPTIMIZER, WEIGHTS, shard_name
from dpft.training.tensor_files import TensorFiles, checksum, save_tensors
from dpft.training.training_state import (
    TrainingState,
    model_state,
    optimizer_state,
    restore_optimizer,
)


def write_tensors(
    folder: Path, training_state: TrainingState, shards: ShardedModel | None
) -> dict[str, str]:
    """Writes weights and moments to a checkpoint's folder; returns each file's checksum.

    Every rank of a model in shards calls it, and learns all checksums.

    Args:
        folder: Empty, and the same on every rank.
        training_state: This rank's.
        shards: The model, where this rank has a shard of it.

    Raises:
        RunError: The disk is full, or a rank cannot reach the folder.
        SaidElsewhere: On another rank, where the first one says so.
    """
    if shards is None:
        return _write_own(folder, training_state, 0, 1)
    ranks, (row, place) = shards.ranks, shards.grid.place
    own: dict[str, str] = {}
    with ranks.settled():
        if row == 0:
            check_reachable(folder, ranks)
            own = _write_own(folder, training_state, place, shards.grid.shard_size)
    everyones = [json.loads(each) for each in ranks.everyones(json.dumps(own).encode())]
    return {name: written for each in everyones for name, written in each.items()}


def restore_tensors(path: Path, training_state: TrainingState, shards: int) -> None:
    """Puts a rank's part of weights and moments back to those of a checkpoint.

    Args:
        path: The checkpoint, its checksums right.
        training_state: Whole, or in as many shards as it likes.
        shards: How many the checkpoint was written in.

    Raises:
        StateError: It is of another model.
    """
    own = model_state(training_state.model)
    with TensorFiles(_shard_paths(path, WEIGHTS, shards)) as weights:
        if {name: tuple(tensor.shape) for name, tensor in own.items()} != weights.shapes:
            raise _of_another_model(path)
        with torch.no_grad():
            for name, tensor in own.items():
                local(tensor).copy_(weights.read(name, rows_here(tensor)))
    with TensorFiles(_shard_paths(path, OPTIMIZER, shards)) as moments:
        own_moments = _own_moments(moments, training_state)
        if own_moments is None:
            raise _of_another_model(path)
        restore_optimizer(training_state, own_moments)


def check_reachable(folder: Path, ranks: Ranks) -> None:
    """Refuses a checkpoint's folder that is on another machine's disk.

    Raises:
        RunError: It is not there for this rank.
    """
    if not folder.is_dir():
        raise RunError(
            f"process {ranks.rank} of the run cannot see {folder}: all processes read and write"
            " the checkpoints of parallel=fsdp; put the run's folder on a file system that its"
            " machines share."
        )


def _write_own(
    folder: Path, training_state: TrainingState, place: int, shards: int
) -> dict[str, str]:
    """Writes the files of one shard; returns their checksums."""
    written = {}
    tensors = {
        WEIGHTS: model_state(training_state.model),
        OPTIMIZER: optimizer_state(training_state),
    }
    for name, named in tensors.items():
        path = folder / shard_name(name, place, shards)
        own = {label: local(t.detach()) for label, t in named.items() if place == 0 or is_cut(t)}
        save_tensors(path, own)
        written[path.name] = checksum(path)
    return written


def _own_moments(moments: TensorFiles, training_state: TrainingState) -> dict[str, Tensor] | None:
    """Returns this rank's part of the optimizer's tensors, by ``<parameter name>/<key>``.

    One of its parameter's shape is cut as the parameter is; any other is whole on every rank, and
    of a parameter that is cut it is one number. None: they are of another model.
    """
    parameters = dict(training_state.model.named_parameters())
    own = {}
    for label, shape in moments.shapes.items():
        name = label.rsplit("/", 1)[0]
        if name not in parameters:
            return None
        parameter = parameters[name].detach()
        if is_cut(parameter) and shape == tuple(parameter.shape):
            own[label] = from_rows(parameter, moments.read(label, rows_here(parameter)))
        elif is_cut(parameter) and math.prod(shape) != 1:
            return None
        else:
            own[label] = moments.read(label)
    return own


def _of_another_model(path: Path) -> StateError:
    return StateError(
        f"{path} is a checkpoint of another model; put the model that the run began with back."
    )


def _shard_paths(path: Path, name: str, shards: int) -> list[Path]:
    return [path / shard_name(name, place, shards) for place in range(shards)]
