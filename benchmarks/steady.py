"""What a micro-batch costs in the steady state: launches, host reads and memory.

A host read is a look at the device for which the host waits: a number read (``item``, ``tolist``)
or a result whose shape depends on data. They are counted from torch's profiler on any device, and
``tolist`` where it is called, as the profiler does not see it. On an accelerator launches are the
kernels that the profiler saw run, and memory is its allocator's; on the CPU they are the operations
and the bytes that ``counts`` counts.
"""

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from unittest import mock

import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from benchmarks.counts import counts_of

READS = frozenset(
    f"aten::{name}"
    for name in (
        "_local_scalar_dense", "nonzero", "_unique", "_unique2", "unique_dim",
        "unique_consecutive", "equal", "masked_select",
    )
)  # fmt: skip
NO_KERNELS = ("Memcpy", "Memset")
"""How the names of what the profiler sees on an accelerator beside kernels begin."""
Micro = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one micro-batch takes."""

    launches: int | None
    """Kernels on an accelerator, operations on the CPU; None where they cannot be counted."""
    host_reads: int
    peak_bytes: int | None
    """Most that is held meanwhile: weights, the optimizer's moments and what an engine keeps."""


class Meter(ABC):
    """Measures one configuration of several that a process holds."""

    @abstractmethod
    def begin(self) -> None:
        """Take note of what is held before the configuration's model is made."""

    @abstractmethod
    def settle(self) -> None:
        """Take note of what the configuration holds between micro-batches."""

    @abstractmethod
    def cost(self, micro_batch: Micro, after: Micro) -> Cost:
        """Return what a micro-batch takes that has run before.

        Args:
            micro_batch: It is run several times.
            after: What is done after each.
        """


class CudaMeter(Meter):
    """Asks the accelerator's allocator and the profiler."""

    def begin(self) -> None:
        """Take note of what others hold."""
        self._before = torch.cuda.memory_allocated()

    def settle(self) -> None:
        """Take note of what is held beyond that."""
        self._held = torch.cuda.memory_allocated() - self._before

    def cost(self, micro_batch: Micro, after: Micro) -> Cost:
        """Return it; the profiler's micro-batch is another than that of the peak."""
        others = torch.cuda.memory_allocated() - self._held
        torch.cuda.reset_peak_memory_stats()
        micro_batch()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - others
        after()
        events, reads = _of_two(micro_batch, after, ProfilerActivity.CUDA)
        return Cost(launches=kernels(events), host_reads=reads, peak_bytes=peak)


class CpuMeter(Meter):
    """Counts operations and the tensors that they make."""

    def begin(self) -> None:
        """Take note of what others hold."""
        self._before = _tensor_bytes()

    def settle(self) -> None:
        """Take note of what is held beyond that."""
        self._held = _tensor_bytes() - self._before

    def cost(self, micro_batch: Micro, after: Micro) -> Cost:
        """Return it; operations and host reads are counted in turns."""
        _, reads = _of_two(micro_batch, after)
        counts = counts_of(micro_batch, after)
        after()
        peak = self._held + counts.peak_bytes
        return Cost(launches=counts.operations, host_reads=reads, peak_bytes=peak)


def meter(device: str) -> Meter:
    """Return the one of a device."""
    return CudaMeter() if device == "cuda" else CpuMeter()


def _of_two(
    micro_batch: Micro, after: Micro, *activities: ProfilerActivity
) -> tuple[list[FunctionEvent], int]:
    """Return what was profiled of the micro-batch with fewer host reads, of two in a row.

    At its 2nd, 4th, 8th micro-batch and so on the clipper compares all of the model's state.
    """
    found = []
    for _ in range(2):
        found.append(profiled(micro_batch, *activities))
        after()
    return min(found, key=lambda events_and_reads: events_and_reads[1])


def profiled(work: Micro, *activities: ProfilerActivity) -> tuple[list[FunctionEvent], int]:
    """Return what torch's profiler saw of some work, and how many host reads there were."""
    lists, own = 0, Tensor.tolist

    def counted(tensor: Tensor) -> object:
        nonlocal lists
        lists += 1
        return own(tensor)

    with (
        mock.patch.object(Tensor, "tolist", counted),
        profile(activities=[ProfilerActivity.CPU, *activities], acc_events=True) as seen,
    ):
        work()
        if ProfilerActivity.CUDA in activities:
            torch.cuda.synchronize()
    events = list(seen.events() or ())
    return events, lists + host_reads(events)


def host_reads(events: Iterable[FunctionEvent]) -> int:
    """Return how many operations read the device, those inside of one of them left out."""
    return sum(event.name in READS and not _is_inside_a_read(event) for event in events)


def kernels(events: Iterable[FunctionEvent]) -> int | None:
    """Return how many kernels ran; None where the profiler was not let see any."""
    count = sum(
        event.device_type == DeviceType.CUDA
        and not event.is_user_annotation
        and not event.name.startswith(NO_KERNELS)
        for event in events
    )
    return count or None


def _is_inside_a_read(event: FunctionEvent) -> bool:
    parent = event.cpu_parent
    while parent is not None and parent.name not in READS:
        parent = parent.cpu_parent
    return parent is not None


def _tensor_bytes() -> int:
    """Return what all tensors of this process hold in the processor's memory."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if issubclass(type(each), Tensor)]
    storages = [t.untyped_storage() for t in tensors if t.device.type == "cpu" and _is_real(t)]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def _is_real(tensor: Tensor) -> bool:
    """Whether a tensor holds its numbers itself, as one in shards or of a ``vmap`` does not."""
    return type(tensor) in (
        Tensor,
        nn.Parameter,
    ) and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
