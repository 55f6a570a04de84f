"""The files that a tokenizer's run leaves: histogram.tsv, privacy.json, reports, a summary.

``histogram.tsv`` is public: the words that reached the threshold, and their noisy counts.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpft.config.keys import plain
from dpft.config.tokenizer import TokenizerCommand
from dpft.errors import InputError, StateError
from dpft.files import read_file, write_text
from dpft.privacy.ledger import Ledger, LedgerRecord, read_ledger
from dpft.privacy.mechanisms.histogram import histogram_of
from dpft.privacy.noise import NOISE_SOURCE
from dpft.privacy.plan import EXAMPLE, GIVEN, NEIGHBORING_RELATION
from dpft.records.configuration import TaskSection, parse_configuration
from dpft.records.form import keys_of, parse, write_record
from dpft.records.ledger import GaussianHistogram, HistogramNumbers, LedgerHead
from dpft.records.privacy_file import read_vocabulary
from dpft.records.promises import Begun
from dpft.records.vocabularies import (
    OpenVocabulary,
    OpenVocabularyAnswer,
    PrivateVocabulary,
    PrivateVocabularyAnswer,
)
from dpft.reports.accounting.epsilon import NOT_PRIVATE_SEED, delta_warnings
from dpft.reports.run.origin import data_name
from dpft.reports.tokenizer.report import table, write_tokenizer_report
from dpft.run_folder import DATA_SUMMARY, HISTOGRAM, LEDGER, PRIVACY, private_path
from dpft.runs.answer import Answer
from dpft.runs.folder import read_begun
from dpft.runs.records import NOTE
from dpft.runs.run_plan import PublicSize
from dpft.tokenizers.histogram import WordHistogram


def as_lines(words: Iterable[tuple[str, int]]) -> str:
    """Returns the file's text: a word, a tab and its count in each line."""
    return "".join(f"{word}\t{count}\n" for word, count in words)


def read_histogram(folder: Path) -> list[tuple[str, int]]:
    """Returns the words of a run's file and their counts.

    Raises:
        StateError: It is gone, or a line of it is damaged.
    """
    path = folder / HISTOGRAM
    try:
        lines = read_file(path).decode("utf-8").split("\n")[:-1]
        pairs = [line.split("\t") for line in lines]
        return [(word, int(count)) for word, count in pairs]
    except (OSError, ValueError) as error:
        raise StateError(f"{path} is gone or damaged; put it back as it was.") from error


def close_ledger_of(folder: Path) -> None:
    """Closes the ledger of a histogram that is on disk, where the run broke off in between.

    The file is whole or not there, and its noise was drawn once, after the ledger's one line.

    Raises:
        StateError: The ledger is damaged.
    """
    path = folder / LEDGER
    if not path.exists() or not (folder / HISTOGRAM).exists():
        return
    record = read_ledger(path)
    if record.steps == 1 and not record.closed:
        with Ledger.reopen(path, record) as ledger:
            ledger.close()


def closed_ledger(folder: Path) -> LedgerRecord:
    """Returns the ledger of a histogram that was released.

    Raises:
        InputError: The folder is of no tokenizer's run, or the run broke off before its histogram
            was on disk.
        StateError: The ledger is damaged.
    """
    path = folder / LEDGER
    if not path.exists():
        raise InputError(
            f"resume must be the folder of a dpft tokenizer run, got {str(folder)!r}, which has no"
            f" {LEDGER}; give the folder that dpft tokenizer named."
        )
    ledger = read_ledger(path)
    if not ledger.steps:
        raise InputError(
            f"{path} has no whole step: the run broke off before it drew any noise, and spent"
            " nothing. Begin anew without resume, in another folder."
        )
    if not ledger.closed:
        raise InputError(
            f"{path} has the line of a histogram that was never written: the run broke off, and"
            " its epsilon stands spent. Begin anew without resume, and compose both by"
            " dpft account runs=[FIRST,SECOND]."
        )
    return ledger


EXACT = "gaussian"
"""The accountant of one Gaussian mechanism without sampling: its epsilon is exact."""


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
    write_record(folder / PRIVACY, _record(command, folder, made))
    write_tokenizer_report(folder)


def write_open_outcome(
    command: TokenizerCommand, folder: Path, made: Made, size: PublicSize
) -> None:
    """Writes privacy.json and the reports of a vocabulary that was made without privacy."""
    assert made.vocab_size is not None and made.tokens is not None
    assert made.tokenizer_sha256 is not None
    record = OpenVocabulary(
        num_examples=size.num_examples,
        num_examples_source=size.source,
        warnings=(),
        algorithm=command.tokenizer.algorithm,
        data=data_name(parse_configuration(plain(command.task), TaskSection)),
        vocab_size=made.vocab_size,
        tokens=made.tokens,
        tokenizer_sha256=made.tokenizer_sha256,
        **_begun(folder),
    )
    write_record(folder / PRIVACY, record)
    write_tokenizer_report(folder)


def answer(folder: Path) -> Answer:
    """Returns what the command prints of a run."""
    record = read_vocabulary(folder / PRIVACY)
    kind = (
        PrivateVocabularyAnswer if isinstance(record, PrivateVocabulary) else OpenVocabularyAnswer
    )
    told = {key.field for key in keys_of(kind)} - {"run"}
    shown = {name: getattr(record, name) for name in told}
    return Answer(table=table(record, folder), record=kind(run=str(folder), **shown))


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


def _record(command: TokenizerCommand, folder: Path, made: Made) -> PrivateVocabulary:
    """Returns the content of privacy.json: what the ledger's line says, and what it costs."""
    ledger = closed_ledger(folder)
    line = parse(ledger.mechanisms[0], GaussianHistogram)
    mechanism = histogram_of(ledger.mechanisms[0])
    reproducible = command.privacy.noise_seed is not None
    warnings = [NOT_PRIVATE_SEED] if reproducible else []
    warnings += delta_warnings(mechanism.delta, line.num_examples, source=delta_source(command))
    assert made.words_kept is not None
    return PrivateVocabulary(
        private=not reproducible,
        reproducible=reproducible or None,
        epsilon=mechanism.epsilon,
        epsilon_classical=mechanism.epsilon_classical,
        steps_taken=ledger.steps,
        unit=command.privacy.unit,
        unit_definition=unit_definition(command),
        neighboring_relation=NEIGHBORING_RELATION,
        noise_source=NOISE_SOURCE,
        ledger=LedgerHead(lines=ledger.lines, head=ledger.head),
        histogram_sha256=hashlib.sha256(read_file(folder / HISTOGRAM)).hexdigest(),
        delta_source=delta_source(command),
        warnings=tuple(warnings),
        algorithm=command.tokenizer.algorithm,
        data=data_name(parse_configuration(plain(command.task), TaskSection)),
        words_kept=made.words_kept,
        vocab_size=made.vocab_size,
        tokens=made.tokens,
        tokenizer_sha256=made.tokenizer_sha256,
        **{key.field: getattr(line, key.field) for key in keys_of(HistogramNumbers)},
        **_begun(folder),
    )


def _begun(folder: Path) -> dict[str, Any]:
    """Returns when and with what a run was begun, as fields of its privacy.json."""
    begun = read_begun(folder)
    return {key.field: getattr(begun, key.field) for key in keys_of(Begun)}


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
