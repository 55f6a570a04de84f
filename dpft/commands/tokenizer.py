"""``dpft tokenizer``, hand-over by hand-over: counted, planned, paid for, released, made, reported.

The ledger's line is on disk before noise is drawn, so that a crash can never under-count; the noisy
histogram is kept. Everything after it, the tokenizer and its report, is post-processing: it costs
nothing and may be done again.
"""

import hashlib
import json
import logging
import math
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from dpft.commands.exit_codes import crash_kept
from dpft.commands.new_run import (
    WriteRequest,
    read_begun,
    refuse_used_folder,
    start_anew,
    write_begun,
)
from dpft.commands.run_plan import PublicSize, size_of_data
from dpft.commands.training_set import NOTE
from dpft.config.keys import in_shell
from dpft.config.load import dump
from dpft.config.schema import TokenizerCommand
from dpft.data.sources import read_examples
from dpft.errors import InputError, RunError, StateError
from dpft.privacy.accounting.summary import eps_text
from dpft.privacy.cipher import secret_key
from dpft.privacy.ledger import Ledger, LedgerHead, LedgerRecord, read_ledger
from dpft.privacy.mechanisms.histogram import (
    GaussianHistogram,
    noise_std_for,
    released,
)
from dpft.privacy.noise import NOISE_SOURCE
from dpft.privacy.plan import (
    EXAMPLE,
    GIVEN,
    DeltaSource,
    HistogramPlan,
)
from dpft.privacy.privacy_config import NOT_PRIVATE
from dpft.reports.epsilon import NOT_PRIVATE_SEED, delta_warnings
from dpft.reports.promises import (
    OpenVocabulary,
    Pieces,
    PrivateVocabulary,
    Vocabulary,
)
from dpft.reports.report import table, write_tokenizer_report
from dpft.reports.run_record import data_name
from dpft.reports.terminal import Answer
from dpft.run_folder import (
    CONFIGURATION,
    DATA_SUMMARY,
    EXACT_HISTOGRAM,
    HISTOGRAM,
    LEDGER,
    PRIVACY,
    TOKENIZER,
    TOKENIZER_CONFIG,
    check_writable,
    hold_run,
    private_path,
    read_file,
    read_json,
    refuse_links,
    sync_tree,
    what_lacks,
    write_text,
)
from dpft.strict_model import (
    write_model,
)
from dpft.tasks.base import text_of
from dpft.tokenizers import (
    RESOLUTION,
    Caps,
    VocabularyError,
    WordHistogram,
    count_words,
    is_special,
    save_tokenizer,
    train_pieces,
)


def as_lines(words: Iterable[tuple[str, int]]) -> str:
    """Returns the file's text: a word, a tab and its count in each line."""
    return "".join(f"{word}\t{count}\n" for word, count in words)


def read_histogram(folder: Path) -> list[tuple[str, int]]:
    """Returns the words of a run's file and their counts."""
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
            f"resume must be the folder of a dpft tokenizer run, got {str(folder)!r}, which"
            f" {what_lacks(folder, LEDGER)}; give the folder that dpft tokenizer named."
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


def write_outcome(record: Vocabulary, folder: Path) -> Answer:
    """Writes privacy.json and the reports of a vocabulary; returns what the command prints."""
    write_model(folder / PRIVACY, record)
    write_tokenizer_report(folder, record)
    return Answer(table=table(record, folder), record=record)


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


def _record(
    command: TokenizerCommand, folder: Path, *, words_kept: int, pieces: Pieces | None
) -> PrivateVocabulary:
    """Returns the content of privacy.json: the plan in the ledger, and what it costs."""
    ledger = closed_ledger(folder)
    plan = ledger.plan
    assert isinstance(plan, HistogramPlan) and isinstance(plan.histogram, GaussianHistogram)
    mechanism = plan.histogram
    warnings = [NOT_PRIVATE_SEED] if plan.reproducible else []
    warnings += delta_warnings(plan.delta, plan.num_examples, source=plan.delta_source)
    return PrivateVocabulary(
        private=not plan.reproducible,
        epsilon=mechanism.epsilon,
        epsilon_classical=mechanism.epsilon_classical,
        plan=plan,
        steps_taken=ledger.steps,
        noise_source=NOISE_SOURCE,
        ledger=LedgerHead(lines=ledger.lines, head=ledger.head),
        histogram_sha256=hashlib.sha256(read_file(folder / HISTOGRAM)).hexdigest(),
        warnings=tuple(warnings),
        algorithm=command.tokenizer.algorithm,
        data=data_name(command.task),
        words_kept=words_kept,
        pieces=pieces,
        **read_begun(folder).when,
    )


