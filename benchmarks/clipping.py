"""Time and memory of private micro-batches against ordinary ones: ``make bench``.

    python -m benchmarks.clipping --threads 1 --output benchmarks/results.md
    python -m benchmarks.clipping --threads 1 --rows goals
    python -m benchmarks.clipping --pairs 3 --rows full,lora_rows

A micro-batch is forward, backward and accumulation of the clipped sum, against forward and
backward. Each configuration runs in a process of its own, two at a time, which take turns. Every
number is printed on a line of its own, with its goal.
"""

import argparse
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks import tables
from benchmarks.counts import Counts, counts_of
from benchmarks.interleave import CHECKED_RUN, Comparison, compare
from benchmarks.worker import prepare
from benchmarks.workload import Workload

RESULTS = Path(__file__).parent / "results.md"
TITLE = "Clipping: time and memory against ordinary training"
NOTES = (
    "Median ratio of interleaved pairs, with interquartile range: CPU time with one thread, time by"
    "\nthe clock with more. Peak: ratio of the peaks of the whole processes, without settings of"
    "\nglibc, after the same number of micro-batches, each with its AdamW step unless the row"
    "\naccumulates several. First: the two micro-batches that are checked on records, in ordinary"
    "\nmicro-batches. Checks: the share of the self-check and of both of these checks in"
    f"\n{CHECKED_RUN} micro-batches. Seconds: of a private and of an ordinary micro-batch."
)
COLUMNS = (
    "row", "time (interquartile range)", "peak", "goal (time, peak)", "first", "checks",
    "self-check, s", "seconds", "pairs",
)  # fmt: skip
SLOW_PAIRS = 5
"""For the peers."""
SLOW = ("opacus_hooks", "opacus_ghost", "opacus_small")
OPERATIONS, GOAL_ROWS = "operations", "goals"
FULL = Workload(engine="ordinary")
SMALL = replace(FULL, shape="small_gpt2", batch_size=32)
LORA, BITFIT = replace(FULL, method="lora"), replace(FULL, method="bitfit")
HOST = replace(FULL, shape="thin_llama", batch_size=4, length=8, precision="bf16", threads=1)
COUNTED = replace(FULL, shape="thin_gpt2", length=40)
"""Of which operations are counted."""
METHODS = {"full": FULL, "lora": LORA, "bitfit": BITFIT}
NAMES = {
    "full": "full, book-keeping",
    "lora": "LoRA rank 4 / non-private LoRA",
    "bitfit": "BiTFiT / non-private BiTFiT",
}
STEADY = {"full": 1.04, "lora": 1.03, "bitfit": 1.03}
PEAK, FIRST, CHECKS, SELF_CHECK = 1.03, 3.0, 0.04, 6.0
GOALS = {"operations": 1.5, "host reads": 1.0}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison of the table, and its goals.

    Attributes:
        name: Name of the row.
        measured: The private configuration.
        baseline: The ordinary one.
        goals: The largest values hoped for, by number.
    """

    name: str
    measured: Workload
    baseline: Workload
    goals: Mapping[str, float] = field(default_factory=dict)


def rows() -> dict[str, Row]:
    """Return every row by its short name."""
    table: dict[str, Row] = {}

    def add(
        key: str, name: str, shape: Workload, engine: str = "book_keeping",
        baseline: Workload | None = None, **goals: float,
    ) -> None:  # fmt: skip
        measured = replace(shape, engine=engine)
        table[key] = Row(name=name, measured=measured, baseline=baseline or shape, goals=goals)

    checks = {"first": FIRST, "checks": CHECKS, "self-check": SELF_CHECK}
    add("host_full", "22-layer Llama of width 32, bf16, full", HOST, time=1.45)
    add(
        "host_lora", "22-layer Llama of width 32, bf16, LoRA", replace(HOST, method="lora"),
        time=1.2,
    )  # fmt: skip
    for method, shape in METHODS.items():
        long = replace(shape, batch_size=2, length=512)
        name, steady = NAMES[method], {"time": STEADY[method], "peak": PEAK}
        add(method, name, shape, **steady, **checks)
        add(f"{method}_rows", f"{name}, engine rows", shape, "rows")
        add(f"{method}_long", f"{name}, T=512, b=2", long)
        add(f"{method}_long_rows", f"{name}, T=512, b=2, engine rows", long, "rows")
        step = replace(shape, accumulate=3)
        add(f"{method}_step", f"{name}, a step of 3 micro-batches with its noise", step, peak=PEAK)
    recomputed, roberta = replace(FULL, checkpointing=True), replace(FULL, shape="roberta")
    add("checkpointing", "full, gradient checkpointing", recomputed)
    add("checkpointing_rows", "full, gradient checkpointing, engine rows", recomputed, "rows")
    add("roberta", "RoBERTa-base shape, classification, T=128, b=8", replace(roberta, length=128))
    add("resnet18", "ResNet-18 (GroupNorm), 224x224, b=8", replace(FULL, shape="resnet18"))
    add("vit_base", "ViT-base, 224x224, b=8", replace(FULL, shape="vit_base"))
    add("small", "small GPT-2, b=32", SMALL)
    add("small_rows", "small GPT-2, b=32, engine rows", SMALL, "rows")
    add("bitfit_full", "BiTFiT / ordinary full", BITFIT, baseline=FULL)
    add("bitfit_floor", "non-private BiTFiT / ordinary full", BITFIT, "ordinary", FULL)
    add(
        "noise", "noise for 124 M parameters / torch.randn", FULL, "noise",
        replace(FULL, engine="randn"),
    )  # fmt: skip
    if importlib.util.find_spec("opacus"):
        # Opacus rejects tied weights: its head is untied, that of ordinary training is not.
        untied = replace(FULL, shape="gpt2_untied")
        small = replace(SMALL, shape="small_gpt2_untied")
        add("opacus_hooks", "Opacus hooks, full (untied)", untied, "opacus_hooks", FULL)
        add("opacus_ghost", "Opacus ghost, full (untied)", untied, "opacus_ghost", FULL)
        add("opacus_small", "Opacus ghost, small (untied)", small, "opacus_ghost", SMALL)
    return table


def numbers(row: Row, comparison: Comparison) -> Iterator[str]:
    """Yield a line for each number of a comparison."""
    ordinary = comparison.seconds[1]
    values = {"time": comparison.median, "peak": comparison.memory}
    if comparison.self_check is not None and comparison.checks is not None:
        if row.measured.accumulate is None:
            values["first"] = max(comparison.first) / ordinary
            values["checks"] = comparison.checks
        values["self-check"] = comparison.self_check
    for number, value in values.items():
        yield number_line(f"{row.name}: {number}", value, row.goals.get(number))


def number_line(name: str, value: float, goal: float | None) -> str:
    """Return a number with its goal, for the terminal."""
    hoped = "" if goal is None else f"  (goal: at most {goal:g})"
    return f"{name} = {value:.3f}{hoped}"


def table_line(row: Row, comparison: Comparison) -> str:
    """Return a row of the table in Markdown."""
    low, high = comparison.quartiles
    private, ordinary = comparison.seconds
    first = checks = self_check = "-"
    if comparison.self_check is not None and comparison.checks is not None:
        self_check = f"{comparison.self_check:.1f}"
        if row.measured.accumulate is None:
            first = ", ".join(f"{seconds / ordinary:.1f}" for seconds in comparison.first)
            checks = f"{comparison.checks:.1%}"
    goals = ", ".join(f"{row.goals[n]:.2f}" if n in row.goals else "-" for n in ("time", "peak"))
    return (
        f"| {row.name} | {comparison.median:.3f} ({low:.3f} to {high:.3f})"
        f" | {comparison.memory:.3f} | {goals} | {first} | {checks} | {self_check}"
        f" | {private:.2f} / {ordinary:.2f} | {len(comparison.ratios)} |"
    )


def operations() -> dict[str, float]:
    """Return operations dispatched over ordinary ones, and host reads beyond ordinary ones."""
    private, ordinary = (_counted(engine) for engine in ("book_keeping", "ordinary"))
    return {
        "operations": private.operations / ordinary.operations,
        "operations without views": private.kernels / ordinary.kernels,
        "host reads": private.host_reads - ordinary.host_reads,
    }


def _counted(engine: str) -> Counts:
    with ExitStack() as resources:
        micro_batch, after, _ = prepare(replace(COUNTED, engine=engine), resources)
        return counts_of(micro_batch, after)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the rows asked for and write the table."""
    known = rows()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=25)
    names = [OPERATIONS, *known]
    parser.add_argument(
        "--rows",
        default=",".join(names),
        help=f"{', '.join(names)}; or {GOAL_ROWS}, the rows of full, LoRA and BiTFiT training",
    )
    tables.add_options(parser, output=RESULTS)
    options = parser.parse_args(arguments)
    writer = "`make bench` (benchmarks/clipping.py)"
    text = tables.heading(TITLE, options, writer=writer, notes=NOTES, columns=COLUMNS)
    common = tables.machine_fields(options)
    of_goals = [OPERATIONS, *(name for name in known if name.startswith(("host_", *METHODS)))]
    for key in of_goals if options.rows == GOAL_ROWS else options.rows.split(","):
        if key == OPERATIONS:
            for name, value in operations().items():
                print(number_line(name, value, GOALS.get(name)), flush=True)
            continue
        if key not in known:
            parser.error(f"--rows must be some of {', '.join(names)}, got {key!r}")
        row = known[key]
        pairs = min(options.pairs, SLOW_PAIRS) if key in SLOW else options.pairs
        # The rows of the host fix their threads and precision.
        fields = {} if row.baseline.shape == HOST.shape else common
        result = compare(
            replace(row.measured, **fields), replace(row.baseline, **fields), pairs=pairs
        )
        text += table_line(row, result) + "\n"
        print(*numbers(row, result), sep="\n", flush=True)
        tables.write(options.output, text)


if __name__ == "__main__":
    main()
