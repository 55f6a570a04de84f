"""An audit from the command to its findings: the run's models, its training and its unseen records.

An audit compares log-likelihoods of the last two, so each must be what it is called. Which records
were held out is known by the run's own key alone, and whether the training records are still the
same by its fingerprint, both in private/. Findings are written there, and printed.
"""

import hmac
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from markupsafe import Markup
from transformers import PreTrainedModel

from dpft.audit.base import AuditConfig, AuditedRun, Finding
from dpft.commands.exit_codes import crash_kept
from dpft.commands.guarantee import privacy_of
from dpft.commands.interrupted_run import kept_here, read_secrets
from dpft.commands.ledger_account import saved_run
from dpft.commands.new_run import Fingerprint
from dpft.commands.splits import (
    HELD_OUT,
    TrainingData,
    held_out_key,
    known_by,
    load_training_data,
    read_canaries,
)
from dpft.commands.task_model import fitted_to, prepare_model, trained_model_of_run, training_head
from dpft.commands.training_set import encode_records
from dpft.config.schema import TrainConfig
from dpft.data.batches import EncodedRows
from dpft.data.canaries import copies_of
from dpft.data.encoding import Encoding, fingerprint
from dpft.data.rows import Check, accept_all
from dpft.data.sources import has_training_split_alone, load_examples
from dpft.data.training_records import split_held_out
from dpft.errors import DpftError, InputError, StateError
from dpft.evaluation.eval_config import eval_split_is_public, reads_training_split
from dpft.generation.decoding import batches_by_tokens, evaluation_mode
from dpft.kinds import TEXT
from dpft.models.architecture import read_architecture
from dpft.models.loading import quiet_transformers
from dpft.models.losses import per_example_losses, token_nll
from dpft.reports import terminal
from dpft.reports.pages import line, render_page
from dpft.reports.promises import Audited
from dpft.reports.report import write_report
from dpft.reports.terminal import Grid
from dpft.run_folder import (
    AUDIT,
    CANARIES,
    FINGERPRINT,
    HELD_OUT_KEY,
    PRIVACY,
    PRIVATE,
    PRIVATE_AUDIT,
    UNIT_KEY,
    audit_path,
    hold_run,
    private_audit_path,
    write_text,
)
from dpft.strict_model import joined, json_text, read_model, write_model
from dpft.tasks.base import Record, TextTask

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A model that says how likely records are."""

    model: PreTrainedModel
    """On its device."""
    encoding: Encoding
    batch_size: int
    """How many of the longest records are read at once."""

    def log_likelihoods(self, records: Sequence[Record]) -> list[float]:
        """Return the log-likelihood of the learned part of each record, in nats, in order.

        For a text it is the sum over the learned tokens, for a label the log-likelihood of that
        label, and for a score the negative squared error.
        """
        rows = self.encoding.rows(records)
        log_likelihoods = [0.0] * len(rows)
        lengths = [len(row.input_ids) + len(row.labels) for row in rows]
        with evaluation_mode(self.model), torch.no_grad():
            for places in batches_by_tokens(lengths, self.batch_size):
                batch = self.encoding.layout.collate([rows[place] for place in places])
                batch = batch.to(self.model.device)
                if batch.answer == TEXT:
                    losses = token_nll(self.model, batch)[0]
                else:
                    losses = per_example_losses(self.model, batch)
                for place, loss in zip(places, losses.tolist(), strict=True):
                    log_likelihoods[place] = -loss
        return log_likelihoods


def trained(run: AuditedRun, batch_size: int) -> Scorer:
    """Returns the model that the run released."""
    model = trained_model_of_run(run.folder, run.config)
    return Scorer(
        model=model.on_device(run.config.task, run.device.prepare()),
        encoding=model.encoding(run.config.task, max_new_tokens=None),
        batch_size=batch_size,
    )


def untrained(run: AuditedRun, batch_size: int) -> Scorer:
    """Returns the model that the run began with, which is as public as what it was made from."""
    encoding = trained_model_of_run(run.folder, run.config).encoding(
        run.config.task, max_new_tokens=None
    )
    config = run.config.replace(model=kept_here(run.config.model, run.folder))
    architecture = read_architecture(config.model)
    config = fitted_to(config, architecture)
    model, _ = prepare_model(config, architecture, training_head(config, architecture))
    model.to(run.device.prepare())  # type: ignore[arg-type]
    return Scorer(model=model, encoding=encoding, batch_size=batch_size)


@dataclass(frozen=True, kw_only=True)
class Unseen:
    """Records of the run's task that it was not trained on; of a task of texts, ``Example``."""

    records: Sequence[Any]
    split: str
    """Where they are from, such as test, or held_out."""
    public: bool
    """Whether they may be shown."""
    places: Sequence[int] | None = None
    """Where they are among all records of the training split; None: they are another split."""