def delta_source(command: TokenizerCommand) -> DeltaSource:
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


logger = logging.getLogger(__name__)
DEFINITION = "tokenizer.json"
"""The file of a tokenizer that says everything of it."""


def finish(command: TokenizerCommand, folder: Path) -> Answer:
    """Reports what was released, makes the tokenizer, and reports that too.

    Raises:
        InputError: The words do not allow so many pieces; the sentence says what stands spent.
        RunError: The process that makes the pieces failed.
    """
    words = read_histogram(folder)
    write_outcome(_record(command, folder, words_kept=len(words), pieces=None), folder)
    if not words:
        raise InputError(_what_stands(folder, "no word reached the threshold", 0))
    try:
        pieces = _saved(command, folder, folder / HISTOGRAM)
    except VocabularyError as error:
        raise InputError(_what_stands(folder, str(error), len(words))) from None
    except RunError as error:
        raise RunError(_what_stands(folder, str(error).rstrip("."), len(words))) from None
    record = _record(command, folder, words_kept=len(words), pieces=pieces)
    return write_outcome(record, folder)


def make_without_privacy(
    command: TokenizerCommand, folder: Path, counted: WordHistogram, size: PublicSize
) -> Answer:
    """Makes the tokenizer of all words as they are counted, and a report that says NOT PRIVATE.

    The counts themselves stay in the run's private/.
    """
    pairs = zip(counted.words, counted.counts.astype(int).tolist(), strict=True)
    lines = as_lines((word, count) for word, count in pairs if not is_special(word))
    if not lines:
        raise InputError("the training records must have a word, got none; give other records.")
    histogram = private_path(folder, EXACT_HISTOGRAM)
    write_text(histogram, lines, mode=0o600)
    try:
        pieces = _saved(command, folder, histogram, private=False)
    except VocabularyError as error:
        raise InputError(f"{error}: the words of the records allow no other number.") from None
    record = OpenVocabulary(
        num_examples=size.num_examples,
        num_examples_source=size.source,
        algorithm=command.tokenizer.algorithm,
        data=data_name(command.task),
        pieces=pieces,
        **read_begun(folder).when,
    )
    return write_outcome(record, folder)


