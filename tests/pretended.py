"""A pretended accelerator: what a program does wrong on a real one, seen without one.

Its tensors say that they are on a device of their own, ``pretend``; they hold a CPU tensor, compute
with it, and raise ``Mismatch`` where a CPU tensor of one or more dimensions meets them, as a real
device would. So a program that runs on it makes no tensor in the wrong place. And since every
operation passes by here, it is known at which of them the host would wait for the device: where a
number is read, where a result's shape depends on data, and where memory that is not pinned is
copied. ``WAITS`` has the place in dpft of each.

    found = on_pretended(work, *arguments)

Everything is registered for good, so that is in a process of its own: that of the tests never has
the device. Torch lets a backend be written in Python from 2.13 on.

What it cannot show: kernels that round otherwise, or add in another order; races between streams,
and memory that is used again too early; the time and the memory that things take; attention in one
kernel and other fused kernels; collectives between devices, since ranks talk by gloo through the
host's memory; more than one device; FSDP2, whose shards look into storages that its tensors do not
have; torch.compile, which leaves what runs inside a dispatch mode as it is.
"""

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

from tests.parallel.forked import in_new_process

NAME, CPU = "pretend", torch.device("cpu")
WAITS: Counter[str] = Counter()
"""How often the host waited, by operation and place."""
HALF = (torch.bfloat16, torch.float16)
LAUNCHES: Counter[str] = Counter()
"""How often the device was given something to compute, by operation; views compute nothing."""
READS = frozenset(
    f"aten::{name}" for name in (
        "_local_scalar_dense", "nonzero", "is_nonzero", "equal", "_unique2", "unique_dim",
        "unique_consecutive", "masked_select",
    )
)  # fmt: skip
OWNERS = ("/dpft/", "/transformers/")
MAY_MIX = frozenset(
    f"aten::{name}" for name in (
        "_to_copy", "copy_", "index", "index_put_", "_index_put_impl_", "set_.source_Tensor",
    )
)  # fmt: skip
"""Operations that take tensors of both sides: copies, and indices, which a device takes from the
CPU, waiting."""
MAKES_NOTHING = frozenset(
    f"aten::{name}" for name in (
        "_unsafe_view", "detach", "lift_fresh", "empty", "empty_like", "empty_strided",
        "new_empty", "_local_scalar_dense",
    )
)  # fmt: skip
"""Operations without a kernel, beside the views that say so."""
IN_HALF = ("linear", "mm", "addmm", "bmm", "baddbmm", "matmul", "conv2d", "einsum")


class Mismatch(RuntimeError):
    """A CPU tensor met one of the device."""


class Pretend(Tensor):
    """A tensor of the device, which holds its numbers in a CPU tensor."""

    __slots__ = ("held",)
    held: Tensor
    """The CPU tensor; in a slot, since the clipper looks into what ``vars`` shows of a tensor."""

    @staticmethod
    def __new__(cls, real: Tensor) -> "Pretend":
        made: Pretend = Tensor._make_wrapper_subclass(
            cls, real.size(), strides=real.stride(), storage_offset=real.storage_offset(),
            dtype=real.dtype, device=torch.device(NAME, 0), requires_grad=False,
        )  # fmt: skip
        made.held = real
        return made

    def __init__(self, real: Tensor) -> None:
        pass

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def storage_offset(self) -> int:
        return self.held.storage_offset()

    def tolist(self) -> Any:
        waited("tolist")
        return self.held.tolist()

    def numpy(self, **_: Any) -> Any:
        raise Mismatch("numpy of a tensor of the device")

    def __repr__(self, **_: Any) -> str:
        return f"Pretend({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class Device(TorchDispatchMode):
    """Inside it operations of no tensors make tensors of the device where they are told to."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def waited(what: str) -> None:
    """Count a wait, with the last line that led to it, of dpft or of the model's own code.

    A mode that every function of the model passes is neither.
    """
    frame = sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_name == "__torch_function__"
        or not any(owner in frame.f_code.co_filename for owner in OWNERS)
    ):
        frame = frame.f_back
    place = "elsewhere"
    if frame is not None:
        path = frame.f_code.co_filename
        owner = max(OWNERS, key=path.rfind)
        place = f"{owner[1:]}{path.rpartition(owner)[2]}:{frame.f_lineno}"
    WAITS[f"{what} at {place}"] += 1


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What is asked of an operation each time that it is called."""

    name: str
    launches: bool
    """Whether it computes something."""
    draws: bool
    is_indexing: bool

    @classmethod
    @cache
    def of(cls, func: Any) -> "Operation":
        """Of a torch operation."""
        name = func._schema.name
        return cls(
            name=name,
            launches=not func.is_view and name not in MAKES_NOTHING,
            draws=torch.Tag.nondeterministic_seeded in func.tags,
            is_indexing=name in ("aten::index", "aten::_index_put_impl_", "aten::index_put_"),
        )