@dataclass(frozen=True, kw_only=True)
class RunRecords:
    """The records of a run that an audit compares; the training records are private."""

    training: Sequence[Any]
    places: Sequence[int]
    """Where the training records are among all that were read of their split."""
    rows: Sequence[Sequence[int]]
    """Of each training record the numbers of its rows that were trained on: 0, unless it was cut
    into chunks."""
    unseen: Unseen | str
    """Others, or why there are none, in words."""


def read_run_records(run: Path, config: TrainConfig, encoding: Encoding) -> RunRecords:
    """Returns the records that a run was trained on, and others.

    Raises:
        InputError: The training records cannot be read, or are not those of the run, or which they
            are is not known for want of a key in private/.
        StateError: A file in private/ is damaged.
    """
    read = load_training_data(config, encoding.check)
    data = replace(read, examples=list(read.examples))
    kept: Sequence[int] = range(len(data.examples))
    unseen: Unseen | str
    if config.eval.held_out is None:
        unseen = unseen_records(config, encoding.check)
    else:
        kept, held = _kept_and_held_out(run, config, data)
        records = data.only(held).examples
        unseen = Unseen(records=records, split=HELD_OUT, public=False, places=held)
    trained = _trained_places(run, config, data.only(kept), encoding)
    places = [kept[at] for at in trained]
    return RunRecords(
        training=[data.examples[at] for at in places],
        places=places,
        rows=list(trained.values()),
        unseen=unseen,
    )


def records_and_unseen(
    run: Path, config: TrainConfig, encoding: Encoding
) -> tuple[RunRecords | str, Unseen | str]:
    """Returns the training records and others, or of either why they are not there, in words."""
    try:
        records = read_run_records(run, config, encoding)
    except InputError as error:
        why = str(error)
        is_split = config.eval.held_out is None
        return why, unseen_records(config, encoding.check) if is_split else why
    return records, records.unseen


def check_writes_texts(config: TrainConfig) -> TextTask:
    """Returns a run's task, whose answers are texts."""
    if not isinstance(config.task, TextTask):
        raise InputError(
            f"run must be of a model that writes texts, got task={config.task.name}, whose answers"
            " are labels; audit=membership is for those, too."
        )
    return config.task


def unseen_records(config: TrainConfig, check: Check = accept_all) -> Unseen | str:
    """Returns the split that a run's task is scored on, or why there is none, in words."""
    if has_training_split_alone(config.task):
        return "the data are a training split alone, of which nothing was held out"
    if reads_training_split(config.task, config.eval):
        return f"eval.split={config.eval.split} is the training split, or has a part of it"
    records: list[Record] = []
    try:
        for part in config.task.parts(config.eval.split):
            records += load_examples(config.task, part, check)
    except InputError as error:
        return str(error)
    public = eval_split_is_public(config.task, config.eval)
    return Unseen(records=records, split=config.eval.split, public=public)


def _kept_and_held_out(
    run: Path, config: TrainConfig, data: TrainingData
) -> tuple[Sequence[int], Sequence[int]]:
    """Returns the places of the records that were kept, and of those held out."""
    if not (run / HELD_OUT_KEY).exists():
        raise _missing_key(
            run, HELD_OUT_KEY, "by which those held out are told from those trained on"
        )
    key, before = held_out_key(run)
    if not hmac.compare_digest(known_by(data, key), before):
        raise _other_records()
    units = data.units or [str(at) for at in range(len(data.examples))]
    return split_held_out(units, float(config.eval.held_out or 0), key)


def _trained_places(
    run: Path, config: TrainConfig, data: TrainingData, encoding: Encoding
) -> dict[int, list[int]]:
    """Map the place of each record that was trained on to the numbers of its rows.

    As in training, a record without learned tokens is skipped, a unit has at most
    ``privacy.records_per_unit`` records, and canaries come after all other records.
    """
    canaries = read_canaries(run)
    added, owners = copies_of(canaries, config.task), None
    key = b""
    if data.units is not None and config.privacy.guarantee is not None:
        key = read_secrets(run).unit_key
        owners = [*data.units, *(unit for _, unit in added)]
        if not key:
            raise _missing_key(run, UNIT_KEY, "by which the records of large units were chosen")
    records = [*data.examples, *(record for record, _ in added)]
    encoded = encode_records(config, records, owners, encoding, unit_key=key)
    if canaries or not config.audit.wanted:
        _check_fingerprint(run, encoded.rows, encoded.units)
    else:  # The fingerprint covers the canaries, too.
        logger.warning(
            "whether the training records are those of the run is not checked without %s, which is"
            " gone",
            run / CANARIES,
        )
    return {at: rows for at, rows in encoded.trained_on().items() if at < len(data.examples)}


