"""The digest of a released model, by which a later command knows it from any other.

A run's guarantee is of the weights that it released. The closing line of its ledger has one digest
of them, over the list of all tensors by name (``tensors.json`` beside them, so that somebody who
merges or exports a model can follow each one). Weights are noisy when they are released, so a
digest of them is post-processing. The configuration and the tokenizer are public, and not covered.
Importing it imports no torch: safetensors files are read as they lie on disk.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpft.errors import StateError
from dpft.files import read_file, write_json

TENSORS = "tensors.json"
"""In a model's folder: the digest of each tensor by name, and the one of all."""
WEIGHTS = "*.safetensors"
ADAPTER = "adapter_config.json"
"""Names another base than the weights beside it to libraries that load adapters."""
OTHER_WEIGHTS = (".bin", ".ckpt", ".h5", ".msgpack", ".pickle", ".pkl", ".pt", ".pth")
"""Files that hold weights elsewhere, and that no run writes."""
PIECE = 2**22
"""Bytes that are read at once."""


def write_released(model: Path) -> str:
    """Writes the digests of the tensors in a model's folder beside them; returns that of all."""
    tensors = tensor_digests(model)
    digest = digest_of(tensors)
    write_json(model / TENSORS, {"released": digest, "tensors": tensors})
    return digest


def check_released(model: Path, released: str | None, *, ledger: Path) -> None:
    """Refuses a model that is not the one whose digest a ledger's closing line has."""
    tensors = tensor_digests(model)
    if released == digest_of(tensors):
        return
    raise StateError(
        f"{model} must hold the model that the run released, whose digest is in the closing line of"
        f" {ledger}, got another{_first_difference(model, tensors)}; put it back as it was."
    )


def digest_of(tensors: Mapping[str, str]) -> str:
    """Returns the one digest of a model, from those of its tensors by name."""
    return hashlib.sha256(json.dumps(tensors, sort_keys=True).encode()).hexdigest()


def tensor_digests(model: Path) -> dict[str, str]:
    """Returns the SHA-256 of each tensor in a folder: of its type, its shape and its bytes.

    Args:
        model: The folder; safetensors files in folders below are the model's, too.
    """
    digests: dict[str, str] = {}
    _check_indexes(model)
    if (model / ADAPTER).exists() and (model / "config.json").exists():
        raise StateError(
            f"{model / ADAPTER} lies beside a whole model, and a loader may take the base that it"
            " names; remove it."
        )
    strangers = sorted(path for path in model.rglob("*") if path.suffix in OTHER_WEIGHTS)
    if strangers:
        raise StateError(f"{strangers[0]} is no file of dpft's, and may hold weights; remove it.")
    for path in sorted(model.rglob(WEIGHTS)):
        below = path.parent.relative_to(model).as_posix()
        for name, digest in _digests_in(path):
            whole = name if below == "." else f"{below}/{name}"
            if whole in digests:
                raise StateError(f"{path}: tensor {name} stands in another file too; remove one.")
            digests[whole] = digest
    if not digests:
        raise StateError(f"{model} must hold a model's weights, got none; put it back as it was.")
    return digests


def _check_indexes(model: Path) -> None:
    """Refuses an index of shards that leads elsewhere, which a loader would follow."""
    for path in sorted(model.rglob(f"{WEIGHTS}.index.json")):
        try:
            names = set(json.loads(read_file(path))["weight_map"].values())
            beside = {weights.name for weights in path.parent.glob(WEIGHTS)}
            strangers = sorted(map(str, names - beside))
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise StateError(f"{path} is damaged ({error}); put it back as it was.") from error
        if strangers:
            raise StateError(
                f"{path} must name files beside it, got {strangers[0]!r}; put it back as it was."
            )


def _digests_in(path: Path) -> Iterator[tuple[str, str]]:
    """Yields name and digest of each tensor of one safetensors file.

    It has 8 bytes of length, a header in JSON, and the tensors' bytes at the offsets in it.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= path.stat().st_size:
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
            start = 8 + length
            for name in sorted(header.keys() - {"__metadata__"}):
                entry = header[name]
                begin, end = entry["data_offsets"]
                digest = hashlib.sha256(json.dumps([entry["dtype"], entry["shape"]]).encode())
                file.seek(start + begin)
                left = end - begin
                if left < 0 or start + end > path.stat().st_size:
                    raise ValueError("a tensor's bytes are not in it")
                while left:
                    piece = file.read(min(left, PIECE))
                    if not piece:
                        raise ValueError("it is cut")
                    digest.update(piece)
                    left -= len(piece)
                yield name, digest.hexdigest()
    except (
        *(OSError, ArithmeticError, AttributeError, KeyError, RecursionError),
        *(TypeError, ValueError),
    ) as error:
        raise StateError(
            f"{path} must be a whole safetensors file, got a damaged one ({error}); put it back as"
            " it was."
        ) from error


def _first_difference(model: Path, found: Mapping[str, str]) -> str:
    """Returns which tensor is another one, in words, where the folder's own list says it."""
    try:
        known: Any = json.loads(read_file(model / TENSORS))["tensors"]
        names = sorted(name for name in known.keys() | found if known.get(name) != found.get(name))
    except (OSError, AttributeError, KeyError, RecursionError, StateError, TypeError, ValueError):
        return ""
    return f" ({len(names)} tensors differ, the first is {names[0]})" if names else ""
