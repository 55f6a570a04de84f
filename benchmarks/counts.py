"""What a micro-batch costs, counted and not timed: operations, back-propagations and memory.

Counted where torch dispatches to its kernels, below autograd, so that what custom backward passes,
hooks and in-place additions do counts as well. Exact: two runs give the same numbers on every
machine.
"""

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

aten = torch.ops.aten
FORMULAS: Mapping[Any, Callable[..., int]] = {
    **flop_registry,
    # Torch has formulas for its other attentions, but not for that of a processor.
    aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: sdpa_backward_flop,
}
FREE = (aten._unsafe_view,)
"""What makes a tensor of memory that is there already, beside the views that say so."""

READS = (
    aten._local_scalar_dense, aten.nonzero, aten._unique, aten._unique2, aten.unique_dim,
    aten.unique_consecutive, aten.equal, aten.masked_select,
)  # fmt: skip


class Counts(TorchDispatchMode):
    """Counts what runs inside it.

    Attributes:
        operations: Number of operations, including views.
        kernels: Number of operations except views; on an accelerator most are a launch.
        host_reads: Numbers read by the host, which waits for the device: ``item``, ``tolist``, and
            results whose shape depends on data.
        products: Operations of matrix products, attention's included; a multiplication and an
            addition are two, as in Bu et al. 2022, Table 2.
        others: Numbers that all other operations read and write; views are free.
        passes: Back-propagations.
        kept_bytes: What was made inside and still there when the first back-propagation ended.
        peak_bytes: Most of what was made inside and there at one time. What a kernel has for
            itself, and the parameters, which were there before, are left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.kernels = self.host_reads = 0
        self.products, self.others, self.passes = 0, 0, 0
        self.kept_bytes, self.peak_bytes = 0, 0
        self._alive_bytes = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.operations += 1
        self.kernels += not func.is_view
        self.host_reads += func._overloadpacket in READS
        outputs = func(*args, **(kwargs or {}))
        read, written = _tensors((args, kwargs)), _tensors(outputs)
        packet = func._overloadpacket
        if packet in FORMULAS:
            self.products += FORMULAS[packet](*args, **(kwargs or {}), out_val=outputs)
        elif not func.is_view and packet not in FREE:
            self.others += sum(tensor.numel() for tensor in read + written)
        before = {tensor.untyped_storage()._cdata for tensor in read}
        for tensor in written:
            if tensor.untyped_storage()._cdata not in before:
                self._watch(tensor.untyped_storage())
        return outputs

    def ended_backward(self) -> None:
        """Take note of a back-propagation that has ended."""
        if self.passes == 0:
            self.kept_bytes = self._alive_bytes
        self.passes += 1

    def _watch(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            return

        def freed(_: object) -> None:
            del self._alive[key]
            self._alive_bytes -= size

        self._alive[key] = weakref.ref(storage, freed)
        self._alive_bytes += size
        self.peak_bytes = max(self.peak_bytes, self._alive_bytes)


@contextmanager
def counting() -> Iterator[Counts]:
    """Count what runs inside the block."""
    counts, backward, tolist = Counts(), torch.autograd.backward, Tensor.tolist

    def watched(*arguments: Any, **options: Any) -> None:
        backward(*arguments, **options)
        counts.ended_backward()

    def read(tensor: Tensor) -> Any:
        counts.host_reads += 1  # It dispatches no operation.
        return tolist(tensor)

    gc.collect()
    with (
        mock.patch.object(torch.autograd, "backward", watched),
        mock.patch.object(Tensor, "tolist", read),
        counts,
    ):
        yield counts


def counts_of(work: Callable[[], object], before: Callable[[], object]) -> Counts:
    """Return what some work costs in the steady state.

    Args:
        work: A micro-batch. It runs twice before it is counted, because a clipper checks its first
            two micro-batches.
        before: What is done before each run, uncounted.
    """
    for _ in range(2):
        before()
        with Counts():
            work()
    before()
    with counting() as counts:
        work()
    return counts


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
