"""One configuration in a process of its own: times a micro-batch whenever it is told to.

Speaks one JSON object a line. The first says what came before the timed micro-batches: the seconds
of the clipper's self-check, and of the first two micro-batches, which it checks on records. Then
``{"seconds": …}`` follows for each line of input, and ``{"peak_bytes": …}`` at its end. After a
timed micro-batch it takes an AdamW step, so that its peak memory is that of training; or it times
whole updates of several micro-batches. Seconds are CPU time with one thread on the CPU, which other
processes hardly change, and else by the clock.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import nn

from benchmarks.memory import limit_memory
from benchmarks.one_rank import finish_shards, in_dpft_shards, in_torch_shards
from benchmarks.workload import (
    Workload,
    losses_of,
    make_batch,
    make_losses,
    make_model,
    synthetic_batches,
)
from dpft.parallel.shards import ShardedModel
from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.noise import add_noise
from dpft.privacy.randomness import make_randomness

MAX_GRAD_NORM = 0.1
NOISE_STD = 0.1
WARM_UP = 2
Micro = Callable[[], object]


class Prepared(NamedTuple):
    """A configuration whose micro-batches can be run.

    Attributes:
        micro_batch: What is timed.
        after: What is done untimed after it.
        self_check: Seconds of the clipper's self-check; None without one.
    """

    micro_batch: Micro
    after: Micro
    self_check: float | None = None


def main() -> None:
    """Run the workload that the first line of input describes."""
    workload = Workload(**json.loads(sys.stdin.readline()))
    torch.set_num_threads(workload.threads)
    if workload.memory_limit_bytes is not None:
        if workload.engine.startswith("opacus"):
            import benchmarks.peers  # noqa: F401  (libraries are mapped before the limit counts)
        limit_memory(workload.memory_limit_bytes, workload.device)
    with ExitStack() as resources:
        micro_batch, after, self_check = prepare(workload, resources)
        clock = clock_of(workload)

        def take_one() -> float:
            seconds = timed(micro_batch, workload.device, clock)
            after()
            return seconds

        answer(self_check=self_check, first=[take_one() for _ in range(WARM_UP)])
        for _ in sys.stdin:
            answer(seconds=take_one())
    answer(peak_bytes=peak_bytes(workload.device))


def answer(**values: object) -> None:
    """Write one line of output."""
    print(json.dumps(values), flush=True)


def prepare(workload: Workload, resources: ExitStack) -> Prepared:
    """Make a configuration and run its clipper's self-check.

    A workload in shards needs torch's process group (``one_rank``).
    """
    model: nn.Module = make_model(workload)
    if workload.engine.startswith("opacus"):
        from benchmarks.peers import with_dense_layers

        model = with_dense_layers(model)
    shards = _cut(model, workload, resources)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if workload.engine in ("noise", "randn"):
        return Prepared(_noise(workload, parameters), lambda: None)
    optimizer = torch.optim.AdamW(parameters, lr=1e-5)
    micro_batch, self_check = _micro_batch(model, workload, resources, shards)

    def step() -> None:
        if shards is not None:
            finish_shards(shards)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    if workload.accumulate is None:
        return Prepared(micro_batch, step, self_check)
    count, add_its_noise = workload.accumulate, _update_noise(workload, parameters)

    def update() -> None:
        for _ in range(count):
            micro_batch()
        add_its_noise()
        step()

    return Prepared(update, lambda: None, self_check)


def _cut(model: nn.Module, workload: Workload, resources: ExitStack) -> ShardedModel | None:
    """Cut the model if the workload says so; return dpft's shards, or None without any."""
    if workload.parallel == "none":
        return None
    device = torch.device(workload.device)
    if workload.engine == "ordinary":
        in_torch_shards(model, device)
        return None
    return in_dpft_shards(model, device, resources)


def _micro_batch(
    model: nn.Module, workload: Workload, resources: ExitStack, shards: ShardedModel | None
) -> tuple[Micro, float | None]:
    """Return what runs a micro-batch, and the seconds of the self-check."""
    if workload.engine.startswith("opacus"):
        from benchmarks.peers import opacus_micro_batch

        return opacus_micro_batch(model, workload, MAX_GRAD_NORM), None
    if not workload.is_private:
        losses = make_losses(model, workload)
        return lambda: losses().mean().backward(), None
    clipper = resources.enter_context(
        PerExampleClipper(
            model,
            losses_of,
            MAX_GRAD_NORM,
            engine=workload.engine,
            autocast=workload.autocast,
            shards=shards,
        )
    )
    synthetic = synthetic_batches(workload, model)
    seconds = timed(lambda: clipper.self_check(*synthetic), workload.device, clock_of(workload))
    batch = make_batch(workload, model)
    return lambda: clipper.accumulate(batch), seconds


def clock_of(workload: Workload) -> Callable[[], float]:
    """Return the clock that times a workload."""
    has_one_thread = workload.device == "cpu" and workload.threads == 1
    return time.process_time if has_one_thread else time.perf_counter


def timed(work: Micro, device: str, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds that ``work`` takes."""
    start = clock()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def peak_bytes(device: str) -> int:
    """Return the most memory the process has held, the accelerator's where there is one."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _update_noise(workload: Workload, parameters: list[nn.Parameter]) -> Micro:
    """Return what adds an update's noise, each library its own."""
    if workload.engine == "ordinary":
        return lambda: None
    if workload.engine.startswith("opacus"):
        from benchmarks.peers import add_opacus_noise

        return lambda: add_opacus_noise(parameters, NOISE_STD)
    noise = make_randomness(torch.device(workload.device)).noise
    return lambda: add_noise(parameters, NOISE_STD, noise)


def _noise(workload: Workload, parameters: list[nn.Parameter]) -> Micro:
    device = torch.device(workload.device)
    count = sum(p.numel() for p in parameters)
    if workload.engine == "randn":
        return lambda: torch.randn(count, device=device)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    noise = make_randomness(device).noise
    return lambda: add_noise(parameters, NOISE_STD, noise)


if __name__ == "__main__":
    main()
