"""Devices of any type that torch supports: detection, memory, precision, order of additions.

This module handles all differences between device types. It uses ``torch.accelerator`` and the
module of each type: ``torch.cuda`` (also for AMD devices), ``torch.xpu``, ``torch.mps``, or a
module of another package. No other part of dpft names a device type.

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
"""Parts of torch that may compute float32 with reduced precision, on accelerators and on CPUs."""
REDUCED_SUMS = (
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_reduced_precision_reduction",
    "allow_fp16_accumulation",
)
"""Flags that allow matrix products on CUDA and AMD devices to add in half precision."""


def accelerator() -> torch.device | None:
    """Return the type of accelerator of this machine, or None if it has only a CPU."""
    if not torch.accelerator.is_available():
        return None
    return torch.accelerator.current_accelerator()


def chosen_device(word: str) -> torch.device | None:
    """Return the device for a configured name, or None if the machine has no such device.

    Args:
        word: One of cpu, accelerator, the type of an accelerator (such as cuda), or auto. auto
            means the accelerator if there is one, and otherwise the CPU.
    """
    there = accelerator()
    if word == "cpu" or (word == "auto" and there is None):
        return torch.device("cpu")
    if there is None or word not in ("auto", "accelerator", there.type):
        return None
    return there


def best_device() -> torch.device:
    """Return the accelerator, or the CPU if there is no accelerator."""
    return accelerator() or torch.device("cpu")


def device_name(device: torch.device) -> str:
    """Return the name of an accelerator for journals and reports; "" for the CPU."""
    if device.type == "cpu":
        return ""
    ask = getattr(torch.get_device_module(device), "get_device_name", None)
    return device.type if ask is None else str(ask(device))


def total_memory(device: torch.device) -> int | None:
    """Return the bytes of an accelerator's own memory, or None if it is unknown."""
    module = torch.get_device_module(device)
    if device.type == "mps":
        return int(module.recommended_max_memory()) if module.is_available() else None
    ask = getattr(module, "get_device_properties", None)
    return None if ask is None else int(ask(device).total_memory)


def free_and_total_memory() -> tuple[int, int] | None:
    """Return the free and the total bytes of the accelerator, or None if they are unknown."""
    ask = getattr(torch.get_device_module(accelerator()), "mem_get_info", None)
    return None if ask is None else ask()


def peak_memory(device: torch.device) -> int:
    """Return the maximum bytes of accelerator memory that this process's tensors have used."""
    return int(torch.accelerator.max_memory_allocated(device.index))


def synchronize(device: torch.device) -> None:
    """Wait until an accelerator has finished all its work, before a time is measured."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device.index)


def has_float64(device: torch.device) -> bool:
    """Return whether a device supports float64, which is required for drawing noise."""
    return device.type != "mps"


def group_backends(device: torch.device | None) -> str:
    """Return the names of torch's communication backends for CPU tensors and for device tensors."""
    if device is None:
        return "gloo"
    between: str = torch.distributed.get_default_backend_for_device(device)
    return f"cpu:gloo,{device.type}:{between}"


def only_whole_precision() -> None:
    """Compute products in the precision of their factors, and add them up in float32.

    TF32 keeps ten bits of a factor, and sums in half precision are even less precise. Norms and
    sums would not have float32 precision. Torch has two interfaces for this setting, which must not
    contradict each other.
    """
    torch.set_float32_matmul_precision("highest")
    backends: Any = torch.backends
    backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = False
    for part in float32_precisions():  # Empty before torch 2.9.
        attrgetter(part)(torch).fp32_precision = "ieee"
    for name in REDUCED_SUMS:
        setattr(torch.backends.cuda.matmul, name, False)


@contextmanager
def whole_precision() -> Iterator[None]:
    """Run the block with the settings of ``only_whole_precision``, then restore the old settings.

    PyTorch uses TF32 by default for convolutions on accelerators. A training script may choose it
    for all products (``torch.set_float32_matmul_precision("high")``).
    """
    before, matmul = float32_precisions(), torch.backends.cuda.matmul
    reduced = {name: getattr(matmul, name) for name in REDUCED_SUMS}
    old = []
    for ask, choose in _OLD_WAYS:
        with suppress(RuntimeError):  # Torch rejects old getters after new ones were used.
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
    """Return the float32 precision of each part of torch, each part before its subparts."""
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
"""Getters and setters of the float32 precision in torch versions before 2.9."""


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Return the context in which a model computes in ``dtype``; None changes nothing."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


@cache
def multiplies_halves(device: torch.device) -> bool:
    """Return whether a device adds products of bfloat16 numbers in float32 without rounding them.

    The check multiplies small matrices whose exact result float32 can represent.
    """
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
    """Make an accelerator's kernels add in a fixed order, until ``order_of_addition_kept`` ends.

    A repeated step then gives the same bits, and an interrupted run resumes without new noise
    (docs/dev/design.md, rule 9).

    Args:
        device: The device to compute on; nothing changes for a CPU.
        strictly: If True, attention kernels use a fixed order, and a kernel without a fixed order
            raises an error. If False, these kernels add in any order, without an error.
    """
    if device.type == "cpu":
        return
    # cuBLAS reads this variable when it computes its first product.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if not strictly:
        warnings.filterwarnings("ignore", message="(?is).*deterministic")
    torch.use_deterministic_algorithms(True, warn_only=not strictly)
    memory: Any = torch.utils.deterministic
    memory.fill_uninitialized_memory = False  # Avoids an additional write of each new tensor.


@contextmanager
def order_of_addition_kept() -> Iterator[None]:
    """Restore the settings for the order of additions at the end of the block."""
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
    """Return numbers on the host as a tensor on a device, without waiting for the device."""
    return moved(torch.tensor(numbers, dtype=dtype), device)


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on the host as a tensor on a device, without waiting for the device."""
    if device.type not in ("cpu", "meta", "mps") and tensor.device.type == "cpu":
        # A copy from pageable memory would wait for all previous work of the device.
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def random_state(device: torch.device) -> Tensor | None:
    """Return the state of an accelerator's random generator; None if the device is a CPU."""
    if device.type in ("cpu", "meta"):
        return None
    module = torch.get_device_module(device)
    state: Tensor = module.get_rng_state(*(() if device.type == "mps" else (device,)))
    return state


def set_random_state(device: torch.device, state: Tensor) -> None:
    """Set an accelerator's generator to a state that ``random_state`` returned."""
    module = torch.get_device_module(device)
    module.set_rng_state(state, *(() if device.type == "mps" else (device,)))


def seed_generator(device: torch.device, seed: int) -> None:
    """Seed the random generator of an accelerator, which its kernels use."""
    module = torch.get_device_module(device)
    generators = getattr(module, "default_generators", None)
    if generators:
        generators[device.index or 0].manual_seed(seed)
    else:
        module.manual_seed(seed)


@contextmanager
def random_states_kept(devices: Iterable[torch.device]) -> Iterator[None]:
    """Restore the random generators of the CPU and of the given accelerators after the block."""
    cpu_state = torch.get_rng_state()
    states = {device: random_state(device) for device in devices}
    try:
        yield
    finally:
        torch.set_rng_state(cpu_state)
        for device, state in states.items():
            if state is not None:
                set_random_state(device, state)
