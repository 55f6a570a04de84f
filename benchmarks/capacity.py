"""Largest micro-batch under a memory cap, and its throughput: ``make capacity``.

    python -m benchmarks.capacity --memory-gb 4 --shape gpt2 --engines ordinary,book_keeping

The protocol is that of Li et al. 2022, Appendix G. Binary search finds the largest micro-batch
with which whole updates fit: two of two accumulated micro-batches each, so that gradients and
optimizer state are there beside the activations. An engine and ordinary training then make
updates of one number of examples, the least common multiple of their two largest micro-batches.

What differs: updates take turns in two processes, timed by the clock rather than the profiler and
without the cap, so that the allocator works as it does in training (the two may hold more than
twice the cap); two updates warm up rather than three; and where the least common multiple passes
``--max-examples``, both micro-batches are rounded down, to the largest product that stays within.
"""

import argparse
import importlib.util
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import tables
from benchmarks.interleave import Comparison, Process, compare
from benchmarks.memory import OutOfMemory
from benchmarks.shapes import SHAPES, untied
from benchmarks.workload import Workload
from dpft.privacy.clipping.options import ENGINE_NAMES

RESULTS = Path(__file__).parent / "capacity.md"
ORDINARY = "ordinary"
PEERS = ("opacus_hooks", "opacus_ghost")
DEFAULT_ENGINES = (ORDINARY, *ENGINE_NAMES)
GB = 2**30
COLUMNS = (
    "engine", "largest micro-batch", "to ordinary", "examples in an update",
    "examples per second / ordinary", "to ordinary (interquartile range)",
)  # fmt: skip

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Race:
    """An engine and ordinary training at updates of one number of examples.

    Attributes:
        sizes: The micro-batch of each, the engine's first.
        comparison: The seconds of their updates.
    """

    sizes: tuple[int, int]
    comparison: Comparison

    @property
    def examples(self) -> int:
        """Examples in an update."""
        return math.lcm(*self.sizes)


def engines() -> tuple[str, ...]:
    """Return the engines that can be measured here."""
    peers = PEERS if importlib.util.find_spec("opacus") else ()
    return (ORDINARY, *ENGINE_NAMES, *peers)


def largest(fits: Callable[[int], bool]) -> int:
    """Return the largest size that fits, 0 if 1 does not.

    Args:
        fits: Whether a size does; true up to some size, false from there on.
    """
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def whole_micro_batches(first: int, second: int, max_examples: int) -> tuple[int, int]:
    """Return the sizes of largest product that a common multiple within bounds allows.

    Args:
        first: Most of the first size.
        second: Most of the second.
        max_examples: Most that their least common multiple may be.
    """
    best = (1, 1)
    for one in range(first, 0, -1):
        for other in range(second, 0, -1):
            if one * other <= math.prod(best):
                break
            if math.lcm(one, other) <= max_examples:
                best = (one, other)
                break
    return best


def largest_micro_batch(workload: Workload) -> int:
    """Return the largest micro-batch of which whole updates fit the workload's memory.

    Raises:
        RuntimeError: A worker failed, and not for want of memory.
    """

    def fits(size: int) -> bool:
        with Process(replace(workload, batch_size=size, accumulate=2)) as process:
            try:
                process.wait_until_ready()
            except OutOfMemory:
                logger.info("%s, micro-batch %d: does not fit", workload.engine, size)
                return False
        logger.info("%s, micro-batch %d: fits", workload.engine, size)
        return True

    return largest(fits)