GIVE_FLOAT32 = {
    torch.ops.aten.mm.dtype: torch.ops.aten.mm.default,
    torch.ops.aten.bmm.dtype: torch.ops.aten.bmm.default,
    torch.ops.aten.addmm.dtype_out: torch.ops.aten.addmm.out,
    torch.ops.aten.baddbmm.dtype_out: torch.ops.aten.baddbmm.out,
}
"""Products of half precision that accelerators alone have, and what computes the same."""


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do an operation on the CPU tensors, and says where its results are."""
    operation = Operation.of(func)
    name = operation.name
    tensors: list[Tensor] = []
    given_args = [unwrapped(each, tensors) for each in args]
    given = {key: unwrapped(each, tensors) for key, each in kwargs.items()}
    own = [tensor for tensor in tensors if isinstance(tensor, Pretend)]
    others = [tensor for tensor in tensors if not isinstance(tensor, Pretend)]
    device = kwargs.get("device")
    goes = None if device is None else torch.device(device).type
    goes_there, goes_back = goes == NAME, goes == "cpu"
    if own and others and name not in MAY_MIX and any(other.dim() for other in others):
        where = [(tensor.device.type, tuple(tensor.shape)) for tensor in tensors]
        raise Mismatch(f"{name} of {where}")
    if operation.launches and (own or goes_there):
        LAUNCHES[name] += 1
    if own:
        note_wait(operation, own, others, args, goes_back)
    elif goes_there and name == "aten::_to_copy" and not is_pinned(others):
        waited("from memory that is not pinned")
    if goes_there:
        given["device"] = CPU
    if given.get("pin_memory"):
        given["pin_memory"] = False
    if own and func in GIVE_FLOAT32:
        func, given_args = (
            GIVE_FLOAT32[func],
            [real(each).float() for each in args if isinstance(each, Tensor)],
        )
    drawn = operation.draws and (goes_there or bool(own))
    with BACKEND.drawing() if drawn else nullcontext():
        results = func(*given_args, **given)
    if goes_there or (own and not goes_back):
        return placed(results, own)
    return results


def note_wait(
    operation: Operation, own: Sequence[Any], others: Sequence[Tensor], args: Any, goes_back: bool
) -> None:
    """Count that the host waits for the device, where an operation on its tensors has it wait."""
    name = operation.name
    if name in READS:
        waited(name)
    if goes_back and name == "aten::_to_copy":
        waited("to cpu")
    if name == "aten::copy_" and isinstance(args[0], Pretend) != isinstance(args[1], Pretend):
        waited("copy_")
    if operation.is_indexing:
        if any(other.dim() for other in others):
            waited(f"{name} by an index of the host")
        elif any(tensor.dtype == torch.bool for tensor in own[1:]):
            waited(f"{name} by a mask")


def placed(result: Any, own: Sequence["Pretend"]) -> Any:
    """Return what came out of CPU tensors as of the device; in place, the same tensor again."""
    if isinstance(result, Tensor):
        for tensor in own:
            if tensor.held is result:
                return tensor
        return Pretend(result)
    if isinstance(result, list | tuple):
        return type(result)(placed(each, own) for each in result)
    return result


def unwrapped(value: Any, tensors: list[Tensor]) -> Any:
    """Return an operation's arguments as the CPU takes them, and lists the tensors among them.

    Torch's own tree functions, which know every container, would take most of a test's time.
    """
    if isinstance(value, Tensor):
        tensors.append(value)
        return value.held if isinstance(value, Pretend) else value
    if isinstance(value, list | tuple):
        return [unwrapped(each, tensors) for each in value]
    if isinstance(value, dict):
        return {name: unwrapped(each, tensors) for name, each in value.items()}
    return value


def real(value: Any) -> Any:
    """Return what a tensor of the device holds; anything else as it is."""
    return value.held if isinstance(value, Pretend) else value


def lowered(value: Any, dtype: torch.dtype) -> Any:
    """Return float32 tensors, in whatever they are listed, in another dtype."""
    if isinstance(value, list | tuple):
        return type(value)(lowered(each, dtype) for each in value)
    is_float = isinstance(value, Tensor) and value.dtype == torch.float32
    return value.to(dtype) if is_float else value


PINNED: set[int] = set()
"""Where the memory of tensors begins that were pinned."""


def is_pinned(tensors: Iterable[Tensor]) -> bool:
    """Whether a copy of some tensors of the host is not waited for: pinned, or one number."""
    return all(tensor.dim() == 0 or tensor.data_ptr() in PINNED for tensor in tensors)


class Backend(backend_registration._DummyBackendModule):
    """The module that torch asks of the device."""

    def __init__(self) -> None:
        self.generator = torch.Generator()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return list(HALF)

    def get_rng_state(self, device: Any = None) -> Tensor:
        return self.generator.get_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        self.generator.set_state(state)

    @property
    def default_generators(self) -> tuple[torch.Generator]:
        return (self.generator,)

    def manual_seed(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Have the CPU's kernels draw from the device's generator."""
        before = torch.get_rng_state()
        torch.set_rng_state(self.generator.get_state())
        try:
            yield
        finally:
            self.generator.set_state(torch.get_rng_state())
            torch.set_rng_state(before)

    def synchronize(self, device: Any = None) -> None:
        waited("synchronize")

    def get_device_name(self, device: Any = None) -> str:
        return "Pretended"


