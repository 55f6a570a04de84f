"""Digests of a released model's tensors, by which later commands recognize the model.

A run's guarantee is of the weights that it released. The closing line of its ledger has one digest
of them, over the list of all tensors by name (``tensors.json`` beside them, so that somebody who
merges or exports a model can follow each one). Weights are noisy when they are released, so a
digest of them is post-processing. An adapter says something on its base alone, and by its settings:
the digests of both go into the one. A whole model's configuration and the tokenizer are public, and
not covered.
Importing it imports no torch: safetensors files are read as they lie on disk.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpft.errors import StateError
from dpft.run_folder import read_file, write_json

TENSORS = "tensors.json"
"""In a model's folder: the digest of each tensor by name, and the one of all."""
WEIGHTS = "*.safetensors"
ADAPTER = "adapter_config.json"
"""Names another base than the weights beside it to libraries that load adapters."""
SETTINGS = (ADAPTER, "dpft_adapter.json")
"""What says how an adapter is put onto its base."""
ADDRESS, BASE = "base_model_name_or_path", "base"
"""Key of ``SETTINGS`` that says where the base is, and the folder where an adapter's own one lies,
with which the key changes when it moves."""
OTHER_WEIGHTS = (".bin", ".ckpt", ".h5", ".msgpack", ".pickle", ".pkl", ".pt", ".pth")
"""Files that hold weights elsewhere, and that no run writes."""
PIECE = 2**22
"""Bytes that are read at once."""


def write_released(model: Path, base: str | None = None) -> str:
    """Write the digests of the tensors in a model's folder beside them; return that of all.

    Args:
        model: The folder.
        base: As ``digest_of``.
    """
    tensors, settings = tensor_digests(model), setting_digests(model)
    digest = digest_of(tensors, settings, base)
    beside = {"base": base, "settings": settings or None}
    optional = {name: value for name, value in beside.items() if value is not None}
    write_json(model / TENSORS, {"released": digest, **optional, "tensors": tensors})
    return digest


def recorded_base(model: Path) -> str | None:
    """Return the digest of the base of an adapter; None where its folder holds or names none.

    ``check_released`` holds it against the ledger.
    """
    base = _recorded(model).get("base")
    return base if isinstance(base, str) else None


def check_released(model: Path, released: str | None, *, ledger: Path) -> None:
    """Reject a model that is not the one whose digest a ledger's closing line has."""
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
    """Return the one digest of a model.

    Args:
        tensors: The digest of each tensor by name.
        settings: Of an adapter, from ``setting_digests``.
        base: Of an adapter, the digest of the base that lies elsewhere.
    """
    whole: Mapping[str, Any] = tensors
    if settings or base is not None:
        whole = {"base": base, "settings": settings, "tensors": tensors}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def setting_digests(model: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of settings in an adapter's folder."""
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
    """Return the SHA-256 of each tensor in a folder: of its type, its shape and its bytes.

    Args:
        model: The folder; safetensors files in folders below are the model's, too.
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
    """Reject an index of shards that leads elsewhere, which a loader would follow."""
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
    """Yield name and digest of each tensor of one safetensors file, as ``tensor_digests``.

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
    """Return what the folder's own list of digests says; nothing where it cannot be read."""
    try:
        content = json.loads(read_file(model / TENSORS))
    except (OSError, RecursionError, StateError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _first_difference(model: Path, tensors: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """Return what is another, in words, where the folder's own list says it."""
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
