"""The training state (model, optimizer, schedule) and its storage in safetensors files.

If the model is sharded, each rank in the first row of the grid writes its shard. The other rows
hold the same shards. Tensors that every rank holds whole, such as buffers or Adam's ``step``, are
written once, with the first shard.

A tensor may be split over several files. Each file contains a range of its rows, in the order of
the files. Any number of ranks can therefore read a checkpoint, and each rank reads only its own
rows.

``torch.distributed.checkpoint`` offers the same, but its ranks exchange pickled objects (rule 11).
It may also leave tensors silently unchanged if a safetensors file is missing.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from dpft.errors import RunError, StateError
from dpft.parallel.ranks import Ranks
from dpft.parallel.sharding import from_rows, is_cut, local, rows_here
from dpft.parallel.shards import ShardedModel
from dpft.run_folder import HISTORY, OPTIMIZER, WEIGHTS, shard_name

ON_HOST = ("step",)
"""Optimizer state that the optimizer itself reads. It stays on the CPU to avoid device
synchronization."""


class StepHooks(Protocol):
    """Hooks of a fine-tuning method that run around the gradient of a step."""

    def begin_step(self, model: nn.Module, step: int) -> None:
        """Prepare the model for step ``step`` (counted from 0), before its batch is drawn."""

    def finish_gradient(self, model: nn.Module) -> None:
        """Convert the finished gradient to that of the parameters that the optimizer moves."""

    def begin_update(self, optimizer: Optimizer, step: int) -> None:
        """Prepare the optimizer to update the weights at step ``step`` (counted from 0)."""


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """Model, optimizer and schedule: the state that a step changes and a checkpoint stores."""

    model: nn.Module
    method: StepHooks
    """The method that prepared the model and decides which parameters train in each step."""
    optimizer: Optimizer
    scheduler: LambdaLR


def optimized_parameters(training_state: TrainingState) -> list[nn.Parameter]:
    """Return the parameters that the optimizer moves in any phase."""
    return [p for group in training_state.optimizer.param_groups for p in group["params"]]


def moved_while_frozen(training_state: TrainingState) -> frozenset[str]:
    """Return the names of parameters that the optimizer moves although they receive no gradient.

    Call this function at the first step. Parameters that train in one phase and are frozen in the
    next are not included.
    """
    moved = set(optimized_parameters(training_state))
    parameters = training_state.model.named_parameters()
    return frozenset(name for name, p in parameters if p in moved and not p.requires_grad)


def model_state(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and persistent buffers by name; tied parameters occur once."""
    persistent = model.state_dict(keep_vars=True)
    buffers = {name: b for name, b in model.named_buffers() if name in persistent}
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return {**parameters, **buffers}


def optimizer_state(training_state: TrainingState) -> dict[str, Tensor]:
    """Return the tensors of the optimizer as ``<parameter name>/<key>``."""
    names: dict[Tensor, str] = {
        parameter: name for name, parameter in training_state.model.named_parameters()
    }
    return {
        f"{names[parameter]}/{key}": value if isinstance(value, Tensor) else torch.as_tensor(value)
        for parameter, entries in training_state.optimizer.state.items()
        for key, value in entries.items()
    }


def restore_optimizer(training_state: TrainingState, tensors: Mapping[str, Tensor]) -> None:
    """Replace the state of the optimizer with tensors that ``optimizer_state`` returned."""
    named = dict(training_state.model.named_parameters())
    training_state.optimizer.state.clear()
    for label, tensor in tensors.items():
        name, key = label.rsplit("/", 1)
        parameter = named[name]
        moved = tensor if key in ON_HOST else tensor.to(parameter.device)
        training_state.optimizer.state[parameter][key] = moved


