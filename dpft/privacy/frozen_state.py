"""State that is released without noise, held to what it was before a record was seen.

A model's state dict is released whole: frozen parameters, persistent buffers and extra state beside
what trained. A forward that writes to one of these, as that of ``nn.Embedding`` with a ``max_norm``
does, leaves in it what it saw of the records. So does one that writes to a parameter that trains,
which the optimizer alone may move. Buffers that are not persistent are not released, and are free.

Three things are compared. A *mark* is which tensor bears a name, where its memory lies, and how
often torch wrote to it: cheap enough for every micro-batch, and blind to what is written past torch
(``.data``, NumPy). A *fingerprint* is 64 bits of the values under a secret key of this process, so
that nobody can choose other values of the same one: cheap enough for every step. A *digest* is
SHA-256, which a checkpoint keeps.

>>> class Remembering(nn.Linear):
...     def forward(self, inputs):
...         self.bias.data += inputs.mean(0)
...         return super().forward(inputs)
>>> layer = Remembering(2, 2).requires_grad_(False)
>>> guard = StateGuard(layer)
>>> try:
...     with guard.micro_batch():
...         _ = layer(torch.ones(3, 2))
... except RunError as error:
...     print(str(error)[:68])
bias must be what it was before the model ran, but it was written to
"""

import hashlib
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dpft.errors import DpftError, RunError
from dpft.parallel.cutting import local

PIECE = 2**26
"""Bytes that leave a device at once to be digested."""
KEYS_ON_CPU, KEYS_ELSEWHERE = 2**16, 2**20
"""Words that are multiplied at once: as many as caches hold, or as keep a device busy."""
EXTRA_STATE = "_extra_state"
"""What a state dict calls a module's extra state."""

Read = Callable[[Tensor], Tensor]
"""Returns all of a parameter that is cut into shards."""


def persistent_state(model: nn.Module, *, parameters: bool = True) -> dict[str, Any]:
    """Returns what a state dict of a model holds, by name; a tied tensor under each of its names.

    Every module is asked by itself, and then the model as a whole: a hook of its state dict adds
    names, and takes none away.

    Args:
        model: Whose.
        parameters: Whether to return them too; else buffers and extra state alone.
    """
    found: dict[str, Any] = dict(_held(model, parameters=parameters))
    for path, module in model.named_modules(remove_duplicate=False):
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            found[_joined(path, EXTRA_STATE)] = module.get_extra_state()
    if parameters:
        found = {**model.state_dict(keep_vars=True), **found}
    return found


