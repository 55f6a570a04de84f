"""What training records cost: bytes a record, time to read and tokenize, time to the first step.

    python -m benchmarks.records --records 300000 --model DIR --pairs 5
    python -m benchmarks.records --records 10000000 --address-space-gb 8 --pairs 0

Synthetic prompts and answers of about 50 tokens in a JSON lines file. ``dpft train`` takes two
steps on them in a process of its own; a run on ``FEW`` of them says what the model and the
libraries hold. Steps are of few records, so that the peaks of both differ by records alone.
Reading and tokenizing are then timed in turns with the fast tokenizer's own ``encode_batch`` on the
same texts, in processor time of all threads.
"""

import argparse
import gzip
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import tables

RESULTS = Path(__file__).parent / "results.md"
ROOT = Path(__file__).parent.parent
TITLE = "Records: memory and time until the first step"
NOTES = (
    "Prompts and answers in one .jsonl file, `dpft train` of two steps; bytes a record are beyond "
    "those of a run on 1,000\nrecords, resident where the first step begins and at the peak of the "
    "whole run, medians of runs in turns;\nprocessor time is of all threads, and reading and "
    "tokenizing is beside the fast tokenizer's own batches of the\nsame texts, in turns: median "
    "with interquartile range."
)
COLUMNS = (
    "records", "tokenizer", "tokens a record", "bytes a record", "at the peak", "peak, GB",
    "seconds to the first step", "of processor time", "reading and tokenizing / encode_batch",
    "pairs",
)  # fmt: skip
SAMPLE = ROOT / "dpft/models/embedded/sample/train.jsonl.gz"
FEW = 1000
PROMPT, TARGET = "Q: {question}\\nA:", " {answer}"
TOGETHER = 4096


@dataclass(frozen=True, kw_only=True)
class Run:
    """A process when its first step begins, and its peak until its report."""

    seconds: float
    """Since it was started, by the clock."""
    processor_seconds: float
    resident_bytes: int
    peak_bytes: int


def words() -> list[str]:
    """Return the words of the embedded sample's answers."""
    with gzip.open(SAMPLE, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["human_reference"] for line in lines]
    return sorted({word for text in texts for word in text.split()})


