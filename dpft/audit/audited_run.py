"""The audited run: functions that load its models, training records, other records and canaries.

An audit compares log-likelihoods of training records and other records, so each set must be
correct. Only the run's own key determines which records were held out. Only the run's fingerprint
shows whether the training records are unchanged. Both are in private/.
"""

import hmac
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from dpft.audit.base import AuditedRun
from dpft.audit.trade_off import TradeOff, mechanism_trade_off
from dpft.commands.interrupted_run import kept_here, read_secrets
from dpft.commands.new_run import Fingerprint
from dpft.commands.splits import (
    HELD_OUT,
    TrainingData,
    held_out_key,
    known_by,
    load_training_data,
)
from dpft.commands.task_model import fitted_to, prepare_model, trained_model_of_run, training_head
from dpft.commands.training_set import encode_records
from dpft.config.schema import TrainConfig
from dpft.constants import TEXT
from dpft.data.batches import EncodedRows
from dpft.data.canaries import Canary, copies_of, make_canaries, read_canaries
from dpft.data.encoding import Encoding, fingerprint
from dpft.data.rows import Check, accept_all
from dpft.data.sources import has_training_split_alone, load_examples
from dpft.data.training_records import split_held_out
from dpft.errors import DpftError, InputError, StateError
from dpft.evaluation.eval_config import eval_split_is_public, reads_training_split
from dpft.generation.decoding import batches_by_tokens, evaluation_mode
from dpft.models.architecture import read_architecture
from dpft.models.losses import per_example_losses, token_nll
from dpft.privacy.journal import NO_STEPS, read_run_ledger
from dpft.run_folder import (
    AUDIT_KEY,
    CANARIES,
    CHECKPOINTS,
    FINGERPRINT,
    HELD_OUT_KEY,
    PRIVATE,
    UNIT_KEY,
)
from dpft.strict_model import read_model
from dpft.tasks.base import Record, TextTask
from dpft.training.checkpoint import checkpoints, find_resume_point

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A model that computes the log-likelihoods of records."""

    model: PreTrainedModel
    """The model, on its device."""
    encoding: Encoding
    batch_size: int
    """Number of records of the maximum length that are processed at once. If the records are
    shorter, a batch contains more records."""

    def log_likelihoods(self, records: Sequence[Record]) -> list[float]:
        """Return the log-likelihood of the learned part of each record, in nats, in order.

        For a text, this is the sum over the learned tokens. For a label, it is the log-likelihood
        of that label. For a score, it is the negative squared error.
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
    """Return a scorer with the model that the run released."""
    model = trained_model_of_run(run.folder, run.config)
    return Scorer(
        model=model.on_device(run.config.task, run.device.prepare()),
        encoding=model.encoding(run.config.task, max_new_tokens=None),
        batch_size=batch_size,
    )


def untrained(run: AuditedRun, batch_size: int) -> Scorer:
    """Return a scorer with the model before training, which is public if its source is public."""
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
    """Records of the task that the run was not trained on; for a text task, ``Example`` objects."""

    records: Sequence[Any]
    split: str
    """Name of the split, such as test, or held_out."""
    public: bool
    """Whether the records may be shown."""
    places: Sequence[int] | None = None
    """Positions of the records among all records of the training split; None for another split."""


@dataclass(frozen=True, kw_only=True)
class RunRecords:
    """The records of a run that an audit compares; the training records are private."""

    training: Sequence[Any]
    places: Sequence[int]
    """Positions of the training records among all records that were read from their split."""
    rows: Sequence[Sequence[int]]
    """For each training record, the numbers of its rows that were trained on. This is only row 0,
    unless the record was split into chunks."""
    unseen: Unseen | str
    """Other records, or a sentence that states why there are none."""


def read_run_records(run: Path, config: TrainConfig, encoding: Encoding) -> RunRecords:
    """Return the records that a run was trained on, and other records.

    Raises:
        InputError: The training records cannot be read or differ from the run's records, or a key
            in private/ that identifies them is missing.
        StateError: A file in private/ is damaged.
    """
    data = load_training_data(config, encoding.check)
    data = replace(data, examples=list(data.examples))
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
    """Return the training records and other records, or the reason why either is not available."""
    try:
        records = read_run_records(run, config, encoding)
    except InputError as error:
        why = str(error)
        is_split = config.eval.held_out is None
        return why, unseen_records(config, encoding.check) if is_split else why
    return records, records.unseen


def check_writes_texts(config: TrainConfig) -> TextTask:
    """Return the task of a run; reject a task with answers that are not texts."""
    if not isinstance(config.task, TextTask):
        raise InputError(
            f"This audit needs a generative model, but run trained task={config.task.name}, which"
            " predicts labels.",
            key="run",
        )
    return config.task


def unseen_records(config: TrainConfig, check: Check = accept_all) -> Unseen | str:
    """Return the evaluation split of a run's task, or the reason why there is none."""
    if has_training_split_alone(config.task):
        return "the data have only a training split, and no records of it were held out"
    if reads_training_split(config.task, config.eval):
        return f"eval.split={config.eval.split} is the training split, or contains a part of it"
    records: list[Record] = []
    try:
        for part in config.task.parts(config.eval.split):
            records += load_examples(config.task, part, check)
    except InputError as error:
        return str(error)
    public = eval_split_is_public(config.task, config.eval)
    return Unseen(records=records, split=config.eval.split, public=public)


