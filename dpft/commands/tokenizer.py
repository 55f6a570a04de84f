"""Private tokenizers, made from word counts with noise (``dpft tokenizer``).

The line of the ledger is on disk before noise is drawn, so that a crash never leads to an
underestimate of epsilon. The noisy histogram is kept. The tokenizer and its report are made from
this histogram. They are post-processing: they cost no epsilon and can be made again with
``resume=``.
"""

import hashlib
import json
import logging
import math
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from dpft.commands.exit_codes import crash_kept
from dpft.commands.new_run import (
    hold_new_folder,
    read_begun,
    refuse_used_folder,
    start_anew,
    write_begun,
)
from dpft.commands.run_plan import PublicSize, size_of_data
from dpft.commands.training_set import NOTE
from dpft.config.hydra_compose import Composed
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
    words_above_threshold,
)
from dpft.privacy.noise import NOISE_SOURCE
from dpft.privacy.plan import EXAMPLE, GIVEN, DeltaSource, HistogramPlan
from dpft.privacy.privacy_config import NOT_PRIVATE
from dpft.reports.epsilon import NOT_PRIVATE_SEED, delta_warnings
from dpft.reports.privacy_json import (
    OpenVocabulary,
    PrivateVocabulary,
    TokenizerSummary,
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
from dpft.strict_model import write_model
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

logger = logging.getLogger(__name__)


def make_tokenizer(
    command: TokenizerCommand, folder: Path, *, composed: Composed | None = None
) -> Answer:
    """Make a private vocabulary; with ``command.resume``, make another from its released histogram.

    Args:
        command: The run's configuration, and whether it is resumed.
        folder: A new folder, or with ``command.resume`` the folder of the run with the histogram.
        composed: The composition by Hydra, which is written into ``.hydra/`` of a new folder.

    Raises:
        InputError: A setting or a record is invalid. If noise has been drawn, the message states
            that its epsilon is spent.
        RunError: The words could not be written, or the pieces could not be made.
        StateError: A file of the resumed run is damaged.
    """
    refuse_links(folder)
    with crash_kept(folder), ExitStack() as stack:
        if command.resume is not None:
            stack.enter_context(hold_run(folder))
            if not command.privacy.promises:
                raise InputError(
                    f"resume needs a run with a noisy histogram, but {str(folder)!r} was made with"
                    " privacy=none. Make another vocabulary without resume, which costs nothing.",
                    key="resume",
                    value=str(folder),
                )
        else:
            # 1. Count the words, and plan the noise from public numbers only.
            refuse_used_folder(folder)
            check_writable(folder)
            counted = count_training_words(command)
            size = size_of_data(command.task, command.privacy, lambda: counted.num_units)
            plan = plan_histogram(command, size) if command.privacy.promises else None

            # 2. Open the folder: lock, date and versions, configuration.
            hold_new_folder(folder, stack)
            start_anew(folder)
            write_begun(folder)
            if composed is not None:
                composed.write_record(folder)
            dump(command, folder / CONFIGURATION)
            logger.info("run: %s", folder)
            if plan is None:
                return make_without_privacy(command, folder, counted, size)

            # 3. Record the cost of the histogram, then draw it; words that reach the threshold are
            # released.
            release_histogram(folder, counted, plan, noise_seed=command.privacy.noise_seed)

        # 4. Report the cost of the histogram, which the ledger contains, before anything is made
        # from it.
        ledger = closed_ledger(folder)
        digest = hashlib.sha256(read_file(folder / HISTOGRAM)).hexdigest()
        if command.resume is not None:
            recorded = read_json(folder / PRIVACY) if (folder / PRIVACY).exists() else {}
            if recorded.get("histogram_sha256", digest) != digest:
                raise StateError(
                    f"{folder / HISTOGRAM} is not the histogram that the run released. Restore the"
                    " original file."
                )
            dump(command.replace(resume=None), folder / CONFIGURATION)
        words = read_histogram(folder)
        spent = ledger.plan
        assert isinstance(spent, HistogramPlan) and isinstance(spent.histogram, GaussianHistogram)
        mechanism = spent.histogram
        warnings = [NOT_PRIVATE_SEED] if spent.reproducible else []
        warnings += delta_warnings(spent.delta, spent.num_examples, source=spent.delta_source)
        record = PrivateVocabulary(
            private=not spent.reproducible,
            epsilon=mechanism.epsilon,
            epsilon_classical=mechanism.epsilon_classical,
            plan=spent,
            steps_taken=ledger.steps,
            noise_source=NOISE_SOURCE,
            ledger=LedgerHead(lines=ledger.lines, head=ledger.head),
            histogram_sha256=digest,
            warnings=tuple(warnings),
            algorithm=command.tokenizer.algorithm,
            data=data_name(command.task),
            words_kept=len(words),
            **read_begun(folder).when,
        )
        write_reports(record, folder)

        # 5. Make the pieces from the released words only, and complete the report.
        if not words:
            raise InputError(
                f"No word reached the threshold of {mechanism.threshold:.6g}, and the run has spent"
                f" epsilon = {eps_text(mechanism.epsilon)}. Start again with a larger epsilon, more"
                " records, or caps closer to the number of words in a record.",
                key="privacy.eps",
                value=command.privacy.eps,
            )
        cost = (
            f"The histogram of {len(words)} words above the threshold of {mechanism.threshold:.6g}"
            f" has cost epsilon = {eps_text(mechanism.epsilon)}; another vocabulary from it costs"
            " no more."
        )
        another = f"dpft tokenizer {in_shell('resume', folder)} tokenizer.vocab_size=NUMBER"
        try:
            pieces = write_tokenizer(command, folder, folder / HISTOGRAM)
        except VocabularyError as error:
            raise InputError(
                f"{_reason(error)} {cost}",
                key="tokenizer.vocab_size",
                value=command.tokenizer.vocab_size,
                hint=another,
            ) from None
        except RunError as error:
            raise RunError(f"{error} {cost} Try: {another}") from None
        return write_reports(record.replace(pieces=pieces), folder)


def count_training_words(command: TokenizerCommand) -> WordHistogram:
    """Return the words of the training records with their counts; private.

    If the run has a guarantee, caps bound the contribution of each unit.
    """
    tokenizer = command.tokenizer
    if command.privacy.promises:
        caps = Caps(words=tokenizer.words_per_record, l2=tokenizer.l2_cap, linf=tokenizer.linf_cap)
    else:
        caps = Caps(words=sys.maxsize, l2=math.inf, linf=math.inf)
    column = command.privacy.unit if command.privacy.has_units else None
    texts = (  # An invalid row counts, without words.
        ("" if record is None else text_of(record), unit)
        for record, unit, _ in read_examples(command.task, "train", column)
    )
    return count_words(texts, caps, by_unit=command.privacy.has_units)


HOPELESS = 0.1
"""Minimum expected number of released words for which spending epsilon makes sense."""
PIECES_OF_A_WORD = 20
"""Upper estimate of the number of pieces into which bpe splits a word. Most words have fewer
characters than that."""


def plan_histogram(command: TokenizerCommand, size: PublicSize) -> HistogramPlan:
    """Return the plan of the release, from public numbers only; warn of wasteful settings.

    Raises:
        InputError: Delta gives no meaningful guarantee, the noise is smaller than the rounding of
            counts, or no word is expected to reach the threshold.
    """
    tokenizer, privacy = command.tokenizer, command.privacy
    delta = privacy.delta_for(size.num_examples, command.task.default_delta)
    delta_source: DeltaSource = command.task.default_delta if privacy.delta is None else GIVEN
    noise_std = tokenizer.noise_std
    if noise_std is None:
        assert privacy.eps is not None
        noise_std = noise_std_for(eps=privacy.eps, l2_cap=tokenizer.l2_cap, delta=delta)
    if noise_std < RESOLUTION:
        raise InputError(
            f"The noise on each count must be at least 2^-16 = {RESOLUTION:.3g}, to which counts"
            f" are rounded, got {noise_std:.3g}. Raise tokenizer.l2_cap or tokenizer.noise_std, or"
            " lower privacy.eps.",
            key="tokenizer.noise_std",
            value=noise_std,
        )
    for warning in delta_warnings(delta, size.num_examples, source=delta_source):
        logger.warning(warning)
    most = (tokenizer.linf_cap * tokenizer.words_per_record) ** 0.5
    if tokenizer.l2_cap > most:
        logger.warning(
            "tokenizer.l2_cap=%g exceeds %g, the maximum that words_per_record and linf_cap allow."
            " Decrease it for less noise at the same epsilon.",
            tokenizer.l2_cap,
            most,
        )
    if tokenizer.linf_cap > tokenizer.l2_cap:
        logger.warning(
            "tokenizer.linf_cap=%g has no effect above l2_cap=%g, but raises the threshold."
            " Decrease it.",
            tokenizer.linf_cap,
            tokenizer.l2_cap,
        )
    mechanism = GaussianHistogram(
        noise_std=noise_std,
        l2_cap=tokenizer.l2_cap,
        linf_cap=tokenizer.linf_cap,
        words_per_record=tokenizer.words_per_record,
        delta=delta,
        num_examples=size.num_examples,
        num_examples_source=size.source,
    )
    words = mechanism.most_words_expected(size.num_examples)
    if words < HOPELESS:
        raise InputError(
            f"With {size.num_examples} records (units), at most {words:.2g} words are expected to"
            f" reach the threshold of {mechanism.threshold:.6g}, so nothing was spent. Use a larger"
            " epsilon, more records, or caps closer to the number of words in a record.",
            key="privacy.eps",
            value=privacy.eps,
        )
    if tokenizer.vocab_size > PIECES_OF_A_WORD * words:
        logger.warning(
            "tokenizer.vocab_size=%d is probably too large: at most about %d words are expected to"
            " reach the threshold of %.6g. If the command fails, resume= makes a smaller vocabulary"
            " at no additional cost.",
            tokenizer.vocab_size,
            math.ceil(words),
            mechanism.threshold,
        )
    unit_definition = f"one {command.task.unit_definition}"
    if privacy.unit != EXAMPLE:
        unit_definition = (
            f"all records with one value of {privacy.unit}, of which"
            f" {tokenizer.words_per_record} words are counted"
        )
    return HistogramPlan(
        histogram=mechanism,
        num_examples=size.num_examples,
        delta=delta,
        delta_source=delta_source,
        unit=privacy.unit,
        unit_definition=unit_definition,
        reproducible=privacy.noise_seed is not None,
    )


def make_without_privacy(
    command: TokenizerCommand, folder: Path, counted: WordHistogram, size: PublicSize
) -> Answer:
    """Make the tokenizer from the exact word counts, and a report that states NOT PRIVATE.

    The counts themselves stay in the run's ``private/``.
    """
    pairs = zip(counted.words, counted.counts.astype(int).tolist(), strict=True)
    lines = histogram_lines((word, count) for word, count in pairs if not is_special(word))
    if not lines:
        raise InputError("The training records contain no word. Use other records.", key=None)
    histogram = private_path(folder, EXACT_HISTOGRAM)
    write_text(histogram, lines, mode=0o600)
    try:
        pieces = write_tokenizer(command, folder, histogram, private=False)
    except VocabularyError as error:
        raise InputError(
            f"{_reason(error)} The training records set this limit.",
            key="tokenizer.vocab_size",
            value=command.tokenizer.vocab_size,
        ) from None
    record = OpenVocabulary(
        num_examples=size.num_examples,
        num_examples_source=size.source,
        algorithm=command.tokenizer.algorithm,
        data=data_name(command.task),
        pieces=pieces,
        **read_begun(folder).when,
    )
    return write_reports(record, folder)


def release_histogram(
    folder: Path, counted: WordHistogram, plan: HistogramPlan, *, noise_seed: int | None
) -> None:
    """Write the line of the ledger, then the words that reach the threshold, and close the ledger.

    Raises:
        RunError: The words could not be written after the line of the ledger.
    """
    mechanism = plan.histogram
    assert isinstance(mechanism, GaussianHistogram)
    key = secret_key("histogram", noise_seed)
    with Ledger(folder / LEDGER, plan=plan) as ledger:
        ledger.append(1, mechanism)
        noisy_counts = words_above_threshold(counted.words, counted.counts, mechanism, key)
        words = [(word, count) for word, count in noisy_counts if not is_special(word)]
        try:
            write_text(folder / HISTOGRAM, histogram_lines(words))
        except OSError as error:
            raise RunError(
                f"{folder / HISTOGRAM} could not be written ({error.strerror}), and epsilon ="
                f" {eps_text(mechanism.epsilon)} is spent. Fix the cause, start again in another"
                " folder, and compute the cost of both with dpft account 'runs=[FIRST,SECOND]'."
            ) from error
        ledger.close()
    write_summary(folder, counted, words)


def histogram_lines(words: Iterable[tuple[str, int]]) -> str:
    """Return the content of a histogram file: a word, a tab and its count on each line."""
    return "".join(f"{word}\t{count}\n" for word, count in words)


def write_summary(folder: Path, counted: WordHistogram, kept: Sequence[tuple[str, int]]) -> None:
    """Write the share of the records' words that was kept, readable only by the owner."""
    kept_words = {word for word, _ in kept}
    is_kept = np.fromiter((word in kept_words for word in counted.words), bool, len(counted.words))
    num_words, occurrences = len(counted.words), float(counted.counts.sum())
    share = float(counted.counts[is_kept].sum()) / occurrences if occurrences else 0.0
    lines = [
        NOTE,
        "",
        f"- units read: {counted.num_units}",
        f"- different words: {num_words}",
        f"- of them kept: {int(is_kept.sum())} ({is_kept.sum() / max(1, num_words):.2%})",
        f"- share of all counts that belongs to kept words: {share:.2%}",
    ]
    write_text(private_path(folder, DATA_SUMMARY), "\n".join(lines) + "\n", mode=0o600)


def closed_ledger(folder: Path) -> LedgerRecord:
    """Return the ledger of a released histogram, and close it if it is still open.

    Raises:
        InputError: The folder does not belong to a tokenizer run, or the run was interrupted before
            its histogram was on disk.
        StateError: The ledger is damaged.
    """
    path = folder / LEDGER
    if not path.exists():
        raise InputError(
            f"resume must be the folder of a dpft tokenizer run, got {str(folder)!r}, which"
            f" {what_lacks(folder, LEDGER)}.",
            key="resume",
            value=str(folder),
            hint="resume=outputs/DATE/TIME",
        )
    record = read_ledger(path)
    if record.steps == 1 and not record.closed and (folder / HISTOGRAM).exists():
        # The histogram is written atomically, so this file is complete. Its noise was drawn once,
        # after the only line of the ledger was on disk.
        with Ledger.reopen(path, record) as ledger:
            ledger.close()
        record = read_ledger(path)
    if not record.steps:
        raise InputError(
            f"{path} has no whole step: the run was interrupted before it drew any noise, and spent"
            " nothing. Start again without resume, in another folder.",
            key="resume",
            value=str(folder),
        )
    if not record.closed:
        raise InputError(
            f"{path} records a histogram that was never written: the run was interrupted, and its"
            " epsilon is spent. Start again without resume, and compute the cost of both runs.",
            key="resume",
            value=str(folder),
            hint="dpft account 'runs=[FIRST,SECOND]'",
        )
    return record


def read_histogram(folder: Path) -> list[tuple[str, int]]:
    """Return the words in a run's histogram file and their counts."""
    path = folder / HISTOGRAM
    try:
        lines = read_file(path).decode("utf-8").split("\n")[:-1]
        pairs = [line.split("\t") for line in lines]
        return [(word, int(count)) for word, count in pairs]
    except (OSError, ValueError) as error:
        raise StateError(f"{path} is missing or damaged. Restore the original file.") from error


def write_tokenizer(
    command: TokenizerCommand, folder: Path, histogram: Path, *, private: bool = True
) -> TokenizerSummary:
    """Write the tokenizer of a histogram into the run's folder atomically; return its sizes.

    A tokenizer that is not private states this in its own files, because a copy of its folder has
    no run next to it.

    Raises:
        VocabularyError: The words do not allow the requested number of pieces, or need more pieces.
        RunError: The process that makes the pieces failed.
    """
    tokenizer = command.tokenizer
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        unfinished = Path(temporary) / TOKENIZER
        pieces = train_pieces(
            histogram,
            Path(temporary) / "pieces.json",
            vocab_size=tokenizer.vocab_size,
            algorithm=tokenizer.algorithm,
        )
        tokens = save_tokenizer(
            unfinished, pieces, algorithm=tokenizer.algorithm, sentinels=tokenizer.sentinels
        )
        if not private:
            path = unfinished / TOKENIZER_CONFIG
            content = json.loads(path.read_text(encoding="utf-8")) | {NOT_PRIVATE: True}
            write_text(path, json.dumps(content, indent=2) + "\n")
        sync_tree(unfinished)
        shutil.rmtree(folder / TOKENIZER, ignore_errors=True)
        unfinished.rename(folder / TOKENIZER)
    definition = read_file(folder / TOKENIZER / "tokenizer.json")
    return TokenizerSummary(
        vocab_size=len(pieces),
        tokens=tokens,
        tokenizer_sha256=hashlib.sha256(definition).hexdigest(),
    )


def _reason(error: VocabularyError) -> str:
    """Return the message of the error without its hint."""
    return error.faults[0].message.rstrip(".") + "."


def write_reports(record: Vocabulary, folder: Path) -> Answer:
    """Write privacy.json and the reports of a vocabulary; return the output of the command."""
    write_model(folder / PRIVACY, record)
    write_tokenizer_report(folder, record)
    return Answer(table=table(record, folder), record=record)