def _check_fingerprint(run: Path, rows: EncodedRows, units: list[list[int]] | None) -> None:
    """Reject records other than the training records, if the run still has its fingerprint."""
    path = run / FINGERPRINT
    if not path.exists():
        logger.warning(
            "whether the training records are those of the run is not checked by %s, which is gone",
            path,
        )
        return
    try:
        saved_fingerprint = read_model(path, Fingerprint)
        key = bytes.fromhex(saved_fingerprint.key)
    except (OSError, ValueError, DpftError) as error:
        raise StateError(f"{path} is damaged; put it back as it was.") from error
    if not hmac.compare_digest(fingerprint(rows, units, key), saved_fingerprint.hmac):
        raise _other_records()


def _missing_key(run: Path, key: str, what: str) -> InputError:
    return InputError(
        f"run must have {key}, {what}, got {str(run)!r} without; put its {PRIVATE}/ back as it was."
        " What can be done without: audit=synthetic, of the synthetic text alone."
    )


def _other_records() -> InputError:
    return InputError(
        "run must be audited on the training records that it was given, in the same order, got"
        " others; put them back as they were."
    )


OWNERS_ALONE = "Private: for the owner of the run alone; epsilon does not cover it."
WITHHELD = "audit={name}: what it found is private, and shown on a terminal alone."


def audit(config: AuditConfig) -> Finding:
    """Looks at a run and returns what it found, once it is written down."""
    quiet_transformers()
    saved, folder = saved_run(config.run), Path(config.run)
    run = AuditedRun(
        folder=folder,
        config=saved,
        privacy=privacy_of(folder),
        device=config.train,
        synthetic=None if config.synthetic is None else Path(config.synthetic),
    )
    with crash_kept(folder):
        finding = config.audit.find(run)
    with hold_run(folder):
        if not finding.files:
            finding = replace(finding, files=[keep(finding, config.audit.name, folder)])
        if finding.released is not None:
            release(finding, config.audit.name, folder)
    return finding


def keep(finding: Finding, name: str, folder: Path) -> str:
    """Writes what was found into the run's private folder; returns a sentence that says where."""
    path = private_audit_path(folder, f"{PRIVATE_AUDIT}/{name}.json")
    write_model(path, finding.record.replace(note=OWNERS_ALONE), mode=0o600)
    page = private_audit_path(folder, f"{PRIVATE_AUDIT}/{name}.html")
    title = f"Audit: {name.replace('_', ' ')}"
    rows = "\n".join(f"| {line(quantity)} | {line(value)} |" for quantity, value in finding.rows)
    table = f"| quantity | value |\n|---|---|\n{rows}"
    text = "\n\n".join([f"**{OWNERS_ALONE}**", f"# {title}", table, *map(line, finding.notes)])
    figures = {"Figures": [Markup(figure) for figure in finding.figures.values()]}
    text = render_page(title, text, figures)
    write_text(page, text, mode=0o600)
    return f"A page with plots, for the owner of the data alone: {page}"


def release(finding: Finding, name: str, folder: Path) -> None:
    """Adds to the run's report what follows from public things alone; epsilon stays as it is."""
    privacy = privacy_of(folder)
    audited = joined(Audited, privacy.audited or Audited(), **{name: finding.released})
    for label, figure in finding.figures.items():
        write_text(audit_path(folder, f"{AUDIT}/{name}-{label}.svg"), figure)
    privacy = privacy.replace(audited=audited)
    write_model(folder / PRIVACY, privacy)
    write_report(folder, privacy)


def show(finding: Finding, config: AuditConfig) -> None:
    """Prints what was found and where it is kept; as JSON, one object on stdout.

    What may not be released is shown on a terminal alone; a pipe, or the log of a job, is told
    where it is (docs/dev/design.md, rule 8). JSON is for a program of the owner's, who asks for it.
    """
    if config.output == "json":
        for sentence in finding.files:
            logger.info("%s", sentence)
        print(json_text(finding.record))
        return
    if finding.released is None and not sys.stdout.isatty():
        terminal.show([WITHHELD.format(name=config.audit.name), *finding.files])
        return
    terminal.show([*(finding.parts or [Grid(rows=finding.rows), *finding.notes]), *finding.files])
