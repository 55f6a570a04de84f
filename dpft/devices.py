"""Devices: find the accelerator, measure its memory, synchronize it; any kind that torch supports.

Whatever differs between kinds of devices is asked here, by ``torch.accelerator`` and by the module
that torch has for a kind (``torch.cuda``, which AMD's devices go by as well, ``torch.xpu``,
``torch.mps``, or one that a package brings), so that nothing else in dpft names a kind.

>>> import torch
>>> chosen_device("cpu"), device_name(torch.device("cpu"))
(device(type='cpu'), '')
"""

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

PARTS_WITH_PRECISION = (
    "backends", "backends.cuda.matmul", "backends.cudnn", "backends.cudnn.conv",
    "backends.cudnn.rnn", "backends.mkldnn", "backends.mkldnn.matmul", "backends.mkldnn.conv",
    "backends.mkldnn.rnn",
)  # fmt: skip
"""What of torch may compute float32 with fewer bits, on accelerators and on processors."""
REDUCED_SUMS = (
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_reduced_precision_reduction",
    "allow_fp16_accumulation",
)
"""Flags of CUDA's and AMD's products that allow sums in half precision."""


def accelerator() -> torch.device | None:
    """Return the kind of accelerator that this machine has; None: the processor computes."""
    if not torch.accelerator.is_available():
        return None
    return torch.accelerator.current_accelerator()


def chosen_device(word: str) -> torch.device | None:
    """Return the device that a word names; None where the machine has none of that kind.

    Args:
        word: cpu; accelerator, or its kind, such as cuda; or auto, which is an accelerator where
            there is one.
    """
    there = accelerator()
    if word == "cpu" or (word == "auto" and there is None):
        return torch.device("cpu")
    if there is None or word not in ("auto", "accelerator", there.type):
        return None
    return there


def best_device() -> torch.device:
    """Return the accelerator, or where there is none the processor."""
    return accelerator() or torch.device("cpu")


def device_name(device: torch.device) -> str:
    """Return what an accelerator calls itself, for journals and reports; "" for a processor."""
    if device.type == "cpu":
        return ""
    ask = getattr(torch.get_device_module(device), "get_device_name", None)
    return device.type if ask is None else str(ask(device))


def total_memory(device: torch.device) -> int | None:
    """Return the bytes of an accelerator's own memory; None: it does not say."""
    module = torch.get_device_module(device)
    if device.type == "mps":
        return int(module.recommended_max_memory()) if module.is_available() else None
    ask = getattr(module, "get_device_properties", None)
    return None if ask is None else int(ask(device).total_memory)


def free_and_total_memory() -> tuple[int, int] | None:
    """Return the bytes that are free on the accelerator, and all; None: it does not say."""
    ask = getattr(torch.get_device_module(accelerator()), "mem_get_info", None)
    return None if ask is None else ask()


def peak_memory(device: torch.device) -> int:
    """Return the most bytes of an accelerator that this process's tensors have had."""
    return int(torch.accelerator.max_memory_allocated(device.index))


def synchronize(device: torch.device) -> None:
    """Wait until an accelerator has done all that it was given; for whoever looks at a clock."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device.index)


def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64, which noise is drawn in."""
    return device.type != "mps"


def group_backends(device: torch.device | None) -> str:
    """Return what processes talk by: through the processor's memory, and between devices."""
    if device is None:
        return "gloo"
    between: str = torch.distributed.get_default_backend_for_device(device)
    return f"cpu:gloo,{device.type}:{between}"


def only_whole_precision() -> None:
    """Have products computed in the precision of their factors, and added up in float32.

    TF32 keeps ten bits of a factor, and sums in half precision fewer: norms and sums would not be
    float32's. Torch has had two ways to say so, which must not contradict each other.
    """
    torch.set_float32_matmul_precision("highest")
    backends: Any = torch.backends
    backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = False
    for part in float32_precisions():  # from torch 2.9 on
        attrgetter(part)(torch).fp32_precision = "ieee"
    for name in REDUCED_SUMS:
        setattr(torch.backends.cuda.matmul, name, False)


@contextmanager
def whole_precision() -> Iterator[None]:
    """Run the block as after ``only_whole_precision``, and restore the caller's settings.

    PyTorch's default is TF32 for an accelerator's convolutions, and a training script may choose it
    for all products (``torch.set_float32_matmul_precision("high")``).
    """
    before, matmul = float32_precisions(), torch.backends.cuda.matmul
    reduced = {name: getattr(matmul, name) for name in REDUCED_SUMS}
    old = []
    for ask, choose in _OLD_WAYS:
        with suppress(RuntimeError):  # What the new way has said since is not to be said so.
            old.append((choose, ask()))
    only_whole_precision()
    try:
        yield
    finally:
        for name, chosen in reduced.items():
            setattr(matmul, name, chosen)
        for choose, chosen in old:
            choose(chosen)
        for part, precision in before.items():
            if (holder := attrgetter(part)(torch)).fp32_precision != precision:
                holder.fp32_precision = precision