def write_records(file: Path, number: int, *, length: int) -> None:
    """Write that many records, the same ones every time, of ``length`` words on average."""
    draw, known = random.Random(0), words()
    with file.open("w", encoding="utf-8") as lines:
        for _ in range(number):
            chosen = draw.choices(known, k=draw.randint(length * 3 // 4, length * 5 // 4))
            half = len(chosen) // 3
            row = {"question": " ".join(chosen[:half]), "answer": " ".join(chosen[half:])}
            lines.write(json.dumps(row) + "\n")


def measured_run(file: Path, model: str | None, *, address_space: int | None = None) -> Run:
    """Return what a run on the records holds and takes.

    Raises:
        RuntimeError: It failed, as it does where the address space is too small.
    """
    command = [sys.executable, "-m", "benchmarks.records", "--run", str(file)]
    command += ["--model", model] if model else []
    command += ["--address-space-gb", str(address_space / 2**30)] if address_space else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError("\n".join(done.stderr.splitlines()[-5:]))
    return Run(**json.loads(done.stdout.splitlines()[-1]))


def run_here(file: Path, model: str | None, address_space: int | None) -> None:
    """Run ``dpft train`` in this process; then writes a line of JSON.

    The folder of the run is a temporary one, deleted at the end.
    """
    started = time.monotonic()
    if address_space is not None:
        resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    from dpft.cli.main import main as dpft
    from dpft.training import loop

    began: list[dict[str, Any]] = []
    compute_gradient = loop.compute_gradient

    def step(*args: Any, **kwargs: Any) -> Any:
        used = resource.getrusage(resource.RUSAGE_SELF)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        began.append(
            {
                "seconds": time.monotonic() - started,
                "processor_seconds": used.ru_utime + used.ru_stime,
                "resident_bytes": pages * resource.getpagesize(),
            }
        )
        return compute_gradient(*args, **kwargs)

    loop.compute_gradient = step
    with tempfile.TemporaryDirectory() as folder:
        code = dpft(["train", *arguments(file, model, batch=8), f"hydra.run.dir={folder}/run"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(began[0] | {"peak_bytes": peak}), flush=True)
    sys.exit(code)


def arguments(file: Path, model: str | None, *, batch: int = 64) -> list[str]:
    """Return what ``dpft train`` is told; without a model's folder, the embedded model."""
    return [
        "task=custom", f"task.data_dir={file}", f"task.prompt='{PROMPT}'",
        f"task.target='{TARGET}'", "task.max_length=128", "train.steps=2",
        f"train.expected_batch_size={batch}", f"train.micro_batch_size={min(batch, 32)}",
        "privacy.noise_multiplier=1", "privacy.eps=null", "eval.enabled=false",
        *(["model=local", f"model.path={model}"] if model else ["model=tiny"]),
    ]  # fmt: skip


def configuration(file: Path, model: str | None) -> Any:
    """Return the configuration of that run."""
    from dpft.config.hydra_compose import compose
    from dpft.config.load import load
    from dpft.config.schema import TrainCommand

    composed = compose("train", arguments(file, model), TrainCommand)
    return load(composed.values, TrainCommand)


def time_tokenizing(file: Path, model: str | None, *, pairs: int) -> tuple[list[float], float]:
    """Return ratios of processor time, reading and tokenizing to bare batches; and mean tokens."""
    from dpft.commands.splits import (
        load_training_data,
    )
    from dpft.commands.task_model import encoding_of, training_head
    from dpft.commands.training_set import make_training_set
    from dpft.data.encoding import encoded_rows
    from dpft.data.sources import load_examples
    from dpft.models.architecture import read_architecture
    from dpft.models.loading import load_tokenizer

    config = configuration(file, model)
    architecture = read_architecture(config.model)
    head = training_head(config, architecture)
    tokenizer = load_tokenizer(architecture, kind=head.kind)
    encoding = encoding_of(config.task, architecture, head, tokenizer)
    device = config.train.prepare()
    records: Any = load_examples(config.task, "train")
    columns = [[record.prompt for record in records], [record.target for record in records]]
    del records

    def bare() -> None:
        for texts in columns:
            for at in range(0, len(texts), TOGETHER):
                tokenizer.backend_tokenizer.encode_batch(
                    texts[at : at + TOGETHER], add_special_tokens=False
                )

    def whole() -> float:
        data = load_training_data(config)
        made = make_training_set(config, data, encoding, device, unit_key=b"")
        return float(encoded_rows(made.examples).lengths.mean())

    length = whole()
    ratios = []
    for _ in range(pairs):
        first = processor_seconds(bare)
        ratios.append(processor_seconds(whole) / first)
    return ratios, length


def processor_seconds(call: Callable[[], object]) -> float:
    """Return what a call takes of all processors."""
    started = time.process_time()
    call()
    return time.process_time() - started


def table_line(
    number: int,
    runs: Sequence[tuple[Run, Run]],
    *,
    name: str,
    ratios: Sequence[float],
    length: float | None,
) -> str:
    """Return a row of the table in Markdown, of runs on few records and on so many."""
    spread = "-"
    if ratios:
        first, _, third = (
            statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        )
        spread = f"{statistics.median(ratios):.2f} ({first:.2f} to {third:.2f})"

    def median(what: str) -> float:
        return statistics.median(getattr(many, what) for _, many in runs)

    resident, peak = (
        round(
            statistics.median(getattr(many, what) - getattr(few, what) for few, many in runs)
            / (number - FEW)
        )
        for what in ("resident_bytes", "peak_bytes")
    )
    cells = [
        f"{number:,}", name, "-" if length is None else f"{length:.1f}", str(resident), str(peak),
        f"{median('peak_bytes') / 1e9:.2f}", f"{median('seconds'):.0f}",
        f"{median('processor_seconds'):.0f}", spread, str(len(ratios)),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def measure(options: argparse.Namespace) -> str:
    """Return the row of the options."""
    address_space = options.address_space_gb and int(options.address_space_gb * 2**30)
    with tempfile.TemporaryDirectory() as folder:
        file, small = Path(folder) / "train.jsonl", Path(folder) / "few.jsonl"
        write_records(file, options.records, length=options.words)
        write_records(small, FEW, length=options.words)
        runs = [
            (
                measured_run(small, options.model),
                measured_run(file, options.model, address_space=address_space),
            )
            for _ in range(options.runs)
        ]
        ratios: list[float] = []
        length = None
        if options.pairs:
            ratios, length = time_tokenizing(file, options.model, pairs=options.pairs)
    name = "embedded" if options.model is None else Path(options.model).name
    return table_line(options.records, runs, name=name, ratios=ratios, length=length)


def main(given: Sequence[str] | None = None) -> None:
    """Measure one row and write it into the table, after those that are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--model", help="folder of a causal model; none: the embedded model")
    parser.add_argument("--runs", type=int, default=3, help="of each, in turns; their median")
    parser.add_argument("--words", type=int, default=18, help="of a record, on average")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--address-space-gb", type=float, help="most that the run may map")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(given)
    if options.run is not None:
        limit = options.address_space_gb and int(options.address_space_gb * 2**30)
        run_here(options.run, options.model, limit)
        return
    line = measure(options)
    print(line, flush=True)
    options.device, options.precision = "cpu", "fp32"
    writer = "benchmarks/records.py"
    table = tables.heading(TITLE, options, writer=writer, notes=NOTES, columns=COLUMNS)
    tables.write(options.output, "\n".join([table.rstrip(), *_kept(options.output), line]))


def _kept(page: Path) -> list[str]:
    """Return the rows that the table has already."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    _, _, own = text.partition(f"# {TITLE}\n")
    lines = own.split("\n# ")[0].splitlines()
    return [line for line in lines if line.startswith("|")][2:]


if __name__ == "__main__":
    main()
