"""The training state (model, optimizer, step), and its storage in safetensors.

Where the model is in shards, each rank of the first row of the grid writes the shard that it has;
the other rows have the same. What is whole on every rank, such as a buffer or Adam's ``step``, is
written once, with the first shard. A tensor may be cut over several files, each with a stretch of
its rows, in the files' order, so that a checkpoint may be read by any number of ranks, each of
which reads the rows that are its own and no others.

``torch.distributed.checkpoint`` does as much, but its ranks send each other pickled objects (rule
11), and where a file of safetensors is gone it may leave tensors as they were, without a word.
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
"""Numbers of an optimizer that it reads itself, so that no device has to be asked for them."""


class StepHooks(Protocol):
    """What a fine-tuning method does around a step's gradient."""

    def begin_step(self, model: nn.Module, step: int) -> None:
        """Make the model ready for step ``step`` (counted from 0), before its batch is drawn."""

    def finish_gradient(self, model: nn.Module) -> None:
        """Turn the finished gradient into that of what the optimizer moves."""

    def begin_update(self, optimizer: Optimizer, step: int) -> None:
        """Make the optimizer ready to move the weights at step ``step`` (counted from 0)."""


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """Model, optimizer and schedule: what a step moves, and a checkpoint keeps."""

    model: nn.Module
    method: StepHooks
    """Prepared the model, and decides what trains in each step."""
    optimizer: Optimizer
    scheduler: LambdaLR


def optimized_parameters(training_state: TrainingState) -> list[nn.Parameter]:
    """Return what the optimizer moves, in whichever phase."""
    return [p for group in training_state.optimizer.param_groups for p in group["params"]]


def moved_while_frozen(training_state: TrainingState) -> frozenset[str]:
    """Return the names of what the optimizer moves though it takes no gradient of its own.

    Asked at the first step: what trains in a phase and is frozen in the next is none of it.
    """
    moved = set(optimized_parameters(training_state))
    parameters = training_state.model.named_parameters()
    return frozenset(name for name, p in parameters if p in moved and not p.requires_grad)


def model_state(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters, a tied one once, and persistent buffers, by name."""
    persistent = model.state_dict(keep_vars=True)
    buffers = {name: b for name, b in model.named_buffers() if name in persistent}
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return {**parameters, **buffers}


def optimizer_state(training_state: TrainingState) -> dict[str, Tensor]:
    """Return the optimizer's tensors as ``<parameter name>/<key>``."""
    names: dict[Tensor, str] = {
        parameter: name for name, parameter in training_state.model.named_parameters()
    }
    return {
        f"{names[parameter]}/{key}": value if isinstance(value, Tensor) else torch.as_tensor(value)
        for parameter, entries in training_state.optimizer.state.items()
        for key, value in entries.items()
    }


def restore_optimizer(training_state: TrainingState, tensors: Mapping[str, Tensor]) -> None:
    """Give the optimizer what ``optimizer_state`` returned, and nothing else."""
    named = dict(training_state.model.named_parameters())
    training_state.optimizer.state.clear()
    for label, tensor in tensors.items():
        name, key = label.rsplit("/", 1)
        parameter = named[name]
        moved = tensor if key in ON_HOST else tensor.to(parameter.device)
        training_state.optimizer.state[parameter][key] = moved


def restore_scheduler(training_state: TrainingState, step: int) -> None:
    """Put the schedule, and the optimizer's learning rates, to after ``step`` steps."""
    scheduler, groups = training_state.scheduler, training_state.optimizer.param_groups
    scheduler.last_epoch = step
    for group, base, factor in zip(groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True):
        group["lr"] = base * factor(step)


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to disk, mode 0600, and wait until they are there.

    Raises:
        RunError: The disk is full, or the folder may not be written to.
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
    """What one file has of a tensor."""

    file: Any
    shape: tuple[int, ...]


class TensorFiles:
    """The tensors of some files, each opened as long as the block lasts and read where asked."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Name the files, in the order of their rows."""
        self._paths = list(paths)
        self._opened = ExitStack()
        self._stretches: dict[str, list[_FileSlice]] = {}

    def __enter__(self) -> Self:
        for path in self._paths:
            file = self._opened.enter_context(safe_open(path, framework="pt"))
            for name in file.keys():  # noqa: SIM118 (no mapping)
                shape = tuple(file.get_slice(name).get_shape())
                self._stretches.setdefault(name, []).append(_FileSlice(file, shape))
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each tensor, all of its rows together."""
        return {
            name: first.shape
            if not others
            else (sum(part.shape[0] for part in (first, *others)), *first.shape[1:])
            for name, (first, *others) in self._stretches.items()
        }

    def read(self, name: str, rows: tuple[int, int] | None = None) -> Tensor:
        """Return rows of a tensor, from one and up to another; None: all of it.

        No more than these rows are read from disk.
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
    """Write weights and moments to a checkpoint's folder; return each file's checksum.

    Every rank of a model in shards calls it, and learns all checksums. The folder is empty, and the
    same on every rank.

    Raises:
        RunError: The disk is full, or a rank cannot reach the folder.
        SaidElsewhere: On another rank, where the first one says so.
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
    """Write each rank's noise that later noise hangs together with; return each file's checksum.

    Every rank calls it. One that has none writes no file.

    Raises:
        RunError: The disk is full, or a rank cannot reach the folder.
        SaidElsewhere: On another rank, where the first one says so.
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
    """Put a rank's part of weights and moments back to those of a checkpoint.

    Raises:
        StateError: It is of another model.
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
    """Reject a checkpoint's folder that is on another machine's disk.

    Raises:
        RunError: It is not there for this rank.
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
    """Write the files of one shard; return their checksums."""
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

    One of its parameter's shape is cut as the parameter is; any other is whole on every rank, and
    of a parameter that is cut it is one number. None: they are of another model.
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