def float32_precisions() -> dict[str, str]:
    """Return what each part of torch computes float32 with, the whole before what is in it."""
    holders = {part: attrgetter(part)(torch) for part in PARTS_WITH_PRECISION}
    return {
        p: holder.fp32_precision
        for p, holder in holders.items()
        if hasattr(holder, "fp32_precision")
    }


_OLD_WAYS: Sequence[tuple[Any, Any]] = (
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (lambda: torch.backends.cudnn.allow_tf32, partial(setattr, torch.backends.cudnn, "allow_tf32")),
)
"""How to ask, and to say, what float32 is computed with, before torch 2.9."""


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Return the context in which a model computes in ``dtype``; None changes nothing."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


@cache
def multiplies_halves(device: torch.device) -> bool:
    """Whether a device multiplies half precision into float32, without rounding in between."""
    if device.type in ("cpu", "meta"):
        return False
    with (
        torch._C.DisableTorchFunction(),
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),
    ):
        matrix = torch.full((16, 16), 1 + 2.0**-7, dtype=torch.bfloat16, device=device)
        total = torch.ones(16, 16, device=device)
        try:
            torch.addmm(total, matrix, matrix, out_dtype=torch.float32, out=total)
            stack = matrix.expand(2, 16, 16)
            total += torch.bmm(stack, stack, out_dtype=torch.float32)[1]
        except (NotImplementedError, RuntimeError, TypeError):
            return False
        return bool((total == 1 + 32 * (1 + 2.0**-7) ** 2).all())


def add_in_one_order(device: torch.device, *, strictly: bool = False) -> None:
    """Have an accelerator's kernels add in one order, until ``order_of_addition_kept`` ends.

    A step that is taken again then gives the same bits, and a run that broke off goes on without
    new noise (docs/dev/design.md, rule 9).

    Args:
        device: What computes; nothing changes for a processor.
        strictly: Whether kernels that know no one order raise an error, and those of attention
            take one; else both add as before.
    """
    if device.type == "cpu":
        return
    # cuBLAS reads it when it is first asked for a product.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if not strictly:
        warnings.filterwarnings("ignore", message="(?is).*deterministic")
    torch.use_deterministic_algorithms(True, warn_only=not strictly)
    memory: Any = torch.utils.deterministic
    memory.fill_uninitialized_memory = False  # else each new tensor is written once more


@contextmanager
def order_of_addition_kept() -> Iterator[None]:
    """Put back at the end what was said of the order in which kernels add."""
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    enabled = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warns)
        memory.fill_uninitialized_memory = filled


def sent(numbers: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return numbers of the host as a tensor, without a wait for what the device is doing."""
    return moved(torch.tensor(numbers, dtype=dtype), device)


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device, without a wait for what the device is doing."""
    if device.type not in ("cpu", "meta", "mps") and tensor.device.type == "cpu":
        # From other memory the copy would be waited for, and all work before it.
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def add_rows(into: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """Add ``rows[i]`` to ``into[index[i]]`` in place, and give the same bits each time.

    An accelerator's ``index_add_`` adds what has one index in any order, so that no step of a run
    could be taken again bit for bit; its ``index_put_`` sorts first.
    """
    if into.device.type == "cpu":
        return into.index_add_(0, index, rows)
    return into.index_put_((index,), rows, accumulate=True)


def random_state(device: torch.device) -> Tensor | None:
    """Return the state of an accelerator's generator; None of a processor, which has torch's."""
    if device.type in ("cpu", "meta"):
        return None
    module = torch.get_device_module(device)
    state: Tensor = module.get_rng_state(*(() if device.type == "mps" else (device,)))
    return state


def set_random_state(device: torch.device, state: Tensor) -> None:
    """Put an accelerator's generator into a state that ``random_state`` returned."""
    module = torch.get_device_module(device)
    module.set_rng_state(state, *(() if device.type == "mps" else (device,)))


def seed_generator(device: torch.device, seed: int) -> None:
    """Seeds an accelerator's generator, which its kernels draw from."""
    module = torch.get_device_module(device)
    generators = getattr(module, "default_generators", None)
    if generators:
        generators[device.index or 0].manual_seed(seed)
    else:
        module.manual_seed(seed)


@contextmanager
def random_states_kept(devices: Iterable[torch.device]) -> Iterator[None]:
    """Put the states of the processor's generator and of some accelerators' back at the end."""
    cpu_state = torch.get_rng_state()
    states = {device: random_state(device) for device in devices}
    try:
        yield
    finally:
        torch.set_rng_state(cpu_state)
        for device, state in states.items():
            if state is not None:
                set_random_state(device, state)
