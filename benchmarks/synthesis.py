"""Synthetic tables: what a condition, and a model, are worth at the same epsilon.

    python -m benchmarks.synthesis --data DIR --output benchmarks/results.md

DIR holds the folders e2e and sst2. E2E's meaning representations and references become a table of
eight categories and a text; SST-2 one of a label and a sentence. Each synthesis is a ``dpft
synthesize`` command with the embedded model, kept in ``--work``. Beside it stand independent
histograms of the columns (marginals alone) at the same epsilon, and real rows.
"""

import argparse
import csv
import gzip
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks import tables
from dpft.privacy.cipher import secret_key
from dpft.privacy.mechanisms.histogram import noise_std_for_counts, noisy_counts
from dpft.synthesis.histogram import cell_shares
from dpft.synthesis.measures import (
    Tables,
    associations,
    column_distances,
    frame_of,
    usefulness,
)
from dpft.synthesis.schema import Row, Schema, read_schema

TITLE = "Synthetic tables"
RESULTS = Path(__file__).parent / "results.md"
ROWS, STEPS = 4000, 24
SLOTS = ("name", "eatType", "food", "priceRange", "customer rating", "area", "familyFriendly",
         "near")  # fmt: skip
VERBATIM = ("name", "near")
"""Attributes whose values a right text holds as they are."""
CONDITION = ("condition=[eatType,area,familyFriendly]",)
FOUR = ("condition=[eatType,food,priceRange,customer rating]", "privacy.share=0.2",
        "text_weight=0.3")  # fmt: skip
"""As many cells as a fifth of epsilon shows, and the loss leans to the other columns."""
QUICK = ("model=tiny", "form=array", "train.expected_batch_size=128", "train.learning_rate=1.0e-2",
         "train.micro_batch_size=32", "train.num_threads=1", "num=1000")  # fmt: skip
COLUMNS = ("table", "rows from", "ε", "marginals, TV", "pairs, V", "label by trees",
           "slot errors", "rows that parse", "minutes")  # fmt: skip
NOTES = (
    f"E2E: {ROWS} of its 42,061 records as a table of eight categories and a text; label: eatType."
    f" SST-2: {ROWS} of 67,349, label and sentence. The embedded model, {STEPS} steps of 128 rows,"
    " one seed, on a loaded machine, so that minutes are no measure. TV: mean total variation of"
    " the categories' shares from the training rows; V: mean difference of Cramér's V over pairs;"
    " trees: accuracy on held-out rows of boosted trees taught by the rows (E2E: without the text);"
    " slot errors: of names and near places that a row has, those that its text lacks."
)


@dataclass(frozen=True, kw_only=True)
class Made:
    """Rows of some origin."""

    table: str
    origin: str
    epsilon: str
    rows: Sequence[Row]
    parsed: str = ""
    minutes: str = ""


