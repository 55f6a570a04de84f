"""A process that measures pairs of configurations, each pair in turns, one pair a line of input.

Speaks one JSON object a line, as ``benchmarks.worker``. It ends with the first pair that fails, of
memory for instance, and whoever started it reads why in its standard error and starts another.
"""

import gc
import json
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

from benchmarks.interleave import take_turns
from benchmarks.one_rank import one_rank
from benchmarks.steady import Cost, meter
from benchmarks.worker import answer, prepare, timed
from benchmarks.workload import Pairs, Workload

WARM_UP = 3
"""Micro-batches: of a private engine the first is proved, and the second may be compiled."""
DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One configuration of a pair, warmed up."""

    micro_batch: Callable[[], object]
    after: Callable[[], object]
    cost: Cost
    ran_compiled: bool


def main() -> None:
    """Measures the pairs that the input describes."""
    _keep_output_for_answers()
    given = Pairs(**json.loads(sys.stdin.readline()))
    torch.set_num_threads(given.threads)
    answer(ready=True, machine=machine(given.device))
    for line in sys.stdin:
        asked = json.loads(line)
        answer(
            **measure(
                Workload(**asked["measured"]),
                Workload(**asked["baseline"]),
                most_pairs=asked["pairs"],
                seconds=asked["seconds"],
            )
        )
        torch._dynamo.reset()
        gc.collect()
        if given.device == "cuda":
            torch.cuda.empty_cache()


def _keep_output_for_answers() -> None:
    """Sends what libraries print, NCCL among them, where errors go."""
    answers = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(answers, "w")


def machine(device: str) -> str:
    """Returns what computes, and the driver and the CUDA that it is driven by."""
    if device != "cuda":
        return "the CPU"
    text = DRIVER.read_text(encoding="utf-8") if DRIVER.exists() else ""
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    driver = found.group(1) if found else "unknown"
    return f"{torch.cuda.get_device_name()}, driver {driver}, CUDA {torch.version.cuda}"


def measure(
    measured: Workload, baseline: Workload, *, most_pairs: int, seconds: float
) -> dict[str, Any]:
    """Returns what micro-batches of both take: seconds of each pair, and the costs of one.

    Args:
        measured: Beside the baseline; the two are in this process together.
        baseline: On the same device.
        most_pairs: How many pairs to time; fewer where time is short, but two.
        seconds: What all of it may take, about.
    """
    begun = time.monotonic()
    with ExitStack() as resources:
        if {measured.parallel, baseline.parallel} != {"none"}:
            resources.enter_context(one_rank())
        first, second = (_side(each, resources) for each in (measured, baseline))
        device = measured.device
        pair = timed(first.micro_batch, device) + timed(second.micro_batch, device)
        left = (seconds - (time.monotonic() - begun)) / 2

        def step() -> None:
            first.after()
            second.after()

        timings = take_turns(
            lambda: timed(first.micro_batch, device),
            lambda: timed(second.micro_batch, device),
            pairs=max(2, min(most_pairs, int(left / max(pair, 1e-6)))),
            warm_up=1,
            before=step,
        )
    return {
        "private": timings.private,
        "ordinary": timings.ordinary,
        "costs": [asdict(first.cost), asdict(second.cost)],
        "ran_compiled": first.ran_compiled,
    }


def _side(workload: Workload, resources: ExitStack) -> Side:
    """Makes a configuration, warms it up and counts what it takes."""
    torch._dynamo.utils.counters.clear()
    own = meter(workload.device)
    own.begin()
    micro_batch, after = prepare(workload, resources)
    for _ in range(WARM_UP):
        timed(micro_batch, workload.device)
        after()
    own.settle()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    cost = own.cost(micro_batch, after, is_compiled=graphs > 0)
    return Side(micro_batch=micro_batch, after=after, cost=cost, ran_compiled=graphs > 0)


if __name__ == "__main__":
    main()
