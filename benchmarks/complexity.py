"""What clipping costs by the length of a text, beside the paper's formulas: ``make bench``.

    python -m benchmarks.complexity --lengths 32,512 --rows BiTFiT --output benchmarks/results.md

The table of Bu et al. 2022 (Tables 2 and 8) measured: a private micro-batch beside an ordinary one
that trains the same parameters of a small GPT-2, at constant shapes but for the length. Time is
measured in one process, taking turns; operations and memory are counted (``counts``), exactly.
"""

import argparse
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from benchmarks import tables
from benchmarks.counts import Counts, counts_of
from benchmarks.interleave import Timings, take_turns
from benchmarks.workload import Workload, losses_of, make_batch, make_model, synthetic_batches
from dpft.privacy.clipping import PerExampleClipper

RESULTS = Path(__file__).parent / "results.md"
TITLE = "Clipping: overhead by the length of a text"
EXAMPLES = 4
LENGTHS = (32, 64, 128, 256, 512)
MAX_GRAD_NORM = 0.1
NOTES = f"""\
GPT-2 of 4 layers, width 256 and 8192 tokens, {EXAMPLES} texts of T tokens: a private micro-batch
beside an ordinary one that trains the same parameters. Time: median ratio of interleaved pairs in
one process, with interquartile range. Counted, so exact: what tensors take beyond an ordinary
micro-batch's, at the peak and when the first back-propagation has ended, and the operations of
matrix products beyond an ordinary one's, in millions and as a share of all of its. If the private
one takes less, ordinary training has made a second gradient of the tied embedding, or those of
weights that book-keeping has yet to sum up.

By the formula: what Bu et al. 2022 count beyond ordinary training for B texts and dense layers from
d to p numbers. Full: +2BTpd + min(2BT²(p + d), 2BTpd), MixGhostClip of Table 2. LoRA of rank r:
+2BT(pr + dr), Table 8. BiTFiT: +3Bp, Table 2. The first 2BTpd is a second back-propagation, which
book-keeping does not need. Of LoRA and BiTFiT a weighted sum over the texts is left, the same at
every length."""
COLUMNS = (
    "row", "T", "time (interquartile range)", "milliseconds", "more at the peak, MiB",
    "more kept, MiB", "more operations, millions", "by the formula", "pairs",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is trained.

    Attributes:
        method: As ``Workload.method``.
        formula: The paper's operations beyond ordinary training, of a model and a length.
    """

    method: str
    formula: Callable[[nn.Module, int], int]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One length of a row.

    Attributes:
        length: T.
        timings: Of pairs of micro-batches.
        private: Counts of a private micro-batch.
        ordinary: Counts of an ordinary one.
        formula: The paper's operations beyond the ordinary ones.
    """

    length: int
    timings: Timings
    private: Counts
    ordinary: Counts
    formula: int


def mixed_ghost_clipping(model: nn.Module, length: int) -> int:
    """Return +2BTpd + min(2BT^2(p + d), 2BTpd) of each dense layer (Table 2)."""
    return sum(
        2 * EXAMPLES * length * (p * d + min(length * (p + d), p * d))
        for p, d in _trained_weights(model)
    )


def biases(model: nn.Module, length: int) -> int:
    """Return +3Bp of each bias (Table 2); the length has no part in it."""
    named = model.named_parameters()
    return sum(3 * EXAMPLES * p.numel() for n, p in named if n.endswith("bias") and p.requires_grad)


def low_rank(model: nn.Module, length: int) -> int:
    """Return +2BT(pr + dr) of each changed layer (Table 8): of each matrix, by its numbers."""
    return sum(2 * EXAMPLES * length * rows * columns for rows, columns in _trained_weights(model))


ROWS = {
    "full, book-keeping": Row(method="full", formula=mixed_ghost_clipping),
    "LoRA": Row(method="lora", formula=low_rank),
    "BiTFiT": Row(method="bitfit", formula=biases),
}


def measure(row: Row, length: int, *, pairs: int) -> Measurement:
    """Count and times private and ordinary micro-batches of texts of one length."""
    workload = Workload(
        engine="book_keeping",
        shape="small_gpt2",
        method=row.method,
        batch_size=EXAMPLES,
        length=length,
    )
    private = make_model(workload)
    ordinary = copy.deepcopy(private)
    batch = make_batch(workload, private)

    def clear() -> None:
        private.zero_grad()
        ordinary.zero_grad()

    def backpropagate() -> None:
        losses_of(ordinary, batch).sum().backward()

    with PerExampleClipper(private, losses_of, MAX_GRAD_NORM, engine=workload.engine) as clipper:
        clipper.self_check(*synthetic_batches(workload, private))

        def accumulate() -> None:
            clipper.accumulate(batch)

        return Measurement(
            length=length,
            timings=take_turns(accumulate, backpropagate, pairs=pairs, before=clear),
            private=counts_of(accumulate, clear),
            ordinary=counts_of(backpropagate, clear),
            formula=row.formula(ordinary, length),
        )


def table_line(name: str, measured: Measurement) -> str:
    """Return a row of the table in Markdown."""
    timings, private, ordinary = measured.timings, measured.private, measured.ordinary
    memory = (
        f"{(getattr(private, key) - getattr(ordinary, key)) / 2**20:.1f}"
        for key in ("peak_bytes", "kept_bytes")
    )
    more = private.products - ordinary.products
    operations = f"{more / 1e6:,.2f} ({100 * more / ordinary.products:.1f} %)"
    formula = f"{measured.formula / 1e6:,.2f}"
    numbers = (measured.length, timings.spread, timings.milliseconds, *memory, operations, formula)
    return f"| {name} | {' | '.join(map(str, numbers))} | {len(timings.ratios)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the rows asked for and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--rows", default=";".join(ROWS), help="names, separated by semicolons")
    parser.add_argument("--lengths", type=_numbers, default=LENGTHS, help="separated by commas")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    options.device, options.precision = "cpu", "fp32"
    torch.set_num_threads(options.threads)
    writer = "benchmarks/complexity.py"
    table = tables.heading(TITLE, options, writer=writer, notes=NOTES, columns=COLUMNS)
    for name in options.rows.split(";"):
        if name not in ROWS:
            parser.error(f"--rows must be some of {'; '.join(ROWS)}, got {name!r}")
        for length in options.lengths:
            line = table_line(name, measure(ROWS[name], length, pairs=options.pairs))
            print(line, flush=True)
            table += line + "\n"
            tables.write(options.output, table)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _trained_weights(model: nn.Module) -> Iterator[tuple[int, int]]:
    """Yield the two widths of each dense layer's weight that trains."""
    for module in model.modules():
        if isinstance(module, nn.Linear | Conv1D) and module.weight.requires_grad:
            rows, columns = module.weight.shape
            yield rows, columns


if __name__ == "__main__":
    main()
