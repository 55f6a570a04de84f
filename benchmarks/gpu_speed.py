"""Lines of ``make gpu-check`` that are timed, or count what a whole step asks of the host."""

import dataclasses
import io
import json
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks import run_worker
from benchmarks.gpu_lines import Given, Line, Verdict
from benchmarks.gpu_runs import QUICK, command, training
from benchmarks.interleave import Timings, take_turns
from benchmarks.one_rank import one_rank
from benchmarks.run_memory import shape_of_gpt2
from benchmarks.steady import Cost, meter
from benchmarks.worker import prepare, timed
from benchmarks.workload import WholeRun, Workload
from dpft.training import loop

WARM_UP = 3
"""Micro-batches before the measured ones: the clipper checks the first two."""
DRIVER = Path("/proc/driver/nvidia/version")
PLANNED_WITHIN = 0.15
"""How far peak memory may be from what ``dpft plan`` says of it."""
MICRO_BATCH, STEP = "micro-batch", "step"
WAITS = {MICRO_BATCH: 2, STEP: 12}
"""Most times that the host may wait for the device: in a micro-batch, and in a step beyond them."""


def machine(given: Given) -> Verdict:
    """Say what computes: its kind, and in words; ``auto`` takes an accelerator where one is."""
    kind, accelerator = given.device, torch.accelerator.current_accelerator()
    if not torch.accelerator.is_available():
        accelerator = None
    if kind == "auto":
        kind = "cpu" if accelerator is None else accelerator.type
    if kind != "cpu" and (accelerator is None or accelerator.type != kind):
        seen = f"needs a device of kind {kind}, and torch {torch.__version__} finds none"
        return Verdict(False, f"{seen}; on a CPU run it with --device cpu --quick")
    if kind != "cuda":
        return Verdict(True, f"{kind} {'the CPU' if kind == 'cpu' else kind}")
    text = DRIVER.read_text(encoding="utf-8") if DRIVER.exists() else ""
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    driver = found.group(1) if found else "unknown"
    name = torch.cuda.get_device_name()
    return Verdict(True, f"{kind} {name}, driver {driver}, CUDA {torch.version.cuda}")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One configuration of a pair, warmed up."""

    micro_batch: Callable[[], object]
    after: Callable[[], object]
    cost: Cost


def measure(
    measured: Workload, baseline: Workload, *, most_pairs: int, seconds: float
) -> dict[str, Any]:
    """Return what micro-batches of both take: seconds of each pair, and the costs of one.

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
    }


def _side(workload: Workload, resources: ExitStack) -> Side:
    """Make a configuration, warms it up and counts what it takes."""
    import torch._dynamo  # takes seconds

    torch._dynamo.utils.counters.clear()
    own = meter(workload.device)
    own.begin()
    micro_batch, after, _ = prepare(workload, resources)
    for _ in range(WARM_UP):
        timed(micro_batch, workload.device)
        after()
    own.settle()
    cost = own.cost(micro_batch, after)
    return Side(micro_batch=micro_batch, after=after, cost=cost)


def throughput(given: Given, *, workload: Workload, target: float) -> Verdict:
    """Time private micro-batches beside ordinary ones of the same method, in turns."""
    ordinary = dataclasses.replace(workload, device=given.device, threads=torch.get_num_threads())
    if given.quick:
        shape = "tiny_llama" if "llama" in workload.shape else "tiny_gpt2"
        ordinary = dataclasses.replace(ordinary, shape=shape, batch_size=4, length=16)
    private = dataclasses.replace(ordinary, engine="auto")
    pairs, seconds = (3, 5.0) if given.quick else (25, 14.0)
    found = measure(private, ordinary, most_pairs=pairs, seconds=seconds)
    timings = Timings(private=found["private"], ordinary=found["ordinary"])
    own, other = found["costs"]
    tokens = ordinary.batch_size * ordinary.length
    rates = [tokens / statistics.median(each) for each in (timings.private, timings.ordinary)]
    ratio = statistics.median(timings.ratios)
    memory = _beside(own["peak_bytes"], other["peak_bytes"], unit=2**30)
    seen = (
        f"time {timings.spread}, {rates[0]:.3g} of {rates[1]:.3g} tokens/s; peak {memory} GiB;"
        f" launches {_beside(own['launches'], other['launches'])}; host reads"
        f" {own['host_reads']} / {other['host_reads']}; {len(timings.ratios)} pairs"
    )
    holds = None if given.quick else ratio <= target
    return Verdict(holds, seen, found)


def _beside(own: int | None, other: int | None, *, unit: int = 1) -> str:
    """Return two numbers in a unit, and their ratio; ``-`` for what was not counted."""
    if own is None or not other:
        return "-"
    words = [f"{each / unit:.3g}" if unit > 1 else str(each) for each in (own, other)]
    return f"{' / '.join(words)} = {own / other:.2f}"