def _saved(
    command: TokenizerCommand, folder: Path, histogram: Path, *, private: bool = True
) -> Pieces:
    """Returns what was made of a histogram: the tokenizer's folder in the run's, whole or not.

    One that is not private says so in its own files: a copy of its folder has no run beside it.
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
            fresh / TOKENIZER, pieces, algorithm=tokenizer.algorithm, sentinels=tokenizer.sentinels
        )
        if not private:
            own = fresh / TOKENIZER / TOKENIZER_CONFIG
            content = json.loads(own.read_text(encoding="utf-8")) | {NOT_PRIVATE: True}
            write_text(own, json.dumps(content, indent=2) + "\n")
        sync_tree(fresh / TOKENIZER)
        shutil.rmtree(folder / TOKENIZER, ignore_errors=True)
        (fresh / TOKENIZER).rename(folder / TOKENIZER)
    return Pieces(
        vocab_size=len(pieces.pieces),
        tokens=tokens,
        tokenizer_sha256=hashlib.sha256(read_file(folder / TOKENIZER / DEFINITION)).hexdigest(),
    )


def _what_stands(folder: Path, fault: str, words: int) -> str:
    """Returns why there is no vocabulary, what was spent nevertheless, and how to go on."""
    ledger = closed_ledger(folder)
    mechanism = ledger.mechanisms[0]
    assert isinstance(mechanism, GaussianHistogram)
    ways_out = (
        f"go on at no further cost by dpft tokenizer {in_shell('resume', folder)}"
        " tokenizer.vocab_size=NUMBER"
        if words
        else "begin anew with more epsilon, more records, or caps nearer to what a record has"
    )
    return (
        f"{fault}; {words} words reached the threshold of {mechanism.threshold:.6g}, and epsilon ="
        f" {eps_text(mechanism.epsilon)} stands spent: {ways_out}."
    )


def make_tokenizer(
    command: TokenizerCommand, folder: Path, *, write_request: WriteRequest | None = None
) -> Answer:
    """Makes a private vocabulary, or another one of a noisy histogram that is there.

    Raises:
        InputError: Something does not fit; where the noise is drawn, the sentence says that its
            epsilon stands spent.
        RunError: The words could not be written, or the pieces not be made.
        StateError: What the run left is damaged.
    """
    refuse_links(folder)
    with crash_kept(folder):
        if command.resume is not None:
            with hold_run(folder):
                if not command.privacy.promises:
                    raise InputError(
                        f"resume needs a run with a noisy histogram, got {str(folder)!r}, made with"
                        " privacy=none; make another vocabulary anew: it costs nothing."
                    )
                close_ledger_of(folder)
                closed_ledger(folder)
                known = read_json(folder / PRIVACY) if (folder / PRIVACY).exists() else {}
                digest = hashlib.sha256(read_file(folder / HISTOGRAM)).hexdigest()
                if known.get("histogram_sha256", digest) != digest:
                    raise StateError(
                        f"{folder / HISTOGRAM} is not what the run released; put it back as it was."
                    )
                dump(command.replace(resume=None), folder / CONFIGURATION)
                return finish(command, folder)
        return _begin(command, folder, write_request)


def _begin(command: TokenizerCommand, folder: Path, write_request: WriteRequest | None) -> Answer:
    refuse_used_folder(folder)
    check_writable(folder)
    counted = count(command)
    size = size_of_data(command.task, command.privacy, lambda: counted.num_units)
    mechanism = plan_histogram(command, size) if command.privacy.promises else None
    folder.mkdir(parents=True, exist_ok=True)
    with hold_run(folder):
        refuse_used_folder(folder)
        start_anew(folder)
        write_begun(folder)
        if write_request is not None:
            write_request(folder)
        dump(command.replace(resume=None), folder / CONFIGURATION)
        logger.info("run: %s", folder)
        if mechanism is None:
            return make_without_privacy(command, folder, counted, size)
        words = _release(command, folder, counted, mechanism, size)
        write_summary(folder, counted, words)
        return finish(command, folder)


def count(command: TokenizerCommand) -> WordHistogram:
    """Returns the words of the training records, with a guarantee bounded per unit; private."""
    tokenizer = command.tokenizer
    caps = Caps(words=tokenizer.words_per_record, l2=tokenizer.l2_cap, linf=tokenizer.linf_cap)
    if not command.privacy.promises:
        caps = Caps(words=sys.maxsize, l2=math.inf, linf=math.inf)
    column = command.privacy.unit if command.privacy.has_units else None
    texts = (  # A faulty row counts, with no word.
        ("" if record is None else text_of(record), unit)
        for record, unit, _ in read_examples(command.task, "train", column)
    )
    return count_words(texts, caps, by_unit=command.privacy.has_units)


HOPELESS = 0.1
"""Words that are to be expected, below which there is no sense in spending epsilon."""
PIECES_OF_A_WORD = 20
"""More than most words' characters, and so than bpe makes of one."""