def race(measured: Workload, baseline: Workload, *, updates: int, max_examples: int) -> Race:
    """Time updates, uncapped, of two workloads whose batch sizes are the largest that fit.

    Raises:
        RuntimeError: A worker failed.
    """
    sizes = whole_micro_batches(measured.batch_size, baseline.batch_size, max_examples)
    examples = math.lcm(*sizes)
    first, second = (
        replace(workload, batch_size=size, accumulate=examples // size, memory_limit_bytes=None)
        for workload, size in zip((measured, baseline), sizes, strict=True)
    )
    return Race(sizes=sizes, comparison=compare(first, second, pairs=updates))


def table_line(engine: str, size: int, ordinary: int, result: Race | None) -> str:
    """Return a row of the table in Markdown; a ``result`` of None leaves the speed out."""
    line = f"| {engine} | {size} | {size / ordinary:.3f} |"
    if result is None:
        return f"{line} - | - | - |"
    counts = " = ".join(f"{result.examples // own} x {own}" for own in result.sizes)
    speeds = " / ".join(f"{result.examples / own:.2f}" for own in result.comparison.seconds)
    third, first = (1 / ratio for ratio in result.comparison.quartiles)
    ratio = 1 / result.comparison.median
    spread = f"{ratio:.3f} ({first:.3f} to {third:.3f})"
    return f"{line} {result.examples} = {counts} | {speeds} | {spread} |"


def heading(options: argparse.Namespace) -> str:
    """Return what stands above the table."""
    counted = (
        "PyTorch's allocator" if options.device == "cuda" else "address space beyond the libraries"
    )
    return tables.heading(
        "Capacity: largest micro-batch, and throughput with it",
        options,
        writer="`make capacity` (benchmarks/capacity.py)",
        notes=(
            f"Shape {options.shape}, {options.length} tokens, {options.memory_gb:g} GB (2^30 "
            f"bytes) of {counted}; the protocol of Li et al. 2022, Appendix G.\n"
            "An update is the micro-batches in the fourth column, the engine's and then "
            f"ordinary training's, noise and the AdamW step; medians of {options.updates}, taken "
            f"in turns, uncapped. Micro-batches are rounded down where an update would pass "
            f"{options.max_examples} examples."
        ),
        columns=COLUMNS,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Search and times the engines asked for and write the table."""
    options = _options(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    ordinary = _at_capacity(ORDINARY, options)
    if not ordinary.batch_size:
        raise SystemExit(
            f"ordinary training does not fit in --memory-gb {options.memory_gb:g} even one "
            "example at a time; give it more."
        )
    text = heading(options)
    for engine in dict.fromkeys((ORDINARY, *options.engines)):
        own = ordinary if engine == ORDINARY else _at_capacity(engine, options)
        result = None
        if engine != ORDINARY and own.batch_size:
            result = race(own, ordinary, updates=options.updates, max_examples=options.max_examples)
        line = table_line(engine, own.batch_size, ordinary.batch_size, result)
        text += line + "\n"
        print(line, flush=True)
        options.output.write_text(text, encoding="utf-8")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory-gb", type=_positive(float), default=4.0)
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--length", type=_positive(int), default=100, help="tokens of an example")
    parser.add_argument("--engines", default=",".join(DEFAULT_ENGINES), help=", ".join(engines()))
    parser.add_argument("--updates", type=_positive(int), default=5, help="timed, of each")
    parser.add_argument("--max-examples", type=_positive(int), default=512, help="in an update")
    tables.add_options(parser, output=RESULTS)
    options = parser.parse_args(arguments)
    options.engines = options.engines.split(",")
    for engine in options.engines:
        if engine not in engines():
            parser.error(f"--engines must be some of {', '.join(engines())}, got {engine!r}")
    return options


def _positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"must be positive, got {text}")
        return value

    return parse


def _at_capacity(engine: str, options: argparse.Namespace) -> Workload:
    """Return the engine's workload with the largest micro-batch that fits, 0 if none does."""
    workload = Workload(
        engine=engine,
        # Opacus refuses tied weights.
        shape=untied(options.shape) if engine in PEERS else options.shape,
        length=options.length,
        memory_limit_bytes=int(options.memory_gb * GB),
        **tables.machine_fields(options),
    )
    return replace(workload, batch_size=largest_micro_batch(workload))


if __name__ == "__main__":
    main()
