"""From a noisy histogram to a tokenizer and its report: post-processing, at no cost."""

import hashlib
import json
import logging
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from dpft.config.load import dump
from dpft.config.tokenizer import TokenizerCommand
from dpft.errors import InputError, RunError, StateError
from dpft.files import read_file, sync_tree, write_text
from dpft.privacy.accounting.gaussian_histogram import histogram_of
from dpft.privacy.accounting.rounding import up
from dpft.privacy.histogram_config import NOT_PRIVATE
from dpft.reports.run.run_record import read_privacy
from dpft.run_folder import (
    CONFIGURATION,
    EXACT_HISTOGRAM,
    HISTOGRAM,
    PRIVACY,
    TOKENIZER,
    TOKENIZER_CONFIG,
    private_path,
)
from dpft.runs.answer import Answer
from dpft.runs.run_plan import PublicSize
from dpft.runs.tokenizing.histogram_file import (
    as_lines,
    close_ledger_of,
    closed_ledger,
    read_histogram,
)
from dpft.runs.tokenizing.outcome import Made, answer, write_open_outcome, write_outcome
from dpft.tokenizers.histogram import WordHistogram
from dpft.tokenizers.pieces import VocabularyError, train_pieces
from dpft.tokenizers.saving import is_special, save_tokenizer

logger = logging.getLogger(__name__)
DEFINITION = "tokenizer.json"
"""The file of a tokenizer that says everything of it."""


def make_again(command: TokenizerCommand, folder: Path) -> Answer:
    """Makes another vocabulary of the histogram that a run released.

    Raises:
        InputError: The run has none, or its words do not allow the vocabulary.
        StateError: Its files are damaged.
    """
    if not command.privacy.promises:
        raise InputError(
            f"resume needs a run with a noisy histogram, got {str(folder)!r}, made with"
            " privacy=none; make another vocabulary anew: it costs nothing."
        )
    close_ledger_of(folder)
    closed_ledger(folder)
    known = read_privacy(folder / PRIVACY) if (folder / PRIVACY).exists() else {}
    digest = hashlib.sha256(read_file(folder / HISTOGRAM)).hexdigest()
    if known.get("histogram_sha256", digest) != digest:
        raise StateError(
            f"{folder / HISTOGRAM} is not what the run released; put it back as it was."
        )
    dump(replace(command, resume=None), folder / CONFIGURATION)
    return finish(command, folder)


def finish(command: TokenizerCommand, folder: Path) -> Answer:
    """Reports what was released, makes the tokenizer, and reports that too.

    Raises:
        InputError: The words do not allow so many pieces; the sentence says what stands spent.
        RunError: The process that makes the pieces failed.
    """
    words = read_histogram(folder)
    write_outcome(command, folder, Made(words_kept=len(words)))
    made = make_vocabulary(command, folder, words)
    write_outcome(command, folder, made)
    return answer(folder)


def make_vocabulary(command: TokenizerCommand, folder: Path, words: list[tuple[str, int]]) -> Made:
    """Returns what was made: the tokenizer's folder in the run's, whole or not at all."""
    if not words:
        raise _spent(folder, "no word reached the threshold", 0)
    try:
        return replace(_saved(command, folder, folder / HISTOGRAM), words_kept=len(words))
    except VocabularyError as error:
        raise _spent(folder, str(error), len(words)) from None
    except RunError as error:
        raise RunError(_what_stands(folder, str(error).rstrip("."), len(words))) from None


def make_without_privacy(
    command: TokenizerCommand, folder: Path, counted: WordHistogram, size: PublicSize
) -> Answer:
    """Makes the tokenizer of all words as they are counted, and a report that says NOT PRIVATE.

    The counts themselves stay in the run's private/.

    Raises:
        InputError: There is no word, or the words do not allow so many pieces.
        RunError: The process that makes the pieces failed.
    """
    pairs = zip(counted.words, counted.counts.astype(int).tolist(), strict=True)
    lines = as_lines((word, count) for word, count in pairs if not is_special(word))
    if not lines:
        raise InputError("the training records must have a word, got none; give other records.")
    histogram = private_path(folder, EXACT_HISTOGRAM)
    write_text(histogram, lines, mode=0o600)
    try:
        made = _saved(command, folder, histogram, private=False)
    except VocabularyError as error:
        raise InputError(f"{error}: the words of the records allow no other number.") from None
    write_open_outcome(command, folder, made, size)
    return answer(folder)


def _saved(
    command: TokenizerCommand, folder: Path, histogram: Path, *, private: bool = True
) -> Made:
    """Returns what was made of a histogram: the tokenizer's folder in the run's, whole or not.

    One that is not private says so in its own files: a copy of its folder has no run beside it.

    Raises:
        VocabularyError: The words do not allow so many pieces.
        RunError: The process that makes the pieces failed.
    """
    tokenizer = command.tokenizer
    with tempfile.TemporaryDirectory(dir=folder) as place:
        fresh = Path(place)
        pieces = train_pieces(
            histogram,
            fresh / "pieces.json",
            vocab_size=tokenizer.vocab_size,
            algorithm=tokenizer.algorithm,
        )
        tokens = save_tokenizer(
            fresh / TOKENIZER,
            pieces,
            algorithm=tokenizer.algorithm,
            sentinels=tokenizer.sentinels,
        )
        if not private:
            own = fresh / TOKENIZER / TOKENIZER_CONFIG
            content = json.loads(own.read_text(encoding="utf-8")) | {NOT_PRIVATE: True}
            write_text(own, json.dumps(content, indent=2) + "\n")
        sync_tree(fresh / TOKENIZER)
        shutil.rmtree(folder / TOKENIZER, ignore_errors=True)
        (fresh / TOKENIZER).rename(folder / TOKENIZER)
    return Made(
        vocab_size=len(pieces.pieces),
        tokens=tokens,
        tokenizer_sha256=tokenizer_digest(folder / TOKENIZER),
    )


def tokenizer_digest(folder: Path) -> str:
    """Returns the SHA-256 of what defines a tokenizer."""
    return hashlib.sha256(read_file(folder / DEFINITION)).hexdigest()


def _spent(folder: Path, fault: str, words: int) -> InputError:
    """Returns the refusal of a vocabulary."""
    return InputError(_what_stands(folder, fault, words))


def _what_stands(folder: Path, fault: str, words: int) -> str:
    """Returns why there is no vocabulary, what was spent nevertheless, and how to go on."""
    ledger = closed_ledger(folder)
    mechanism = histogram_of(ledger.mechanisms[0])
    ways_out = (
        f"go on at no further cost by dpft tokenizer resume={folder} tokenizer.vocab_size=NUMBER"
        if words
        else "begin anew with more epsilon, more records, or caps nearer to what a record has"
    )
    return (
        f"{fault}; {words} words reached the threshold of {mechanism.threshold:.6g}, and epsilon ="
        f" {up(mechanism.epsilon)} stands spent: {ways_out}."
    )