def noise(given: Given) -> Verdict:
    """Time the noise of GPT-2's 124 million numbers beside as many of torch.randn."""
    shape = "tiny_gpt2" if given.quick else "gpt2"
    both = [
        Workload(engine=engine, shape=shape, device=given.device) for engine in ("noise", "randn")
    ]
    with ExitStack() as resources:
        own, randn = (prepare(each, resources).micro_batch for each in both)
        first = timed(own, given.device)
        timings = take_turns(
            lambda: timed(own, given.device), lambda: timed(randn, given.device),
            pairs=3 if given.quick else 10,
        )  # fmt: skip
    peak = ""
    if given.device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        own()
        peak = f"; {(torch.cuda.max_memory_allocated() - before) / 2**20:.0f} MiB beside the sums"
    milliseconds = [1000 * statistics.median(x) for x in (timings.private, timings.ordinary)]
    ratio = milliseconds[0] / milliseconds[1]
    seen = f"{milliseconds[0]:.4g} ms, {ratio:.1f} x randn's {milliseconds[1]:.3g} ms"
    return Verdict(None, f"{seen}; the first time {first:.1f} s{peak}", vars(timings))


class Waits:
    """Counts the host's waits for the device, apart for micro-batches and the rest of a step."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.now, self.phase = 0, STEP
        self.where: dict[str, int] = {}

    def see(self, message: object, category: object, filename: str, line: int, *_: object) -> None:
        """Count a warning of CUDA's that an operation waits."""
        if "synchroniz" in str(message):
            self.now += 1
            place = f"{self.phase}: {Path(filename).name}:{line}"
            self.where[place] = self.where.get(place, 0) + 1


def waits(given: Given) -> Verdict:
    """Count what CUDA says waits, in the steps of a run after the third."""
    if given.device != "cuda":
        return Verdict(None, "not counted here: CUDA alone says what waits")
    own = Waits(given.device)
    micro: list[int] = []
    steps: list[int] = []
    accumulate, compute = loop.accumulate, loop.compute_gradient
    begun = 0

    def counted(*args: Any, **kwargs: Any) -> None:
        before, own.phase = own.now, MICRO_BATCH
        accumulate(*args, **kwargs)
        own.phase = STEP
        micro.append(own.now - before)

    def begin(*args: Any, **kwargs: Any) -> object:
        nonlocal begun
        if len(steps) == 3:  # the clipper checks the first micro-batches
            own.where.clear()
        steps.append(own.now - begun - sum(micro))
        begun = own.now
        micro.clear()
        return compute(*args, **kwargs)

    words = training(given, "train.precision=bf16")
    with (
        mock.patch.object(loop, "accumulate", counted),
        mock.patch.object(loop, "compute_gradient", begin),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("always")
        warnings.showwarning = own.see  # type: ignore[assignment]
        torch.cuda.set_sync_debug_mode("warn")
        try:
            command(*words, "train.steps=12", f"hydra.run.dir={Path('waits').absolute()}")
        finally:
            torch.cuda.set_sync_debug_mode("default")
    worst = sorted(own.where.items(), key=lambda each: -each[1])[:12]
    per_step = statistics.median(steps[4:])
    per_batch = statistics.median(micro or [0])
    seen = (
        f"a micro-batch {per_batch:g}, a step beyond them {per_step:g}; most in the steps after the"
        f" third: {', '.join(f'{place} {count}' for place, count in worst)}"
    )
    return Verdict(per_batch <= WAITS[MICRO_BATCH] and per_step <= WAITS[STEP], seen)


GPT2 = (
    "task=e2e", "task.source=embedded", "eval.enabled=false", "train.steps=4",
    "privacy.noise_multiplier=1", "privacy.accountant=rdp", "train.learning_rate=1e-3",
    "model=gpt2", "model.init=random", "task.max_length=64", "decode.max_new_tokens=32",
    "train.expected_batch_size=64", "train.micro_batch_size=16",
)  # fmt: skip


def _gpt2_words(given: Given, *words: str) -> list[str]:
    path = shape_of_gpt2(Path("gpt2").absolute())
    words = (*GPT2, f"model.path={path}", f"train.device={given.device}", *words)
    if given.quick:
        sizes = {"n_embd": 64, "n_layer": 2, "n_head": 2}
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | sizes))
        words = (*words, *QUICK)
    return list(words)