def kept_canaries(run: AuditedRun, kind: str, wanted: int, *, noun: str) -> list[Canary]:
    """Return a run's canaries of one kind, including the canaries that were not trained on.

    Their texts and coins are generated again from the run's key. An edited file therefore cannot
    make an audit find canaries that did not exist.

    Raises:
        InputError: The file of canaries is missing, or contains a different number of them.
        StateError: The canaries do not match the run's key.
    """
    all_canaries = read_canaries(run.folder)
    canaries = [canary for canary in all_canaries if canary.kind == kind]
    if len(canaries) != wanted:
        raise InputError(
            f"{run.folder / CANARIES} must contain the run's {wanted} {noun}, got {len(canaries)}."
            " Only audit=membership and audit=memorization work without them.",
            key=str(run.folder / CANARIES),
        )
    key = read_secrets(run.folder).audit_key
    if not key:
        logger.warning(
            "canaries of %s not checked: %s does not exist",
            run.folder / CANARIES,
            run.folder / AUDIT_KEY,
        )
        return canaries
    model = trained_model_of_run(run.folder, run.config)
    task = model.fitted(run.config.task)
    tokenizer = model.processor(task, model.head(task))
    if make_canaries(run.config.audit, tokenizer, key) != all_canaries:
        raise StateError(
            f"{run.folder / CANARIES} does not contain the canaries and coins that"
            f" {run.folder / AUDIT_KEY} generates. Restore both files.",
        )
    return canaries


def planned_trade_off(folder: Path) -> TradeOff | None:
    """Return the trade-off curve of a run's noisy steps, computed from the run's plan.

    If the plan was deleted with the run's checkpoints, log a warning and return None.
    """
    if not checkpoints(folder / CHECKPOINTS):
        logger.warning(
            "audit not compared with the planned mechanism: %s has no checkpoint with the plan",
            folder / CHECKPOINTS,
        )
        return None
    plan = find_resume_point(folder).plan()
    streams = (read_run_ledger(folder) or NO_STEPS).streams
    return mechanism_trade_off(plan.event(streams))


def _kept_and_held_out(
    run: Path, config: TrainConfig, data: TrainingData
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the positions of the training records and of the held-out records."""
    if not (run / HELD_OUT_KEY).exists():
        raise _missing_key(run, HELD_OUT_KEY, "which determines which records were held out")
    key, before = held_out_key(run)
    if not hmac.compare_digest(known_by(data, key), before):
        raise _other_records()
    units = data.units or [str(at) for at in range(len(data.examples))]
    return split_held_out(units, float(config.eval.held_out or 0), key)


def _trained_places(
    run: Path, config: TrainConfig, data: TrainingData, encoding: Encoding
) -> dict[int, list[int]]:
    """Map the position of each record that was trained on to the numbers of its rows.

    As in training, a record without learned tokens is skipped, and a unit has at most
    ``privacy.records_per_unit`` records. Canaries come after all other records.
    """
    canaries = read_canaries(run)
    added, owners = copies_of(canaries, config.task), None
    key = b""
    if data.units is not None and config.privacy.guarantee is not None:
        key = read_secrets(run).unit_key
        owners = [*data.units, *(unit for _, unit in added)]
        if not key:
            raise _missing_key(
                run, UNIT_KEY, "which determines which records of large units were chosen"
            )
    records = [*data.examples, *(record for record, _ in added)]
    encoded = encode_records(config, records, owners, encoding, unit_key=key)
    if canaries or not config.audit.wanted:
        _check_fingerprint(run, encoded.rows, encoded.units)
    else:  # The fingerprint also covers the canaries, which are missing.
        logger.warning(
            "training records not compared with those of the run: %s does not exist",
            run / CANARIES,
        )
    return {at: rows for at, rows in encoded.trained_on().items() if at < len(data.examples)}


def _check_fingerprint(run: Path, rows: EncodedRows, units: list[list[int]] | None) -> None:
    """Reject records if their fingerprint differs from the fingerprint of the run's records.

    Without the fingerprint, accept any records.
    """
    path = run / FINGERPRINT
    if not path.exists():
        logger.warning(
            "training records not compared with those of the run: %s does not exist", path
        )
        return
    try:
        saved_fingerprint = read_model(path, Fingerprint)
        key = bytes.fromhex(saved_fingerprint.key)
    except (OSError, ValueError, DpftError) as error:
        raise StateError(f"{path} is damaged. Restore the file.") from error
    if not hmac.compare_digest(fingerprint(rows, units, key), saved_fingerprint.hmac):
        raise _other_records()


def _missing_key(run: Path, key: str, what: str) -> InputError:
    return InputError(
        f"run must contain {key}, {what}, but {str(run)!r} does not. Restore its {PRIVATE}/, or"
        " audit only the synthetic text.",
        key="run",
        value=str(run),
        hint="audit=synthetic",
    )


def _other_records() -> InputError:
    return InputError(
        "run must be audited on its original training records in their original order, but these"
        " records differ. Restore the original data.",
        key="run",
    )