def check_same(found: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """Refuses state that is not what it was.

    Args:
        found: Digests of what is to be released and nothing moves, by name.
        expected: What they were.

    Raises:
        RunError: A tensor was written to, was added or is gone; its name is said.
    """
    for name in {**expected, **found}:
        if found.get(name) != expected.get(name):
            raise not_the_same(name, _change(name, expected, found))


def digests_of(
    model: nn.Module, free: Collection[str] = (), read: Read | None = None
) -> dict[str, str]:
    """Returns the digests of a model's persistent state, by name.

    Args:
        model: Whose.
        free: Names to leave out.
        read: Where the whole of what is cut into shards comes from.

    Raises:
        RunError: A tensor or extra state is of a kind that cannot be digested.
    """
    known: dict[nn.Parameter, str] = {}
    found = {}
    for name, value in persistent_state(model).items():
        if name in free:
            continue
        if not isinstance(value, nn.Parameter):
            found[name] = _digest(value, name)
            continue
        if value not in known:  # A tied one is read once.
            known[value] = _digest(value if read is None else read(value), name)
        found[name] = known[value]
    return found


class ReleasedState:
    """What of a model is released and nothing moves: digested, and compared with digests."""

    def __init__(self, model: nn.Module, moved: Iterable[Tensor], read: Read | None = None) -> None:
        """Notes which names bear what moves.

        Args:
            model: Whose state is released.
            moved: Parameters that the optimizer moves, or that train, in whichever phase.
            read: As in ``digests_of``.
        """
        own = {id(parameter) for parameter in moved}
        self._model, self._read = model, read
        self._moved = {name: p for name, p in _held(model) if id(p) in own}

    def digests(self) -> dict[str, str]:
        """Returns the digests of what nothing moves, by name.

        Raises:
            RunError: A name of what moves no longer bears the parameter that it did.
        """
        now = dict(_held(self._model))
        for name, parameter in self._moved.items():
            if now.get(name) is not parameter:
                raise not_the_same(name, _change(name, self._moved, now))
        return digests_of(self._model, self._moved, self._read)


def not_the_same(name: str, change: str) -> RunError:
    """Returns the refusal of a tensor that a forward wrote to."""
    return RunError(
        f"{name} must be what it was before the model ran, but it {change}, and a state dict would"
        " release it with what it holds of the records, without noise; nothing is released. Take"
        " away what writes to it, such as nn.Embedding's max_norm or running statistics, or keep"
        " what may change in a buffer with persistent=False."
    )


class Fingerprints:
    """Takes fingerprints of tensors where they lie, under a key of its own.

    A fingerprint is the sum of the values' 32-bit words, each times a secret 64-bit number, modulo
    2^64, and the same of the sums of all pieces where there are several. Other values have the same
    one with a chance below 2^-28, whoever chose them: the numbers are never seen.
    """

    def __init__(self) -> None:
        self._keys: dict[tuple[torch.device, int], Tensor] = {}

    def of(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Returns a fingerprint of each tensor, shape (n,), int64; no device is waited for."""
        found = [self._of(_raw_bytes(tensor, name)) for name, tensor in tensors.items()]
        if not found:
            return torch.zeros(0, dtype=torch.int64)
        return torch.stack([each.to(found[0].device, non_blocking=True) for each in found])

    def _of(self, content: Tensor) -> Tensor:
        is_aligned = len(content) % 4 == 0 and content.storage_offset() % 4 == 0
        words, level = content.view(torch.int32) if is_aligned else content, 0
        while True:
            pieces = words.split(KEYS_ON_CPU if words.device.type == "cpu" else KEYS_ELSEWHERE)
            key = self._key(words.device, level, len(pieces[0]))
            sums = [piece.to(torch.int64).mul(key[: len(piece)]).sum() for piece in pieces]
            words, level = torch.stack(sums), level + 1
            if len(sums) == 1:
                return words[0]

    def _key(self, device: torch.device, level: int, length: int) -> Tensor:
        """Returns secret numbers that words are multiplied by; others for sums of sums.

        Args:
            device: Where.
            level: How often sums were summed.
            length: How many are needed at least. What is drawn stays, and more is drawn behind it.
        """
        key = self._keys.get((device, level), torch.zeros(0, dtype=torch.int64, device=device))
        if len(key) < length:
            more = (1 << (length - 1).bit_length()) - len(key)
            drawn = torch.frombuffer(bytearray(secrets.token_bytes(8 * more)), dtype=torch.int64)
            key = self._keys[device, level] = torch.cat([key, drawn.to(device)])
        return key


class HeldParameters:
    """Values of parameters at one moment, to be compared with later."""

    def __init__(self, fingerprints: Fingerprints, parameters: Mapping[str, Tensor]) -> None:
        """Takes their fingerprints."""
        self._fingerprints, self._parameters = fingerprints, dict(parameters)
        self._before = fingerprints.of(self._parameters)

    def check(self) -> None:
        """Refuses values that changed; the one look at the device is here."""
        same = self._fingerprints.of(self._parameters) == self._before
        for name, is_same in zip(self._parameters, same.tolist(), strict=True):
            if not is_same:
                raise not_the_same(name, "was written to by something else than the optimizer")


class StateGuard:
    """Holds a model's persistent state still while micro-batches run through it.

    Around each micro-batch marks are compared; at the first one, and the 2nd, 4th, 8th and so on,
    all values: of what is frozen with those at the beginning, and of what trains with those before
    the micro-batch, since an optimizer moves it between two of them.
    """

    def __init__(
        self, model: nn.Module, moved: Collection[str] = (), *, parameters: bool = True
    ) -> None:
        """Takes what the model holds now for what is frozen.

        Args:
            model: What requires grad now trains.
            moved: Names of parameters that do not, and that are moved all the same.
            parameters: Whether they are looked at: shards bear a name only for a while.
        """
        self._model, self._parameters = model, parameters
        self._fingerprints = Fingerprints()
        held = dict(_held(model, parameters=parameters))
        own = {id(held[name]) for name in moved if name in held}
        self._free = {n for n, t in held.items() if t.requires_grad or id(t) in own}
        self._begun = self._identified(held, persistent_state(model, parameters=parameters))
        self._number = 0
        self._refusal: RunError | None = None

    @contextmanager
    def micro_batch(self) -> Iterator[None]:
        """Runs one micro-batch, and what its gradients are made of.

        Raises:
            RunError: A tensor of the state was written to, replaced, added or taken away, now or in
                a micro-batch before.
        """
        if self._refusal is not None:
            raise self._refusal
        self._number += 1
        is_thorough = self._number & (self._number - 1) == 0
        before = self._marks()
        free = {name: tensor for name, (tensor, _) in before.items() if name in self._free}
        held = HeldParameters(self._fingerprints, free) if is_thorough else None
        try:
            yield
        except DpftError as error:
            # A write may have been seen by what it did to losses: the name says more.
            self._compare(before, held, is_thorough=True, cause=error)
            raise
        self._compare(before, held, is_thorough=is_thorough)

    def _compare(
        self,
        before: Mapping[str, "_Mark"],
        held: HeldParameters | None,
        *,
        is_thorough: bool,
        cause: Exception | None = None,
    ) -> None:
        after = self._marks()
        changed = [
            n for n in {**before, **after} if before.get(n, NONE)[1] != after.get(n, NONE)[1]
        ]
        try:
            for name in changed:
                if name in self._free or name not in before or name not in after:
                    raise not_the_same(name, _change(name, before, after))
            if held is not None:
                held.check()
            if changed or is_thorough:
                # A proof puts buffers back to what they were, which is a write, and no change.
                self.check()
        except RunError as error:
            self._refusal = error
            raise error from cause

    def check(self) -> None:
        """Compares all values of what is frozen with those at the beginning.

        Raises:
            RunError: As ``micro_batch``.
        """
        held = dict(_held(self._model, parameters=self._parameters))
        state = persistent_state(self._model, parameters=self._parameters)
        check_same(self._identified(held, state), self._begun)

    def _marks(self) -> dict[str, "_Mark"]:
        return {name: _mark(t) for name, t in _held(self._model, parameters=self._parameters)}

    def _identified(self, held: Mapping[str, Tensor], state: Mapping[str, Any]) -> dict[str, str]:
        """Returns fingerprints of what is frozen, and digests of what is no tensor, by name."""
        own = {id(held[name]) for name in self._free if name in held}
        # A hook of the state dict may give what trains another name.
        free = {name for name, value in state.items() if name in self._free or id(value) in own}
        frozen = {n: v for n, v in state.items() if isinstance(v, Tensor) and n not in free}
        prints = self._fingerprints.of(frozen).tolist()
        found = {
            name: f"{tensor.dtype} {tuple(tensor.shape)} {value}"
            for (name, tensor), value in zip(frozen.items(), prints, strict=True)
        }
        rest = {n: v for n, v in state.items() if n not in found and n not in free}
        return found | {name: _digest(value, name) for name, value in rest.items()}


_Mark = tuple[Tensor, tuple[Any, ...]]
"""Which tensor bears a name, kept, so that no other one takes its place in memory; and where it
lies, and how often torch wrote to it."""
NONE = (None, None)


def _mark(tensor: Tensor) -> _Mark:
    version = None if tensor.is_inference() else tensor._version
    # A tensor that wraps others has no memory of its own.
    is_plain = type(tensor) in PLAIN or not is_traceable_wrapper_subclass(tensor)
    memory = tensor.data_ptr() if is_plain else None
    return tensor, (id(tensor), memory, version, tensor.shape, tensor.dtype)


PLAIN = (Tensor, nn.Parameter)
MOST_MODULES = 10**6


def modules_by_path(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Returns a model's modules under each of their paths.

    As ``named_modules``, whose generators run one inside another: this runs in each micro-batch.

    Raises:
        RecursionError: A module is inside itself.
    """
    found = [("", model)]
    for path, module in found:  # which grows meanwhile
        prefix = f"{path}." if path else ""
        children = module._modules.items()
        found += [(prefix + name, child) for name, child in children if child is not None]
        if len(found) > MOST_MODULES:
            raise RecursionError("a module is inside itself")
    return found


def _held(model: nn.Module, *, parameters: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Yields parameters and persistent buffers under each of their names."""
    for path, module in modules_by_path(model):
        if parameters:
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    yield _joined(path, name), parameter
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield _joined(path, name), buffer


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _change(name: str, before: Collection[str], after: Collection[str]) -> str:
    if name not in after:
        return "is gone"
    return "was written to" if name in before else "was not there"


def _digest(value: Any, name: str) -> str:
    digest = hashlib.sha256()
    for part in _parts(value, name):
        if isinstance(part, bytes):
            digest.update(len(part).to_bytes(8, "little") + part)
            continue
        for piece in part.split(PIECE):
            digest.update(memoryview(piece.cpu().numpy()))
    return digest.hexdigest()


def _parts(value: Any, name: str) -> Iterator[bytes | Tensor]:
    """Yields all that a value is, each part with its type and length: no two values alike."""
    if isinstance(value, Tensor):
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield _raw_bytes(value, name)
        return
    yield type(value).__qualname__.encode()
    if isinstance(value, Mapping):
        yield str(len(value)).encode()
        for key, each in value.items():
            yield from _parts(key, name)
            yield from _parts(each, name)
    elif isinstance(value, list | tuple):
        yield str(len(value)).encode()
        for each in value:
            yield from _parts(each, name)
    elif isinstance(value, bytes):
        yield value
    elif value is None or isinstance(value, str | int | float | complex | torch.dtype):
        yield repr(value).encode()
    else:
        raise RunError(
            f"{name} must be a tensor, a number, a string, or a list or mapping of these, so that"
            f" it can be compared, got {type(value).__name__}; return one from get_extra_state."
        )


def _raw_bytes(tensor: Tensor, name: str) -> Tensor:
    """Returns the bytes of a tensor's local values, shape (n,), uint8; no copy as a rule."""
    values = local(tensor.detach())
    if is_traceable_wrapper_subclass(values):
        inner, _ = values.__tensor_flatten__()
        return torch.cat([_raw_bytes(getattr(values, each), name) for each in inner])
    if values.layout is not torch.strided or values.is_quantized:
        raise RunError(
            f"{name} must be a dense tensor, so that it can be compared, got {values.dtype} of"
            f" layout {values.layout}; keep it in a buffer with persistent=False, or as dense ones."
        )
    return values.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