def records_of(path: Path) -> list[dict[str, Any]]:
    """Return the records of a packed .jsonl file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def write_tables(data: Path, folder: Path) -> None:
    """Write both private tables, their test rows and their schemas, which are public sets."""
    folder.mkdir(parents=True, exist_ok=True)
    choose = random.Random(0)
    e2e = []
    for record in records_of(data / "e2e/train.jsonl.gz"):
        found = dict(re.findall(r"([\w ]+)\[(.*?)\]", record["meaning_representation"]))
        slots = {name.strip(): value for name, value in found.items()}
        e2e.append({**{s: slots.get(s, "") for s in SLOTS}, "text": record["human_reference"]})
    values = {slot: sorted({row[slot] for row in e2e} - {""}) for slot in SLOTS}
    lines: dict[str, Any] = {
        slot: {"type": "category", "values": values[slot], "missing": True} for slot in SLOTS
    }
    lines["text"] = {"type": "text", "max_tokens": 60}
    _write(folder / "e2e", choose.sample(e2e, 2 * ROWS), {"columns": lines, "label": "eatType"})
    sst2 = [
        {"label": str(each["label"]), "sentence": each["sentence"].strip()}
        for each in records_of(data / "sst2/train.jsonl.gz")
    ]
    lines = {"label": {"type": "category", "values": ["0", "1"]},
             "sentence": {"type": "text", "max_tokens": 60}}  # fmt: skip
    _write(folder / "sst2", choose.sample(sst2, 2 * ROWS), {"columns": lines, "label": "label"})


def _write(place: Path, rows: Sequence[Mapping[str, str]], schema: Mapping[str, Any]) -> None:
    for name, part in (("", rows[:ROWS]), (".test", rows[ROWS:])):
        with place.with_suffix(f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(part)
    text = yaml.safe_dump(schema, sort_keys=False, allow_unicode=True)
    place.with_suffix(".schema.yaml").write_text(text, encoding="utf-8")


def synthesized(work: Path, table: str, epsilon: str, words: Sequence[str], origin: str) -> Made:
    """Return the rows of a synthesis, made now unless it is kept."""
    kind = "four" if words == FOUR else "condition" if words else "none"
    name = f"{table}-{epsilon}-{kind}"
    folder, began = work / name, time.monotonic()
    if not (folder / "synthesis.json").exists():
        privacy = ["privacy=none"] if epsilon == "none" else [f"privacy.eps={epsilon}"]
        given = [f"data={work / table}.csv", *QUICK, *privacy, *words, f"train.steps={STEPS}"]
        go_on = [f"resume={folder}"] if (folder / "synthesis.yaml").exists() else None
        command = go_on or [*given, f"hydra.run.dir={folder}"]
        subprocess.run([sys.executable, "-m", "dpft", "synthesize", *command], check=True)
        minutes = f"{(time.monotonic() - began) / 60:.0f}"
        (folder / "minutes").write_text(minutes)
    said = json.loads((folder / "synthesis.json").read_text())
    texts = said["rows"] + said["left_out"] + said["unparsed"]
    return Made(
        table=table,
        origin=origin,
        epsilon="none" if epsilon == "none" else f"{said['epsilon']:.2f}",
        rows=rows_of(folder / "synthetic.csv", read_schema(folder / "schema.yaml")),
        parsed=f"{100 * (texts - said['unparsed']) / texts:.0f} %",
        minutes=(folder / "minutes").read_text(),
    )


def rows_of(path: Path, schema: Schema) -> list[Row]:
    """Return the rows of a file, checked against their schema."""
    with path.open(newline="", encoding="utf-8") as file:
        return [schema.row(row) for row in csv.DictReader(file)]


def independent(table: str, schema: Schema, real: Sequence[Row], epsilon: float) -> Made:
    """Return rows whose categories are drawn one by one from private histograms of each."""
    columns = [column for column in schema.learned if column.options]
    # Each unit adds 1 to a cell of every histogram: together sqrt(columns) in L2 norm.
    noise = noise_std_for_counts(eps=epsilon, l2_cap=len(columns) ** 0.5, delta=1 / (10 * ROWS))
    draw = np.random.default_rng(0)
    drawn: dict[str, list[Any]] = {}
    for column in columns:
        counts = Counter(row[column.name] for row in real)
        exact = np.array([float(counts[option]) for option in column.options])
        noisy = cell_shares(noisy_counts(exact, noise, secret_key("benchmark")).tolist())
        places = draw.choice(len(noisy), 1000, p=noisy)
        drawn[column.name] = [column.options[at] for at in places]
    rows: list[Row] = [
        {c.name: drawn[c.name][at] if c.name in drawn else "" for c in schema.learned}
        for at in range(1000)
    ]
    return Made(table=table, origin="independent histograms", epsilon=f"{epsilon:g}", rows=rows)


def slot_errors(rows: Sequence[Row]) -> str:
    """Return the share of names and near places that the texts of rows lack, in percent."""
    asked = [(row[slot], row["text"]) for row in rows for slot in VERBATIM if row[slot]]
    lacking = sum(str(value).lower() not in str(text).lower() for value, text in asked)
    return f"{100 * lacking / len(asked):.0f} %" if asked else ""


def table_row(made: Made, schema: Schema, real: Sequence[Row], tested: Sequence[Row]) -> list[str]:
    """Return a row of the results."""
    categories = Schema(columns=tuple(c for c in schema.learned if c.options), label=schema.label)
    sides = (made.rows, real[: len(made.rows)], tested)
    own = Tables(*(frame_of(categories, side) for side in sides))
    distances = column_distances(categories, own).rows.values()
    pairs = np.array(list(associations(categories, own).rows.values()))
    full = categories if made.table == "e2e" else schema
    told = usefulness(full, Tables(*(frame_of(full, side) for side in sides)))
    trees = told.rows.get(f"{schema.label} by trees trained on them")
    has_texts = made.origin != "independent histograms"
    return [
        made.table,
        made.origin,
        made.epsilon,
        f"{np.mean([synthetic for synthetic, _ in distances]):.3f}",
        f"{np.abs(pairs[:, 1] - pairs[:, 0]).mean():.3f}" if len(pairs) else "",
        str(told.note) if trees is None else f"{trees[0]:.3f}",
        slot_errors(made.rows) if made.table == "e2e" and has_texts else "",
        made.parsed,
        made.minutes,
    ]


def measured(work: Path) -> list[list[str]]:
    """Return the rows of the results."""
    found = []
    for table in ("e2e", "sst2"):
        schema = read_schema(work / f"{table}.schema.yaml")
        real, tested = (rows_of(work / f"{table}{n}.csv", schema) for n in ("", ".test"))
        halves = Made(table=table, origin="real rows", epsilon="", rows=tested[: ROWS // 2])
        made = [halves]
        if table == "e2e":
            made += [
                synthesized(work, table, epsilon, words, origin)
                for epsilon in ("8", "3")
                for words, origin in ((CONDITION, "condition and model"), ((), "model alone"))
            ]
            made.append(synthesized(work, table, "8", FOUR, "four columns and model"))
            made += [independent(table, schema, real, epsilon) for epsilon in (8.0, 3.0)]
        else:
            words = ("condition=[label]",)
            made.append(synthesized(work, table, "8", words, "condition and model"))
            made.append(synthesized(work, table, "none", words, "condition and model"))
        found += [table_row(each, schema, real, tested[ROWS // 2 :]) for each in made]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Make what is not there yet, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("outputs/benchmark-synthesis"))
    tables.add_options(parser, output=RESULTS)
    given = parser.parse_args(arguments)
    if not (given.work / "sst2.schema.yaml").exists():
        write_tables(given.data, given.work)
    writer = "`make synthesis-table DATA=DIR`, `benchmarks/synthesis.py`,"
    head = tables.heading(TITLE, given, writer=writer, notes=NOTES, columns=COLUMNS)
    rows = "".join(f"| {' | '.join(row)} |\n" for row in measured(given.work))
    tables.write(given.output, head + rows)


if __name__ == "__main__":
    main()
