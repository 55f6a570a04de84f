"""Time and memory of private micro-batches against ordinary ones: ``make bench``.

    python -m benchmarks.clipping --pairs 25 --rows full,two_pass --output benchmarks/results.md
    python -m benchmarks.clipping --pairs 1 --rows lora,bitfit_own --held --output peaks.md

A micro-batch is forward, backward and accumulation of the clipped sum, against forward and
backward. Each configuration runs in a process of its own, two at a time, taking turns.
"""

import argparse
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import tables
from benchmarks.interleave import Comparison, compare
from benchmarks.workload import Workload

RESULTS = Path(__file__).parent / "results.md"
TITLE = "Clipping: time and memory against ordinary training"
NOTES = (
    "Median ratio of interleaved pairs, with interquartile range; memory is the ratio of the "
    "peaks of the\nwhole runs: of the first proof and of a repeated check as well. Checks: the "
    "share that both take of 100 micro-batches."
)
COLUMNS = (
    "row", "time (interquartile range)", "peak of the whole run", "target (time, memory)",
    "seconds", "pairs", "checks",
)  # fmt: skip
SLOW_PAIRS = 5
"""For the peers and the loop."""
MORE_THAN_THERE_IS = 2**45
"""A limit that only sets ``benchmarks.memory.ENVIRONMENT``."""
SLOW = ("small_loop", "opacus_hooks", "opacus_ghost", "opacus_small")
FULL = Workload(engine="ordinary")
SMALL = replace(FULL, shape="small_gpt2", batch_size=32)
LORA, BITFIT = replace(FULL, method="lora"), replace(FULL, method="bitfit")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison of the table, and what is hoped of it."""

    name: str
    measured: Workload
    baseline: Workload
    target: str
    """Time and memory, as ratios to the baseline."""


def rows() -> dict[str, Row]:
    """Returns every row by its short name."""
    long = replace(FULL, batch_size=2, length=512)
    recomputed = replace(FULL, checkpointing=True)
    roberta = replace(FULL, shape="roberta", length=128)
    table = {
        "full": ("full, book-keeping", FULL, "book_keeping", FULL, "1.03, 1.04"),
        "two_pass": ("full, two-pass", FULL, "two_pass", FULL, "1.50, 1.05"),
        "checkpointing": (
            "full, two-pass, gradient checkpointing",
            recomputed, "two_pass", recomputed, "1.35, 1.05",
        ),
        "long": ("full, book-keeping, T=512, b=2", long, "book_keeping", long, "1.12, 1.06"),
        "roberta": (
            "RoBERTa-base shape, classification, T=128, b=8",
            roberta, "book_keeping", roberta, "1.12, 1.08",
        ),
        **_image_rows(),
        "small": ("small GPT-2, b=32", SMALL, "book_keeping", SMALL, "1.20, 1.10"),
        "small_two_pass": ("small GPT-2, b=32, two-pass", SMALL, "two_pass", SMALL, "-"),
        "small_instantiate": ("small GPT-2, b=32, instantiate", SMALL, "instantiate", SMALL, "-"),
        "small_loop": ("small GPT-2, b=32, loop", SMALL, "loop", SMALL, "-"),
        "lora": ("LoRA rank 4 / non-private LoRA", LORA, "instantiate", LORA, "1.00, 1.05"),
        "bitfit": ("BiTFiT / ordinary full", BITFIT, "instantiate", FULL, "0.70, 0.70"),
        "bitfit_floor": ("non-private BiTFiT / ordinary full", BITFIT, "ordinary", FULL, "-"),
        "bitfit_own": (
            "BiTFiT / non-private BiTFiT", BITFIT, "instantiate", BITFIT, "1.02, 1.03",
        ),
        "full_step": (
            "full, book-keeping, a step of 4 micro-batches with its noise",
            replace(FULL, accumulate=4), "book_keeping", replace(FULL, accumulate=4), "-",
        ),
        "noise": (
            "noise for 124 M parameters / torch.randn",
            FULL, "noise", replace(FULL, engine="randn"), "2.50, -",
        ),
    }  # fmt: skip
    if importlib.util.find_spec("opacus"):
        table |= _peers()
    return {
        key: Row(
            name=name,
            measured=replace(shape, engine=engine),
            baseline=baseline,
            target=target,
        )
        for key, (name, shape, engine, baseline, target) in table.items()
    }


def _image_rows() -> dict[str, tuple[str, Workload, str, Workload, str]]:
    resnet, vit = replace(FULL, shape="resnet18"), replace(FULL, shape="vit_base")
    return {
        "resnet18": (
            "ResNet-18 (GroupNorm), 224x224, b=8", resnet, "book_keeping", resnet, "1.50, 1.30",
        ),
        "resnet18_two_pass": (
            "ResNet-18 (GroupNorm), 224x224, b=8, two-pass", resnet, "two_pass", resnet, "-",
        ),
        "vit_base": ("ViT-base, 224x224, b=8", vit, "book_keeping", vit, "1.10, 1.10"),
    }  # fmt: skip


def _peers() -> dict[str, tuple[str, Workload, str, Workload, str]]:
    """Opacus, which refuses tied weights: its head is untied, the baseline's is not."""
    full = replace(FULL, shape="gpt2_untied")
    small = replace(SMALL, shape="small_gpt2_untied")
    return {
        "opacus_hooks": ("Opacus hooks, full (untied)", full, "opacus_hooks", FULL, "-"),
        "opacus_ghost": ("Opacus ghost, full (untied)", full, "opacus_ghost", FULL, "-"),
        "opacus_small": ("Opacus ghost, small (untied)", small, "opacus_ghost", SMALL, "-"),
    }


def table_line(row: Row, comparison: Comparison) -> str:
    """Returns a row of the table in Markdown."""
    first, third = comparison.quartiles
    seconds = " / ".join(f"{value:.2f}" for value in comparison.seconds)
    checks = "-" if comparison.checks is None else f"{comparison.checks:.1%}"
    return (
        f"| {row.name} | {comparison.median:.3f} ({first:.3f} to {third:.3f}) "
        f"| {comparison.memory:.3f} | {row.target} | {seconds} | {len(comparison.ratios)} "
        f"| {checks} |"
    )


def heading(options: argparse.Namespace) -> str:
    """Returns what stands above the table."""
    return tables.heading(
        "Clipping: peak memory of whole runs" if options.held else TITLE,
        options,
        writer="`make bench` (benchmarks/clipping.py)",
        notes=NOTES,
        columns=COLUMNS,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the rows asked for and writes the table."""
    known = rows()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=25)
    parser.add_argument("--rows", default=",".join(known), help=", ".join(known))
    parser.add_argument(
        "--held",
        action="store_true",
        help="glibc gives back at once what is freed, so that a peak has no holes of its heap; "
        "slower, so not for times",
    )
    tables.add_options(parser, output=RESULTS)
    options = parser.parse_args(arguments)
    text = heading(options)
    common = tables.machine_fields(options)
    if options.held:
        common["memory_limit_bytes"] = MORE_THAN_THERE_IS
    for key in options.rows.split(","):
        if key not in known:
            parser.error(f"--rows must be some of {', '.join(known)}, got {key!r}")
        row = known[key]
        pairs = min(options.pairs, SLOW_PAIRS) if key in SLOW else options.pairs
        result = compare(
            replace(row.measured, **common), replace(row.baseline, **common), pairs=pairs
        )
        text += table_line(row, result) + "\n"
        print(table_line(row, result), flush=True)
        tables.write(options.output, text)


if __name__ == "__main__":
    main()
