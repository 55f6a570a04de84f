"""What a tokenizer's run leaves beside it: privacy.json, its reports, a private summary."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpft.config.keys import plain
from dpft.config.tokenizer import TokenizerCommand
from dpft.files import SCHEMA_VERSION, read_file, write_json, write_text
from dpft.privacy.accounting.gaussian_histogram import histogram_of
from dpft.privacy.histogram_config import NONE
from dpft.privacy.noise import NOISE_SOURCE
from dpft.privacy.plan import EXAMPLE, GIVEN, NEIGHBORING_RELATION, NO_SAMPLING
from dpft.reports.accounting.epsilon import NOT_PRIVATE_SEED, delta_warnings
from dpft.reports.run.origin import data_name
from dpft.reports.run.run_record import read_privacy
from dpft.reports.tokenizer.report import table, write_tokenizer_report
from dpft.run_folder import DATA_SUMMARY, HISTOGRAM, PRIVACY, private_path
from dpft.runs.answer import Answer
from dpft.runs.begun import read_begun
from dpft.runs.data_summary import NOTE
from dpft.runs.run_plan import PublicSize
from dpft.runs.tokenizing.histogram_file import closed_ledger
from dpft.tokenizers.histogram import WordHistogram

EXACT = "gaussian"
"""The accountant of one Gaussian mechanism without sampling: its epsilon is exact."""
ANSWERED = (
    *("schema_version", "private", "epsilon", "epsilon_classical", "delta", "noise_std"),
    *("threshold", "words_kept", "vocab_size", "tokens", "unit", "neighboring_relation"),
    *("num_examples", "tokenizer_sha256", "warnings"),
)
"""Keys of privacy.json that the command prints."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """What came of a histogram."""

    words_kept: int | None = None
    """Words that reached the threshold; None where there is none."""
    vocab_size: int | None = None
    """Pieces; None while there is no vocabulary."""
    tokens: int | None = None
    """Pieces, special tokens and sentinels."""
    tokenizer_sha256: str | None = None


def write_outcome(command: TokenizerCommand, folder: Path, made: Made) -> None:
    """Writes privacy.json and the reports of a histogram that was released."""
    write_json(folder / PRIVACY, _record(command, folder, made))
    write_tokenizer_report(folder)


def write_open_outcome(
    command: TokenizerCommand, folder: Path, made: Made, size: PublicSize
) -> None:
    """Writes privacy.json and the reports of a vocabulary that was made without privacy."""
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "mechanism": NONE,
        "private": False,
        "steps": 0,
        "num_examples": size.num_examples,
        "num_examples_source": size.source,
        "warnings": [],
        "algorithm": command.tokenizer.algorithm,
        "data": data_name(plain(command)),
        **read_begun(folder),
    }
    record |= {name: value for name, value in vars(made).items() if value is not None}
    write_json(folder / PRIVACY, record)
    write_tokenizer_report(folder)


def answer(folder: Path) -> Answer:
    """Returns what the command prints of a run."""
    record = read_privacy(folder / PRIVACY)
    shown = {name: record[name] for name in ANSWERED if name in record}
    return Answer(table=table(record, folder), record={**shown, "run": str(folder)})


def write_summary(folder: Path, counted: WordHistogram, kept: Sequence[tuple[str, int]]) -> None:
    """Writes what share of the records' words was kept, for the owner alone."""
    names = {word for word, _ in kept}
    here = np.fromiter((word in names for word in counted.words), bool, len(counted.words))
    words, occurrences = len(counted.words), float(counted.counts.sum())
    share = float(counted.counts[here].sum()) / occurrences if occurrences else 0.0
    lines = [
        NOTE,
        "",
        f"- units read: {counted.num_units}",
        f"- different words: {words}",
        f"- of them kept: {int(here.sum())} ({here.sum() / max(1, words):.2%})",
        f"- share of the counts that the kept words have: {share:.2%}",
    ]
    write_text(private_path(folder, DATA_SUMMARY), "\n".join(lines) + "\n", mode=0o600)


def _record(command: TokenizerCommand, folder: Path, made: Made) -> dict[str, Any]:
    """Returns the content of privacy.json: what the ledger's line says, and what it costs."""
    ledger = closed_ledger(folder)
    line = ledger.mechanisms[0]
    mechanism = histogram_of(line)
    size, reproducible = int(line["num_examples"]), command.privacy.noise_seed is not None
    warnings = [NOT_PRIVATE_SEED] if reproducible else []
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "private": not reproducible,
        "epsilon": mechanism.epsilon,
        "epsilon_classical": mechanism.epsilon_classical,
        "accountant": EXACT,
        "sampler": NO_SAMPLING,
        "sample_rate": 1.0,
        "steps": 1,
        "steps_taken": ledger.steps,
        **{name: value for name, value in line.items() if name != "name"},
        "mechanism": line["name"],
        "unit": command.privacy.unit,
        "unit_definition": unit_definition(command),
        "neighboring_relation": NEIGHBORING_RELATION,
        "noise_source": NOISE_SOURCE,
        "ledger": {"lines": ledger.lines, "head": ledger.head},
        "histogram_sha256": hashlib.sha256(read_file(folder / HISTOGRAM)).hexdigest(),
        "delta_source": delta_source(command),
        "warnings": [
            *warnings,
            *delta_warnings(mechanism.delta, size, source=delta_source(command)),
        ],
        "algorithm": command.tokenizer.algorithm,
        "data": data_name(plain(command)),
        **read_begun(folder),
    }
    if reproducible:
        record["reproducible"] = True
    return record | {name: value for name, value in vars(made).items() if value is not None}


def delta_source(command: TokenizerCommand) -> str:
    """Returns ``GIVEN``, or the rule by which delta follows from the number of units."""
    return command.task.default_delta if command.privacy.delta is None else GIVEN


def unit_definition(command: TokenizerCommand) -> str:
    """Returns what the unit is, in words that follow "the unit is"."""
    if command.privacy.unit == EXAMPLE:
        return f"one {command.task.unit_definition}"
    return (
        f"all records with one value of {command.privacy.unit}, of which"
        f" {command.tokenizer.words_per_record} words are counted"
    )
