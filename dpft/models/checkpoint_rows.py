"""Lazy reader of checkpoint weights for sharded runs, in which each rank reads only its own rows.

transformers loads the model as usual, but with stand-ins instead of the checkpoint's weights. A
stand-in is a tensor of the same shape whose elements all share the memory of a few NaNs. Weights
that the checkpoint lacks therefore get the same values as with real weights, and transformers
renames and ties as usual. The memory address identifies a stand-in, wherever it ends up in the
model. If the model computes a tensor from a stand-in, the tensor is NaN. A write to a stand-in
fails. In both cases, the model is loaded as a whole.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers.utils.hub import cached_file, get_checkpoint_shard_files

from dpft.errors import InputError, StateError
from dpft.model_digest import ADAPTER, digest_of, digests_in
from dpft.models.source import (
    UNQUANTIZED,
    WEIGHT_FILES,
    ModelConfig,
    address,
    check_folder,
    loading_errors,
    origin,
    source,
)

FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""Data types of safetensors that are read as float32."""
MADE_OF_WEIGHTS = {
    "quantization": UNQUANTIZED,
    "replace_batch_norm": False,
    "standardize_weights": False,
    "pooling": None,
}
"""Keys of ``model`` that change what the model computes from the same weights, each with the value
that changes nothing."""


class NotInShards(Exception):
    """Error for a model whose weights cannot be read row by row; the message states why."""


@dataclass(frozen=True)
class StandIn:
    """Stand-in for one tensor of a checkpoint."""

    key: str
    file: str
    values: Tensor
    """Tensor of the same shape; all its numbers are NaN and share memory."""

    def is_untouched(self, tensor: Tensor) -> bool:
        """Return whether a tensor that shares this stand-in's memory is unchanged."""
        same = tensor.shape == self.values.shape and tensor.stride() == self.values.stride()
        return same and bool(self.values.isnan().all()) and tensor.dtype == torch.float32


class CheckpointRows:
    """Tensors of a checkpoint's files, from which rows can be read.

    Guarantees:
        Rows have the float32 values that ``from_pretrained`` would load. Nothing else of a file is
        loaded into memory, not even as a memory-mapped page.
    """

    def __init__(self, files: Mapping[str, str], stand_ins: Mapping[str, StandIn]) -> None:
        """Store the results of ``checkpoint_rows``.

        Args:
            files: File of each tensor, by its key.
            stand_ins: Stand-in of each tensor, by its key. A tensor without a stand-in is read
                immediately. This includes vectors, which are small and which some models copy.
        """
        self._files, self._stand_ins = files, stand_ins
        self._by_place = {s.values.untyped_storage().data_ptr(): s for s in stand_ins.values()}

    def state(self) -> dict[str, Tensor]:
        """Return the ``state_dict`` for ``from_pretrained``: stand-ins and small tensors."""
        return {
            key: self._stand_ins[key].values if key in self._stand_ins else _read(file, key)
            for key, file in self._files.items()
        }

    def emptied(self, model: nn.Module) -> "RowsOfModel":
        """Move a model's stand-ins to the meta device; its other tensors are not changed.

        Stand-ins of buffers are replaced by the values of the checkpoint.

        Raises:
            NotInShards: A tensor was computed from a stand-in.
        """
        stand_ins: dict[nn.Parameter, StandIn] = {}
        for name, parameter in model.named_parameters():
            stand_in = self._stand_in(name, parameter)
            if stand_in is not None:
                stand_ins[parameter] = stand_in
        for module in model.modules():
            for attribute, buffer in module._buffers.items():
                stand_in = None if buffer is None else self._stand_in(attribute, buffer)
                if stand_in is not None:
                    module._buffers[attribute] = _read(stand_in.file, stand_in.key)
        empty = {
            p: nn.Parameter(torch.empty(p.shape, device="meta"), requires_grad=p.requires_grad)
            for p in stand_ins
        }
        keys = {name: stand_ins[p].key for name, p in model.named_parameters() if p in stand_ins}
        for module in model.modules():
            for attribute, held in module._parameters.items():
                if held is not None and held in empty:
                    module._parameters[attribute] = empty[held]
        return RowsOfModel(keys, {key: self._files[key] for key in keys.values()})

    def _stand_in(self, name: str, tensor: Tensor) -> StandIn | None:
        """Return the stand-in of a tensor; None if the tensor is real."""
        stand_in = self._by_place.get(tensor.untyped_storage().data_ptr())
        if stand_in is not None and stand_in.is_untouched(tensor):
            return stand_in
        if stand_in is not None or (tensor.is_floating_point() and bool(tensor.isnan().any())):
            raise NotInShards(f"{name} is computed from the checkpoint's weights")
        return None


