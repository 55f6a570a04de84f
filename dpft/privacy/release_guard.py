"""Guard against writes to parameters or buffers that would be released without noise.

In addition to trained parameters, a saved model contains frozen parameters, persistent buffers and
extra state. A forward pass that writes to them (``nn.Embedding`` with ``max_norm``) releases values
that it computed from records. *Hashes of the values* find every write: a private run compares
SHA-256 digests with those of step 0, and the clipper's checks compare CRC-32 checksums before and
after a pass. *Version counters*, which PyTorch increments with each in-place write, are cheap
enough for every micro-batch and step. They do not count writes to ``.data`` or through NumPy.
"""

import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_flatten

from dpft.errors import DpftError, RunError
from dpft.parallel.sharding import is_cut, local

Read = Callable[[Tensor], Tensor]
"""Function that returns the whole tensor of a sharded parameter."""
PIECE = 2**26  # Number of bytes that are copied from a device at once.


def digests_of(
    model: nn.Module, moved: Mapping[str, Tensor] | None = None, read: Read | None = None
) -> dict[str, str]:
    """Return the SHA-256 digest of each value of a model's state dict, by name.

    Args:
        model: The model.
        moved: Parameters that updates change, by name; they are skipped.
        read: Returns the whole tensor of a sharded parameter.

    Raises:
        RunError: A parameter of ``moved`` was replaced, or the type of a value is not supported.
    """
    state = model.state_dict(keep_vars=True)
    for name, parameter in (moved or {}).items():
        if state.pop(name, None) is not parameter:
            raise _written(name, "was replaced")
    return _hashes(state, _digest, read)


