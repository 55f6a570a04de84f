"""A cap on what a worker may hold, and how to tell that it was too little.

On the CPU the cap is on address space (``RLIMIT_AS``, Linux): the process may map that much beyond
what it had mapped when the cap was set, after imports and thread stacks, so libraries do not count.
glibc must run as ``ENVIRONMENT`` has it, so that what is mapped is what is held and not also the
holes of a fragmented heap; that is slow, so it is not for timing. On an accelerator it is on what
PyTorch's allocator reserves, so the context and the libraries' kernels do not count there either.
"""

import resource
import signal
from pathlib import Path

import torch

ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(2**17)}
"""For capped workers: one arena, as each reserves up to 128 MiB of address space, and a mapping of
its own for each block of 128 KiB or more, where that threshold would else grow to 32 MiB."""
WORDS = (
    "MemoryError",
    "std::bad_alloc",
    "OutOfMemoryError",
    "can't allocate memory",
    "Cannot allocate memory",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Thread creation failed",
)
"""What Python, C++, PyTorch, the kernel, CUDA and OpenMP write before they give up."""


class OutOfMemory(RuntimeError):
    """A worker ended because its memory did not suffice."""


def limit_memory(limit_bytes: int, device: str) -> None:
    """Let this process hold ``limit_bytes`` beyond what it holds now.

    Raises:
        ValueError: More than the accelerator has, or than this process is allowed.
    """
    if device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(limit_bytes / total)
        return
    _start_threads()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_mapped_bytes() + limit_bytes, hard))


def failure(exit_code: int, words: str) -> RuntimeError:
    """Return the error that says why a worker ended.

    Args:
        exit_code: Its exit code; minus the signal's number where a signal ended it.
        words: What it wrote to its standard error.
    """
    last_lines = "\n".join(words.splitlines()[-20:])
    message = f"the worker ended with exit code {exit_code}.\n{last_lines}"
    if exit_code == -signal.SIGKILL or any(word in words for word in WORDS):
        return OutOfMemory(message)
    return RuntimeError(message)


def _start_threads() -> None:
    # A thread's stack is address space of which little is ever used.
    ones = torch.ones(512, 512)
    (ones @ ones).exp()


def _mapped_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