@dataclass(frozen=True)
class RowsOfModel:
    """Locations in a checkpoint of those parameters of a model that are on the meta device."""

    keys: Mapping[str, str]
    """Key of each parameter in the checkpoint, by its name in the model; for tied parameters, by
    the first name."""
    files: Mapping[str, str]
    """File of each key."""

    def read(self, name: str, first: int, last: int) -> Tensor:
        """Return the rows ``first`` to ``last - 1`` of a parameter, float32 on the CPU."""
        key = self.keys[name]
        return _read(self.files[key], key, slice(first, last))

    def sampled(self, model: nn.Module, choice: Random) -> str:
        """Return a hash of one row of each parameter, which distinguishes checkpoints.

        Args:
            model: Model that has the parameters.
            choice: Random generator that selects the rows. All processes must use the same state,
                so that they read the same rows.
        """
        digest = hashlib.sha256()
        for name, parameter in model.named_parameters():
            if name in self.keys:
                row = choice.randrange(len(parameter))
                digest.update(self.read(name, row, row + 1).numpy().tobytes())
        return digest.hexdigest()


def checkpoint_rows(model: ModelConfig) -> CheckpointRows:
    """Return the tensors of a checkpoint without reading them.

    Raises:
        NotInShards: The checkpoint has no safetensors.
    """
    files: dict[str, str] = {}
    stand_ins: dict[str, StandIn] = {}
    for path in _paths(model):
        with ExitStack() as held:
            opened: Any = held.enter_context(safe_open(path, framework="pt", backend="pread"))
            for key in list(opened.keys()):
                files[key] = path
                kept = opened.get_slice(key)
                shape = tuple(kept.get_shape())
                if kept.get_dtype() in FLOATS and len(shape) > 1 and 0 not in shape:
                    stand_ins[key] = StandIn(key, path, _stand_in_values(shape))
    return CheckpointRows(files, stand_ins)


def base_digest(model: ModelConfig) -> str:
    """Return the SHA-256 over the digests of all tensors of a checkpoint, as stored on disk.

    The digest includes each setting that changes the numbers computed from the tensors.

    Raises:
        InputError: The checkpoint is not found, or a loader would put an adapter on it.
        NotInShards: The checkpoint has no safetensors under its own name; the Hub converts some
            during the download.
        StateError: A file of the checkpoint is damaged, or two files contain different values of
            one tensor.
    """
    if model.folder is not None:
        check_folder(model, model.folder)
    with loading_errors(model):
        if _file(model, "config.json") is None:
            raise OSError("its config.json cannot be found")
        paths, adapter = _paths(model), _file(model, ADAPTER)
    if adapter is not None:
        key, value = address(model)
        raise InputError(
            f"{origin(model)} contains an adapter ({ADAPTER}) next to the model, so transformers"
            " would load the base that the adapter names. Give only the model.",
            key=key,
            value=value,
        )
    digests: dict[str, str] = {}
    for path in paths:
        for name, digest in digests_in(Path(path)):
            if digests.setdefault(name, digest) != digest:
                raise StateError(
                    f"{path}: tensor {name} is also stored in another file, with other values, and"
                    " a loader may take either. Remove one of them."
                )
    settings = {
        key: str(getattr(model, key))
        for key, plain in MADE_OF_WEIGHTS.items()
        if getattr(model, key) != plain
    }
    return digest_of(digests, settings)


def _paths(model: ModelConfig) -> list[str]:
    """Return the paths of a checkpoint's files, as ``from_pretrained`` finds them."""
    single, index = (_file(model, name) for name in WEIGHT_FILES)
    if single is not None:
        return [single]
    if index is None:
        raise NotInShards("the checkpoint has no safetensors")
    place, where = _place(model)
    try:
        if Path(place).is_dir():
            names = set(json.loads(Path(index).read_text())["weight_map"].values())
            return sorted(str(Path(place) / name) for name in names)
        paths, _ = get_checkpoint_shard_files(place, index, **where)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"{Path(index).name} is damaged") from error
    return [str(path) for path in paths]


def _file(model: ModelConfig, name: str) -> str | None:
    """Return the path of a checkpoint's file, or None if it has no file of that name."""
    place, where = _place(model)
    path = cached_file(place, name, _raise_exceptions_for_missing_entries=False, **where)
    return None if path is None else str(path)


def _place(model: ModelConfig) -> tuple[str, dict[str, Any]]:
    """Return a checkpoint's folder or repository, and the arguments to find its files."""
    where = source(model)
    where.pop("trust_remote_code")
    return where.pop("pretrained_model_name_or_path"), where


def _stand_in_values(shape: tuple[int, ...]) -> Tensor:
    """Return NaNs of a shape; all strides differ, so exchanged dimensions are detected."""
    strides = tuple(range(len(shape) - 1, -1, -1))
    length = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return torch.full((length,), torch.nan).as_strided(shape, strides)


def _read(file: str, key: str, rows: slice = slice(None)) -> Tensor:
    with ExitStack() as held:
        opened: Any = held.enter_context(safe_open(file, framework="pt", backend="pread"))
        kept = opened.get_slice(key)
        values: Tensor = kept[rows] if kept.get_shape() else opened.get_tensor(key)
        return values.float() if values.is_floating_point() else values
