"""Digests of a released model's tensors, so that later commands can recognize the model.

A run's guarantee applies to the weights that it released. The file ``tensors.json`` next to the
weights lists the digest of each tensor by name, so that a user who merges or exports the model can
trace each tensor. The closing line of the ledger contains one digest of this list. Released weights
are noisy, so their digest is post-processing. The effect of an adapter depends on its base and its
settings, so its digest also covers both. The configuration of a whole model and the tokenizer are
public and not included.

Importing this module does not import torch, because safetensors files are read directly from disk.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpft.errors import StateError
from dpft.run_folder import read_file, write_json

TENSORS = "tensors.json"
"""File in a model's folder that contains the digest of each tensor by name, and a digest of the
whole model."""
WEIGHTS = "*.safetensors"
ADAPTER = "adapter_config.json"
"""Configuration file that libraries read to load an adapter. It may name a base that differs from
the weights in the same folder."""
SETTINGS = (ADAPTER, "dpft_adapter.json")
"""Files that specify how an adapter is applied to its base."""
ADDRESS, BASE = "base_model_name_or_path", "base"
"""``ADDRESS`` is the key in the ``SETTINGS`` files that locates the base. ``BASE`` is the subfolder
for a base that is stored with its adapter. The address of such a base changes when the folder
moves, so the digest omits the key."""
OTHER_WEIGHTS = (".bin", ".ckpt", ".h5", ".msgpack", ".pickle", ".pkl", ".pt", ".pth")
"""Suffixes of weight files in other formats. No run writes such files."""
PIECE = 2**22
"""Number of bytes that are read from a file at once."""


def write_released(model: Path, base: str | None = None) -> str:
    """Write the digests of the tensors in a model's folder next to them; return the total digest.

    Args:
        model: The folder.
        base: See ``digest_of``.
    """
    tensors, settings = tensor_digests(model), setting_digests(model)
    digest = digest_of(tensors, settings, base)
    beside = {"base": base, "settings": settings or None}
    optional = {name: value for name, value in beside.items() if value is not None}
    write_json(model / TENSORS, {"released": digest, **optional, "tensors": tensors})
    return digest


def recorded_base(model: Path) -> str | None:
    """Return the recorded digest of an adapter's base, or None.

    The result is None if the folder contains the base or records no base. ``check_released``
    compares this digest with the ledger.
    """
    base = _recorded(model).get("base")
    return base if isinstance(base, str) else None


def check_released(model: Path, released: str | None, *, ledger: Path) -> None:
    """Reject a model with a digest that differs from the closing line of a ledger."""
    tensors, settings = tensor_digests(model), setting_digests(model)
    base = recorded_base(model)
    if base is not None and (model / BASE).exists():
        raise StateError(
            f"{model / BASE} must not exist, because the base of the adapter is stored elsewhere."
            " Remove it."
        )
    if released == digest_of(tensors, settings, base):
        return
    raise StateError(
        f"{model} must contain the model that the run released, but its digest differs from that"
        f" in the closing line of {ledger}{_first_difference(model, tensors, settings)}. Restore"
        " the model from a backup."
    )


def digest_of(
    tensors: Mapping[str, str], settings: Mapping[str, str] | None = None, base: str | None = None
) -> str:
    """Return the single digest of a model.

    Args:
        tensors: The digest of each tensor by name.
        settings: For an adapter, the result of ``setting_digests``.
        base: For an adapter, the digest of a base that is stored elsewhere.
    """
    whole: Mapping[str, Any] = tensors
    if settings or base is not None:
        whole = {"base": base, "settings": settings, "tensors": tensors}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def setting_digests(model: Path) -> dict[str, str]:
    """Return the SHA-256 of each settings file in an adapter's folder."""
    digests = {}
    moving = (ADDRESS,) if (model / BASE).is_dir() else ()
    for name in SETTINGS:
        if (model / name).is_file():
            try:
                settings = json.loads(read_file(model / name))
                kept = {key: value for key, value in settings.items() if key not in moving}
            except (AttributeError, RecursionError, ValueError) as error:
                raise StateError(
                    f"{model / name} is damaged ({error}). Restore it from a backup."
                ) from error
            digests[name] = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    return digests


def tensor_digests(model: Path) -> dict[str, str]:
    """Return the SHA-256 of the type, shape and bytes of each tensor in a folder.

    Args:
        model: The folder; safetensors files in subfolders also belong to the model.
    """
    digests: dict[str, str] = {}
    _check_indexes(model)
    for path in model.rglob(ADAPTER):
        if path.with_name("config.json").exists():
            raise StateError(
                f"{path} is next to a complete model, and a loader may load the base that it names"
                " instead. Remove it."
            )
    strangers = sorted(path for path in model.rglob("*") if path.suffix in OTHER_WEIGHTS)
    if strangers:
        raise StateError(
            f"{strangers[0]} was not written by dpft, and may contain weights. Remove it."
        )
    for path in sorted(model.rglob(WEIGHTS)):
        below = path.parent.relative_to(model).as_posix()
        for name, digest in digests_in(path):
            whole = name if below == "." else f"{below}/{name}"
            if whole in digests:
                raise StateError(
                    f"{path}: tensor {name} is also in another file. Remove one of the files."
                )
            digests[whole] = digest
    if not digests:
        raise StateError(f"{model} contains no weights of a model. Restore it from a backup.")
    return digests


def _check_indexes(model: Path) -> None:
    """Reject an index of shards that refers to other folders, because a loader would follow it."""
    for path in sorted(model.rglob(f"{WEIGHTS}.index.json")):
        try:
            names = set(json.loads(read_file(path))["weight_map"].values())
            beside = {weights.name for weights in path.parent.glob(WEIGHTS)}
            strangers = sorted(map(str, names - beside))
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise StateError(f"{path} is damaged ({error}). Restore it from a backup.") from error
        if strangers or not names:
            raise StateError(
                f"{path} must name files in its own folder, got"
                f" {next(iter(strangers), None)!r}. Restore it from a backup."
            )


def digests_in(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the digest of each tensor of one safetensors file; see ``tensor_digests``.

    The first 8 bytes of a safetensors file contain the length of the header. The header is in JSON
    and states the offset of each tensor. The bytes of the tensors follow.
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
                        raise ValueError("it is truncated")
                    digest.update(piece)
                    left -= len(piece)
                yield name, digest.hexdigest()
    except (
        *(OSError, ArithmeticError, AttributeError, KeyError, RecursionError),
        *(TypeError, ValueError),
    ) as error:
        raise StateError(
            f"{path} is not a complete safetensors file ({error}). Restore it from a backup."
        ) from error


def _recorded(model: Path) -> dict[str, Any]:
    """Return the content of ``tensors.json`` in a folder; empty if the file cannot be read."""
    try:
        content = json.loads(read_file(model / TENSORS))
    except (OSError, RecursionError, StateError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _first_difference(model: Path, tensors: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """Describe the first difference from ``tensors.json``; return "" if there is none."""
    recorded, actual = _recorded(model), {"tensors": tensors, "settings": settings}
    for kind, now in actual.items():
        expected = recorded.get(kind, {})
        if not isinstance(expected, dict):
            return ""
        names = sorted(
            name for name in expected.keys() | now if expected.get(name) != now.get(name)
        )
        if names:
            return f" ({len(names)} {kind} differ, the first is {names[0]})"
    return ""
