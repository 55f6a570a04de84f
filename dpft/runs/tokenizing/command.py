"""``dpft tokenizer``, hand-over by hand-over: counted, planned, paid for, released, made, reported.

The ledger's line is on disk before noise is drawn, so that a crash can never under-count; the noisy
histogram is kept, and everything after it is post-processing that may be done again.
"""

import logging
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dpft.config.load import dump
from dpft.config.tokenizer import TokenizerCommand
from dpft.data.sources import read_examples
from dpft.errors import InputError, RunError
from dpft.files import check_writable, write_text
from dpft.links import refuse_links
from dpft.privacy.accounting.gaussian_histogram import GaussianHistogram, noise_std_for
from dpft.privacy.accounting.rounding import up
from dpft.privacy.histograms import released
from dpft.privacy.keys import secret_key
from dpft.privacy.ledger import Ledger
from dpft.privacy.plan import HistogramPlan, write_plan
from dpft.reports.accounting.epsilon import delta_warnings
from dpft.run_folder import CONFIGURATION, HISTOGRAM, LEDGER, hold_run
from dpft.runs.answer import Answer
from dpft.runs.begun import write_begun
from dpft.runs.crashes import crash_kept
from dpft.runs.folder import WriteRequest, refuse_used_folder, start_anew
from dpft.runs.run_plan import PublicSize, size_of_data
from dpft.runs.tokenizing.histogram_file import as_lines
from dpft.runs.tokenizing.outcome import delta_source, unit_definition, write_summary
from dpft.runs.tokenizing.vocabulary import finish, make_again, make_without_privacy
from dpft.tasks.records import text_of
from dpft.tokenizers.histogram import RESOLUTION, Caps, WordHistogram, count_words
from dpft.tokenizers.saving import is_special

logger = logging.getLogger(__name__)


def make_tokenizer(
    command: TokenizerCommand, folder: Path, *, write_request: WriteRequest | None = None
) -> Answer:
    """Makes a private vocabulary, or another one of a noisy histogram that is there.

    Args:
        command: What is asked for.
        folder: Of the run: a new one, or with ``command.resume`` that one.
        write_request: Writes how a new run was asked for.

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
                return make_again(command, folder)
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
        dump(replace(command, resume=None), folder / CONFIGURATION)
        logger.info("run: %s", folder)
        if mechanism is None:
            return make_without_privacy(command, folder, counted, size)
        words = _release(command, folder, counted, mechanism, size)
        write_summary(folder, counted, words)
        return finish(command, folder)


def count(command: TokenizerCommand) -> WordHistogram:
    """Returns the words of the training records, with a guarantee bounded for each unit; private.

    Raises:
        InputError: The records cannot be read, or one of them is faulty.
    """
    tokenizer = command.tokenizer
    caps = Caps(words=tokenizer.words_per_record, l2=tokenizer.l2_cap, linf=tokenizer.linf_cap)
    if not command.privacy.promises:
        caps = Caps(words=sys.maxsize, l2=math.inf, linf=math.inf)
    return count_words(_texts(command), caps, by_unit=command.privacy.has_units)


def _texts(command: TokenizerCommand) -> Iterator[tuple[str, str]]:
    column = command.privacy.unit if command.privacy.has_units else None
    for record, unit, _ in read_examples(command.task, "train", column):
        yield "" if record is None else text_of(record), unit  # A faulty row counts, with no word.


def plan_histogram(command: TokenizerCommand, size: PublicSize) -> GaussianHistogram:
    """Returns what will be released, from public numbers alone; says what is wasteful.

    Raises:
        InputError: Delta promises nothing, or the noise is below what counts are rounded to.
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
    return GaussianHistogram(
        noise_std=noise,
        l2_cap=tokenizer.l2_cap,
        linf_cap=tokenizer.linf_cap,
        words_per_record=tokenizer.words_per_record,
        delta=delta,
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
    public = {"num_examples": size.num_examples, "num_examples_source": size.source}
    step = {**mechanism.entry(), **public}
    plan = HistogramPlan(
        histogram=step,
        num_examples=size.num_examples,
        delta=mechanism.delta,
        delta_source=delta_source(command),
        unit=command.privacy.unit,
        unit_definition=unit_definition(command),
        reproducible=command.privacy.noise_seed is not None,
    )
    with Ledger(folder / LEDGER, plan=write_plan(plan)) as ledger:
        ledger.append(1, step)
        words = released(counted.words, counted.counts, mechanism, key)
        plain = [(word, count) for word, count in words if not is_special(word)]
        try:
            write_text(folder / HISTOGRAM, as_lines(plain))
        except OSError as error:
            raise RunError(
                f"{folder / HISTOGRAM} could not be written ({error.strerror}), and epsilon ="
                f" {up(mechanism.epsilon)} stands spent: mend that, begin anew in another folder,"
                " and compose both by dpft account runs=[FIRST,SECOND]."
            ) from error
        ledger.close()
    return plain