def memory(given: Given, *, words: Sequence[str]) -> Verdict:
    """Measure the allocator's peak in a run of GPT-2's 124M shape, beside what the plan says."""
    words = _gpt2_words(given, *words)
    record = json.loads(command("plan", *words, "plan.measure=false", "output=json"))
    plan = record["memory_per_rank_bytes"]["total"]
    if given.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    command("train", *words, f"hydra.run.dir={Path('run').absolute()}")
    if given.device != "cuda":
        return Verdict(None, f"no allocator to ask here; the plan says {plan / 1e6:.0f} MB")
    held = torch.cuda.max_memory_allocated()
    seen = f"{held / 1e6:.0f} of {plan / 1e6:.0f} MB = {held / plan:.2f}"
    return Verdict(abs(held / plan - 1) <= PLANNED_WITHIN, seen)


def parts(given: Given, *, method: str) -> Verdict:
    """Time the steps of a whole run of GPT-2's 124M shape, and their parts."""
    words = _gpt2_words(
        given, f"method={method}", "train.precision=bf16", "train.steps=30",
        *(() if given.quick else ("train.expected_batch_size=256", "train.micro_batch_size=64")),
    )  # fmt: skip
    count = 3 if given.quick else 10
    run = WholeRun(words=tuple(words), threads=torch.get_num_threads())
    told, said = io.StringIO(json.dumps(asdict(run)) + "\n" * (count + 1)), io.StringIO()
    with redirect_stdout(said), mock.patch.object(sys, "stdin", told):
        run_worker.main()
    steps = [json.loads(line) for line in said.getvalue().splitlines() if "seconds" in line[:12]]
    whole = statistics.median(step["seconds"] for step in steps)
    names = sorted({name for step in steps for name in step["parts"]})
    each = {n: statistics.median(s["parts"].get(n, 0.0) for s in steps) for n in names}
    records = statistics.median(step["records"] for step in steps)
    seen = f"a step of {records:g} records {1000 * whole:.4g} ms: "
    seen += ", ".join(f"{name} {1000 * value:.4g}" for name, value in each.items())
    return Verdict(None, f"{seen}; {len(steps)} steps", {"steps": steps})


ORDINARY = Workload(engine="ordinary", precision="bf16")
GPT2_BATCH = dataclasses.replace(ORDINARY, batch_size=64, length=100)
LLAMA_BATCH = dataclasses.replace(ORDINARY, shape="llama_1b", batch_size=4, length=1024)
MEASURED: Mapping[str, tuple[Workload, float]] = {
    "gpt2_full": (GPT2_BATCH, 1.15),
    "gpt2_lora": (dataclasses.replace(GPT2_BATCH, method="lora"), 1.05),
    "gpt2_bitfit": (dataclasses.replace(GPT2_BATCH, method="bitfit"), 1.05),
    "llama1b_lora": (dataclasses.replace(LLAMA_BATCH, method="lora"), 1.05),
    "llama1b_full": (LLAMA_BATCH, 1.15),
    "gpt2_full_fp32": (dataclasses.replace(GPT2_BATCH, precision="fp32"), 1.15),
    "llama350m_fsdp": (
        dataclasses.replace(LLAMA_BATCH, shape="llama_350m", batch_size=8, parallel="fsdp"),
        1.18,
    ),
}
"""Ordinary micro-batches, and the target of the private ones' time over theirs."""
IN_MEMORY: Mapping[str, tuple[str, ...]] = {
    "full": ("method=full",),
    "lora": ("method=lora",),
    "bitfit": ("method=bitfit",),
    "bf16": ("method=full", "train.precision=bf16"),
}
SPEED: Mapping[str, Line] = {
    "waits": Line(
        work=waits, limit=90.0, alone=True,
        says="host waits: at most 2 a micro-batch, 12 a step beyond them",
    ),
    "noise_time": Line(
        work=noise, limit=60.0, alone=True, says="noise of 124 million numbers beside torch.randn"
    ),
    **{
        f"time_{name}": Line(
            work=partial(throughput, workload=workload, target=target),
            limit=60.0,
            alone=True,
            says=(
                f"{workload.shape}, {workload.method}, {workload.precision},"
                f" b={workload.batch_size}, t={workload.length}: private over ordinary at most"
                f" {target:g}"
            ),
        )
        for name, (workload, target) in MEASURED.items()
    },
    **{
        f"memory_{name}": Line(
            work=partial(memory, words=words), limit=60.0, alone=True,
            says=f"peak of a run of GPT-2 124M, {' '.join(words)}, within 15 % of the plan",
        )
        for name, words in IN_MEMORY.items()
    },
    **{
        f"step_{method}": Line(
            work=partial(parts, method=method), limit=80.0, alone=True,
            says=f"parts of a whole step, GPT-2 124M, {method}, bf16",
        )
        for method in ("full", "lora")
    },
}  # fmt: skip