def restore_scheduler(training_state: TrainingState, step: int) -> None:
    """Set the schedule and the optimizer's learning rates to their values after ``step`` steps."""
    scheduler, groups = training_state.scheduler, training_state.optimizer.param_groups
    scheduler.last_epoch = step
    for group, base, factor in zip(groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True):
        group["lr"] = base * factor(step)


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to disk with mode 0600 and wait until they are stored.

    Raises:
        RunError: The disk is full, or the folder is not writable.
    """
    written = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(written, path)
        path.chmod(0o600)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    except (SafetensorError, OSError) as error:
        raise RunError(
            f"{path} could not be written ({error}), but earlier checkpoints are complete. Free"
            " disk space and resume the run, or start it again if it has no checkpoint.",
        ) from None


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class _FileSlice:
    """The part of a tensor that one file contains."""

    file: Any
    shape: tuple[int, ...]


class TensorFiles:
    """Reader of tensors in several files, which are open inside the ``with`` block."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Store the paths of the files, in the order of their rows."""
        self._paths = list(paths)
        self._opened = ExitStack()
        self._stretches: dict[str, list[_FileSlice]] = {}

    def __enter__(self) -> Self:
        for path in self._paths:
            file = self._opened.enter_context(safe_open(path, framework="pt"))
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                shape = tuple(file.get_slice(name).get_shape())
                self._stretches.setdefault(name, []).append(_FileSlice(file, shape))
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor, with the rows of all files together."""
        return {
            name: first.shape
            if not others
            else (sum(part.shape[0] for part in (first, *others)), *first.shape[1:])
            for name, (first, *others) in self._stretches.items()
        }

    def read(self, name: str, rows: tuple[int, int] | None = None) -> Tensor:
        """Return rows ``rows[0]`` to ``rows[1] - 1`` of a tensor, or the whole tensor if None.

        Only these rows are read from disk.
        """
        stretches = self._stretches[name]
        if rows is None and len(stretches) == 1:
            whole: Tensor = stretches[0].file.get_tensor(name)
            return whole
        first, last = rows or (0, self.shapes[name][0])
        parts, before = [], 0
        for stretch in stretches:
            length = stretch.shape[0]
            start, end = max(first - before, 0), min(last - before, length)
            if start < end:
                parts.append(stretch.file.get_slice(name)[start:end])
            before += length
        return torch.cat(parts) if parts else stretches[0].file.get_slice(name)[0:0]


def write_tensors(
    folder: Path, training_state: TrainingState, shards: ShardedModel | None
) -> dict[str, str]:
    """Write weights and optimizer moments to a checkpoint folder; return the checksum of each file.

    Every rank of a sharded model calls this function and receives all checksums. The folder is
    empty, and it is the same on every rank.

    Raises:
        RunError: The disk is full, or a rank cannot access the folder.
        SaidElsewhere: Another rank failed, and rank 0 reports the error.
    """
    if shards is None:
        return _write_own(folder, training_state, 0, 1)
    ranks, (row, place) = shards.ranks, shards.grid.place
    checksums: dict[str, str] = {}
    with ranks.failing_together():
        if row == 0:
            check_reachable(folder, ranks)
            checksums = _write_own(folder, training_state, place, shards.grid.shard_size)
    return _of_everyone(checksums, ranks)


def write_history(folder: Path, history: Mapping[str, Tensor], ranks: Ranks) -> dict[str, str]:
    """Write each rank's earlier noise, with which later noise is correlated; return checksums.

    Every rank calls this function. A rank without such noise writes no file.

    Raises:
        RunError: The disk is full, or a rank cannot access the folder.
        SaidElsewhere: Another rank failed, and rank 0 reports the error.
    """
    checksums: dict[str, str] = {}
    with ranks.failing_together():
        if history:
            if ranks.size > 1:
                check_reachable(folder, ranks)
            path = folder / shard_name(HISTORY, ranks.rank, ranks.size)
            save_tensors(path, history)
            checksums[path.name] = checksum(path)
    return _of_everyone(checksums, ranks)


def _of_everyone(checksums: Mapping[str, str], ranks: Ranks) -> dict[str, str]:
    """Return the checksums of the files that all ranks have written."""
    everyones = [json.loads(answer) for answer in ranks.everyones(json.dumps(checksums).encode())]
    return {
        name: written for rank_checksums in everyones for name, written in rank_checksums.items()
    }


def restore_tensors(path: Path, training_state: TrainingState, shards: int) -> None:
    """Restore this rank's part of the weights and moments from a checkpoint.

    Raises:
        StateError: The checkpoint belongs to another model.
    """
    tensors = model_state(training_state.model)
    with TensorFiles(_shard_paths(path, WEIGHTS, shards)) as weights:
        if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != weights.shapes:
            raise _of_another_model(path)
        with torch.no_grad():
            for name, tensor in tensors.items():
                local(tensor).copy_(weights.read(name, rows_here(tensor)))
    with TensorFiles(_shard_paths(path, OPTIMIZER, shards)) as moments:
        own_moments = _own_moments(moments, training_state)
        if own_moments is None:
            raise _of_another_model(path)
        restore_optimizer(training_state, own_moments)


def check_reachable(folder: Path, ranks: Ranks) -> None:
    """Reject a checkpoint folder that is on the disk of another machine.

    Raises:
        RunError: This rank cannot see the folder.
    """
    if not folder.is_dir():
        raise RunError(
            f"Process {ranks.rank} of the run cannot see {folder}, but all processes read and"
            " write checkpoints with parallel=fsdp or mechanism=banded. Put the run's folder on a"
            " file system that its machines share.",
        )


def _write_own(
    folder: Path, training_state: TrainingState, place: int, shards: int
) -> dict[str, str]:
    """Write the files of one shard and return their checksums."""
    written = {}
    tensors = {
        WEIGHTS: model_state(training_state.model),
        OPTIMIZER: optimizer_state(training_state),
    }
    for name, named in tensors.items():
        path = folder / shard_name(name, place, shards)
        local_tensors = {
            label: local(t.detach()) for label, t in named.items() if place == 0 or is_cut(t)
        }
        save_tensors(path, local_tensors)
        written[path.name] = checksum(path)
    return written


def _own_moments(moments: TensorFiles, training_state: TrainingState) -> dict[str, Tensor] | None:
    """Return this rank's part of the optimizer's tensors, by ``<parameter name>/<key>``.

    A tensor with the shape of its parameter is sharded like the parameter. Every other tensor is
    whole on every rank. If its parameter is sharded, such a tensor has a single element. None if
    the tensors belong to another model.
    """
    parameters = dict(training_state.model.named_parameters())
    tensors = {}
    for label, shape in moments.shapes.items():
        name = label.rsplit("/", 1)[0]
        if name not in parameters:
            return None
        parameter = parameters[name].detach()
        if is_cut(parameter) and shape == tuple(parameter.shape):
            tensors[label] = from_rows(parameter, moments.read(label, rows_here(parameter)))
        elif is_cut(parameter) and math.prod(shape) != 1:
            return None
        else:
            tensors[label] = moments.read(label)
    return tensors


def _of_another_model(path: Path) -> StateError:
    return StateError(
        f"{path} is a checkpoint of another model. Restore the model that the run started with."
    )


def _shard_paths(path: Path, name: str, shards: int) -> list[Path]:
    return [path / shard_name(name, place, shards) for place in range(shards)]