def check_same(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise a RunError that names a value whose hash differs, or that was added or removed."""
    for name in {**expected, **actual}:
        if name not in actual or name not in expected:
            raise _written(name, "was removed" if name in expected else "was added")
        if actual[name] != expected[name]:
            raise _written(name)


class FrozenState:
    """Released state that no step changes, with its digests before the first step."""

    def __init__(
        self,
        model: nn.Module,
        moved: Mapping[str, Tensor],
        digests: Mapping[str, str] | None = None,
        read: Read | None = None,
    ) -> None:
        """Compute the digests, and compare them with those of step 0 if these are given.

        Args:
            model: The model.
            moved: Parameters that updates change, by name.
            digests: Digests of step 0, from a checkpoint; None: this is step 0.
            read: As in ``digests_of``.

        Raises:
            RunError: A value differs from its value at step 0.
        """
        self._model, self._moved, self._read = model, moved, read
        now = self._digests()
        self.digests = now if digests is None else digests
        check_same(now, self.digests)

    def check(self) -> None:
        """Raise a RunError that names a value that differs from its value at step 0."""
        check_same(self._digests(), self.digests)

    def _digests(self) -> dict[str, str]:
        return digests_of(self._model, self._moved, self._read)


@contextmanager
def state_unchanged(model: nn.Module) -> Iterator[None]:
    """Compare the values of a model's state dict and of all buffers before and after a pass.

    This includes buffers with ``persistent=False``, through which one record could affect the loss
    of another. Only these buffers may be added, or replaced by a buffer of another shape, because a
    model may extend a table of positions. For sharded parameters, the local shard is compared.

    Raises:
        RunError: A value changed; the error names this value.
    """

    def checksums() -> tuple[dict[str, int], dict[str, int]]:
        saved = model.state_dict(keep_vars=True)
        buffers = model.named_buffers(remove_duplicate=False)
        other = {f"{n} of shape {tuple(t.shape)}": t for n, t in buffers if n not in saved}
        return _hashes(saved, _checksum), _hashes(other, _checksum)

    def compare() -> None:
        saved_after, other_after = checksums()
        check_same(saved_after, saved)
        check_same({**other, **other_after}, {**other_after, **other})

    saved, other = checksums()
    with _also_after_errors(compare):
        yield


class HeldState:
    """Version counters of tensors, which show whether a micro-batch or a step wrote to a tensor."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        """Begin with the tensors of a state dict, or of a subset, made with ``keep_vars=True``."""
        tensors = {name: t for name, t in state.items() if isinstance(t, Tensor)}
        buffers = {n: t for n, t in tensors.items() if not isinstance(t, nn.Parameter)}
        self._checksums = _hashes(buffers, _checksum)
        # PyTorch does not count writes to inference tensors.
        self._tensors = {name: t for name, t in tensors.items() if not t.is_inference()}
        self._is_cut = any(map(is_cut, self._tensors.values()))
        self.begin()

    def begin(self) -> None:
        """Read the counters, with which ``check`` compares later values."""
        self._versions = self._read()

    def _read(self) -> list[tuple[int, int]] | list[int]:
        tensors = self._tensors.values()
        if self._is_cut:  # A DTensor and its shard have separate counters.
            return [(tensor._version, local(tensor)._version) for tensor in tensors]
        return [tensor._version for tensor in tensors]

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Read the counters before a micro-batch and check them after it."""
        self.begin()
        with _also_after_errors(self.check):
            yield

    def check(self) -> None:
        """Raise a RunError that names a parameter that was written to or a buffer that changed."""
        versions = self._read()
        if versions == self._versions:
            return
        for name, before, after in zip(self._tensors, self._versions, versions, strict=True):
            if before == after:
                continue
            # A model may write the same values to a buffer.
            if self._checksums.get(name) != _checksum(self._tensors[name], name):
                raise _written(name)


@contextmanager
def _also_after_errors(check: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    except (DpftError, RuntimeError):
        check()  # A write may have caused the error, and the name of the tensor explains more.
        raise
    check()


def _written(name: str, change: str = "was written to") -> RunError:
    return RunError(
        f"{name} {change} while the model ran, which can reveal records without noise. Remove the"
        " code that writes to it, such as max_norm of nn.Embedding or running statistics."
    )


def _hashes(
    values: Mapping[str, Any], hash_of: Callable[[Any, str], Any], read: Read | None = None
) -> dict[str, Any]:
    hashes: dict[int, Any] = {}  # A tied parameter is read only once.
    for name, value in values.items():
        if id(value) not in hashes:
            whole = read(value) if read and isinstance(value, nn.Parameter) else value
            hashes[id(value)] = hash_of(whole, name)
    return {name: hashes[id(value)] for name, value in values.items()}


def _digest(value: Any, name: str) -> str:
    digest = hashlib.sha256()
    for content in _contents(value, name):
        digest.update(content)
    return digest.hexdigest()


def _checksum(value: Any, name: str) -> int:
    checksum = 0
    for content in _contents(value, name):
        checksum = zlib.crc32(content, checksum)
    return checksum


def _contents(value: Any, name: str) -> Iterator[bytes | memoryview]:
    """Yield bytes that differ if two values differ in type, shape or content."""
    leaves, structure = tree_flatten(value)
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            yield _framed(f"{leaf.dtype} {tuple(leaf.shape)}")
            for piece in _raw_bytes(leaf, name).split(PIECE):
                yield memoryview(piece.cpu().numpy())
        elif leaf is None or isinstance(leaf, str | bytes | int | float | complex | torch.dtype):
            yield _framed(repr(leaf))
        else:
            raise RunError(
                f"{name} must be a tensor, a number, a string, or a list or mapping of these, so"
                f" that it can be compared, but it contains a {type(leaf).__name__}. Change"
                " get_extra_state."
            )
    if not isinstance(value, Tensor):
        yield _framed(str(structure))


def _framed(text: str) -> bytes:
    content = text.encode()
    return len(content).to_bytes(8, "little") + content


def _raw_bytes(tensor: Tensor, name: str) -> Tensor:
    """Return the bytes of a tensor's local values, shape (n,), uint8, usually without a copy."""
    values = local(tensor.detach())
    if is_traceable_wrapper_subclass(values):
        inner, _ = values.__tensor_flatten__()
        return torch.cat([_raw_bytes(getattr(values, attribute), name) for attribute in inner])
    if values.layout is not torch.strided or values.is_quantized:
        raise RunError(f"{name} must be stored as dense tensors that are not quantized.")
    return values.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