BACKEND = Backend()


def register() -> None:
    """Make torch know the device, in this process and for good."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=BACKEND)
    library = torch.library.Library("aten", "IMPL")
    _kept.append(library)
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    for operation in IN_HALF:
        library.impl(operation, _in_half(operation), "AutocastPrivateUse1")
    fallback = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    fallback.fallback(torch.library.fallthrough_kernel)
    _kept.append(fallback)
    # Before torch.tensor is another: ``with torch.device(...)`` knows functions by what they were,
    # and transformers asks torch.tensor whether it stands in one, before it fills buffers.
    _device_constructors()
    torch.tensor = _tensor  # type: ignore[assignment]
    Tensor.pin_memory = _pin  # type: ignore[method-assign]
    torch.nn.Module.to = _module_to  # type: ignore[method-assign]
    torch.accelerator.synchronize = lambda *_: waited("synchronize")
    torch.accelerator.max_memory_allocated = lambda *_: 0


_kept: list[torch.library.Library] = []
_own_tensor, _own_to = torch.tensor, torch.nn.Module.to


def _empty(
    size: Any, dtype: Any = None, layout: Any = None, device: Any = None, *_: Any, **__: Any
) -> Pretend:
    return Pretend(torch.empty(size, dtype=dtype, device="cpu"))


def _empty_strided(size: Any, stride: Any, dtype: Any = None, *_: Any, **__: Any) -> Pretend:
    return Pretend(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    real(target).copy_(real(source))
    return target


def _in_half(name: str) -> Callable[..., Any]:
    operation = getattr(torch.nn.functional, name, None) or getattr(torch, name)

    def run(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(NAME)
        options = {key: lowered(value, dtype) for key, value in kwargs.items()}
        with torch.autocast(NAME, enabled=False):
            return operation(*lowered(args, dtype), **options)

    return run


def _tensor(
    data: Any, *, device: Any = None, requires_grad: bool = False, **options: Any
) -> Tensor:
    options.pop("pin_memory", None)
    if device is None or torch.device(device).type != NAME:
        made = _own_tensor(data, device=device, **options)
    else:
        waited("from memory that is not pinned")
        made = Pretend(_own_tensor(data, device=CPU, **options))
    return made.requires_grad_(requires_grad) if requires_grad else made


def _pin(tensor: Tensor, *_: Any) -> Tensor:
    assert not isinstance(tensor, Pretend), "only memory of the host can be pinned"
    copy = tensor.clone()
    PINNED.add(copy.data_ptr())
    # what has this memory next is not pinned
    weakref.finalize(copy.untyped_storage(), PINNED.discard, copy.data_ptr())
    return copy


def _module_to(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """Move a module; torch would swap the data of parameters, which a subclass cannot."""
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    if device is None or device.type not in (NAME, "cpu"):
        return _own_to(module, *args, **kwargs)
    moved: dict[int, Any] = {}

    def there(tensor: Tensor) -> Tensor:
        plain = real(tensor.detach()).as_subclass(Tensor)
        if dtype is not None and plain.is_floating_point():
            plain = plain.to(dtype)
        return Pretend(plain.clone()) if device.type == NAME else plain

    for each in module.modules():
        for name, parameter in each._parameters.items():
            if parameter is not None and id(parameter) not in moved:
                made = torch.nn.Parameter(there(parameter), requires_grad=parameter.requires_grad)
                for key, value in vars(parameter).items():  # of a quantized one its scales
                    if not isinstance(value, torch.nn.Module):
                        there_too = value.to(device) if hasattr(value, "to") else value
                        setattr(made, key, value if there_too is None else there_too)
                moved[id(parameter)] = made
            if parameter is not None:
                each._parameters[name] = moved[id(parameter)]
        for name, buffer in each._buffers.items():
            if buffer is not None:
                each._buffers[name] = there(buffer)
    return module


@contextmanager
def pretending() -> Iterator[Counter[str]]:
    """Register the device, and counts the waits of the block."""
    register()
    WAITS.clear()
    LAUNCHES.clear()
    with Device():
        yield WAITS


def on_pretended(work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return what some work gives in a process of its own that has the device.

    The process is forked from one that has done nothing: once autograd has run it knows of no
    further device.

    Args:
        work: A function of a module.
        arguments: Its own, which can be pickled.
        options: As ``in_new_process`` takes them.
    """
    return in_new_process(_run, work, arguments, **options)


def _run(work: Callable[..., Any], arguments: Any) -> Any:
    with pretending():
        return work(*arguments)
