"""One configuration in a process of its own: times a micro-batch whenever it is told to.

Speaks one JSON object a line: ``{"seconds": …}`` for each line it reads, and at the end of its
input ``{"peak_bytes": …, "checks": …}``. Between timed micro-batches it takes an AdamW step, so
that its peak memory is that of training; or it times whole updates, of several micro-batches each.
The peak is that of a whole run, with the first proof and a repeated check: a clipper's process
takes as many micro-batches as that needs.
"""

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from torch import nn

from benchmarks.memory import limit_memory
from benchmarks.one_rank import finish_shards, in_dpft_shards, in_torch_shards
from benchmarks.workload import Workload, make_losses, make_model
from dpft.parallel.shards import ShardedModel
from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.loss_check import FIRST_REPETITION
from dpft.privacy.noise import add_noise
from dpft.privacy.randomness import make_randomness

MAX_GRAD_NORM = 0.1
NOISE_STD = 0.1
CHECKED_RUN = 100
"""Micro-batches of one kind, of which four are the first or come to a repeated check."""
Micro = Callable[[], object]


def main() -> None:
    """Runs the workload that the first line of input describes."""
    workload = Workload(**json.loads(sys.stdin.readline()))
    torch.set_num_threads(workload.threads)
    if workload.memory_limit_bytes is not None:
        if workload.engine.startswith("opacus"):
            import benchmarks.peers  # noqa: F401  (libraries are mapped before the limit counts)
        limit_memory(workload.memory_limit_bytes, workload.device)
    with ExitStack() as resources:
        micro_batch, after = prepare(workload, resources)
        seconds: list[float] = []

        def take_one() -> None:
            seconds.append(timed(micro_batch, workload.device))
            after()

        for _ in range(2):
            take_one()
        answer(ready=True)
        for _ in sys.stdin:
            take_one()
            answer(seconds=seconds[-1])
        while workload.is_checked and len(seconds) * (workload.accumulate or 1) < FIRST_REPETITION:
            take_one()
    checks = share_of_checks(seconds) if workload.is_checked and not workload.accumulate else None
    answer(peak_bytes=peak_bytes(workload.device), checks=checks)


def share_of_checks(seconds: Sequence[float]) -> float:
    """Returns what share of a run of ``CHECKED_RUN`` micro-batches is proofs and checks.

    Args:
        seconds: Of each of the first micro-batches, at least ``FIRST_REPETITION`` of them; a later
            check takes as long as the first repeated one.
    """
    each = statistics.median(seconds)
    repetitions = (CHECKED_RUN // FIRST_REPETITION).bit_length()
    repeated = seconds[FIRST_REPETITION - 1] - each
    checks = seconds[0] - each + repetitions * repeated
    return checks / (CHECKED_RUN * each + checks)


def answer(**values: object) -> None:
    """Writes one line of output."""
    print(json.dumps(values), flush=True)


def prepare(workload: Workload, resources: ExitStack) -> tuple[Micro, Micro]:
    """Returns what is timed, and what is done untimed after it.

    Where the workload is in shards, torch's process group must stand (``one_rank``).
    """
    model: nn.Module = make_model(workload)
    if workload.engine.startswith("opacus"):
        from benchmarks.peers import with_dense_layers

        model = with_dense_layers(model)
    shards = _cut(model, workload, resources)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if workload.engine in ("noise", "randn"):
        return _noise(workload, parameters), lambda: None
    optimizer = torch.optim.AdamW(parameters, lr=1e-5)
    micro_batch = _micro_batch(model, workload, resources, shards)

    def step() -> None:
        if shards is not None:
            finish_shards(shards)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    if workload.accumulate is None:
        return micro_batch, step
    count, add_its_noise = workload.accumulate, _update_noise(workload, parameters)

    def update() -> None:
        for _ in range(count):
            micro_batch()
        add_its_noise()
        step()

    return update, lambda: None


def _cut(model: nn.Module, workload: Workload, resources: ExitStack) -> ShardedModel | None:
    """Cuts a model where the workload says so; returns dpft's shards, None where there are none."""
    if workload.parallel == "none":
        return None
    device = torch.device(workload.device)
    if workload.engine == "ordinary":
        in_torch_shards(model, device)
        return None
    return in_dpft_shards(model, device, resources)


def _micro_batch(
    model: nn.Module, workload: Workload, resources: ExitStack, shards: ShardedModel | None
) -> Micro:
    losses = make_losses(model, workload)
    if workload.engine == "ordinary":
        return lambda: losses().mean().backward()
    if workload.engine.startswith("opacus"):
        from benchmarks.peers import opacus_micro_batch

        return opacus_micro_batch(model, workload, MAX_GRAD_NORM)
    clipper = PerExampleClipper(
        model,
        MAX_GRAD_NORM,
        engine=workload.engine,
        memory_mb=workload.memory_mb,
        shards=shards,
    )
    resources.enter_context(clipper)
    return lambda: clipper.accumulate(losses)


def timed(work: Micro, device: str) -> float:
    """Returns the seconds that ``work`` takes."""
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_bytes(device: str) -> int:
    """Returns the most memory the process has held, the accelerator's where there is one."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _update_noise(workload: Workload, parameters: list[nn.Parameter]) -> Micro:
    """Returns what adds an update's noise, each library its own."""
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