def plan_histogram(command: TokenizerCommand, size: PublicSize) -> GaussianHistogram:
    """Returns what will be released, from public numbers alone; says what is wasteful.

    Raises:
        InputError: Delta promises nothing, the noise is below what counts are rounded to, or no
            word is to be expected beside it.
    """
    tokenizer, privacy = command.tokenizer, command.privacy
    delta = privacy.delta_for(size.num_examples, command.task.default_delta)
    noise = tokenizer.noise_std
    if noise is None:
        assert privacy.eps is not None
        noise = noise_std_for(eps=privacy.eps, l2_cap=tokenizer.l2_cap, delta=delta)
    if noise < RESOLUTION:
        raise InputError(
            f"the noise on each count must be at least 2^-16 = {RESOLUTION:.3g}, to which counts"
            f" are rounded, got {noise:.3g}; raise tokenizer.l2_cap or tokenizer.noise_std, or"
            " lower privacy.eps."
        )
    for warning in delta_warnings(delta, size.num_examples, source=delta_source(command)):
        logger.warning(warning)
    most = (tokenizer.linf_cap * tokenizer.words_per_record) ** 0.5
    if tokenizer.l2_cap > most:
        logger.warning(
            "tokenizer.l2_cap=%g is above %g, the most that words_per_record and linf_cap allow;"
            " lower it to have less noise at the same epsilon",
            tokenizer.l2_cap,
            most,
        )
    if tokenizer.linf_cap > tokenizer.l2_cap:
        logger.warning(
            "tokenizer.linf_cap=%g never binds above l2_cap=%g and raises the threshold; lower it",
            tokenizer.linf_cap,
            tokenizer.l2_cap,
        )
    mechanism = GaussianHistogram(
        noise_std=noise,
        l2_cap=tokenizer.l2_cap,
        linf_cap=tokenizer.linf_cap,
        words_per_record=tokenizer.words_per_record,
        delta=delta,
        num_examples=size.num_examples,
        num_examples_source=size.source,
    )
    _check_reach(mechanism, size, tokenizer.vocab_size)
    return mechanism


def _check_reach(mechanism: GaussianHistogram, size: PublicSize, vocab_size: int) -> None:
    """Refuses noise that hides every word; warns of more pieces than words are likely to give."""
    words = mechanism.most_words_expected(size.num_examples)
    if words < HOPELESS:
        raise InputError(
            f"words must be able to reach the threshold of {mechanism.threshold:.6g}, got"
            f" {size.num_examples} records (units), of whose words {words:.2g} are to be expected"
            " there at most; give more epsilon, more records, or caps nearer to what a record has."
            " Nothing was spent."
        )
    if vocab_size > PIECES_OF_A_WORD * words:
        logger.warning(
            "tokenizer.vocab_size=%d is likely too many: by public numbers alone about %d words at"
            " most are to be expected to reach the threshold of %.6g; where they allow fewer,"
            " resume= makes a smaller vocabulary at no further cost",
            vocab_size,
            math.ceil(words),
            mechanism.threshold,
        )


def _release(
    command: TokenizerCommand,
    folder: Path,
    counted: WordHistogram,
    mechanism: GaussianHistogram,
    size: PublicSize,
) -> list[tuple[str, int]]:
    """Writes the ledger's line, then the words that reach the threshold, and closes the ledger."""
    key = secret_key("histogram", command.privacy.noise_seed)
    plan = HistogramPlan(
        histogram=mechanism,
        num_examples=size.num_examples,
        delta=mechanism.delta,
        delta_source=delta_source(command),
        unit=command.privacy.unit,
        unit_definition=unit_definition(command),
        reproducible=command.privacy.noise_seed is not None,
    )
    with Ledger(folder / LEDGER, plan=plan) as ledger:
        ledger.append(1, mechanism)
        words = released(counted.words, counted.counts, mechanism, key)
        plain = [(word, count) for word, count in words if not is_special(word)]
        try:
            write_text(folder / HISTOGRAM, as_lines(plain))
        except OSError as error:
            raise RunError(
                f"{folder / HISTOGRAM} could not be written ({error.strerror}), and epsilon ="
                f" {eps_text(mechanism.epsilon)} stands spent: mend that, begin anew in another"
                " folder, and compose both by dpft account runs=[FIRST,SECOND]."
            ) from error
        ledger.close()
    return plain
