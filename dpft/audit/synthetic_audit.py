"""``audit=synthetic``: what synthetic records are worth, and what they hold of single records.

Quality is measured on what a model wrote, against records that it was not trained on; leakage on
training records, with the others as the control. What is told of the synthetic text alone, and
against a published split, may be released with it: it is a function of what is public anyway. All
else is private, and so is a choice made by it: to leave out a synthetic record because it is like a
training record is no post-processing.
"""

from collections.abc import Sequence
from pathlib import Path

from dpft.audit.base import needed
from dpft.audit.leakage import canaries_found, leakage_of, most_found
from dpft.audit.run_records import RunRecords, Unseen, check_writes_texts, records_and_unseen
from dpft.audit.synthetic_file import SyntheticFile, read_synthetic
from dpft.audit.synthetic_page import private_page, released_page
from dpft.audit.synthetic_result import Quality, SyntheticResult
from dpft.audit.text_quality import likeness, shape_of
from dpft.audit.utility import label_task, utility_of
from dpft.audit.words import written_text
from dpft.config.schema import TrainConfig
from dpft.evaluation.samples import spread
from dpft.files import write_text
from dpft.models.loading import quiet_transformers
from dpft.records.privacy_file import RunPrivacy, guarantee, is_promised, run_privacy
from dpft.run_folder import (
    PRIVACY,
    PRIVATE_SYNTHETIC_AUDIT,
    SYNTHETIC_AUDIT,
    audit_path,
    hold_run,
    private_audit_path,
)
from dpft.runs.saved_run import saved_run
from dpft.runs.task_model import trained_model_of_run
from dpft.tasks.base import TextTask
from dpft.tasks.records import Example
from dpft.training.training_config import DeviceConfig

TRAINING = "training records"
"""What real texts are called where there are no others."""


def audit_synthetic(
    run: Path, synthetic: Path, *, limit: int, label: str | None = None, device: DeviceConfig
) -> SyntheticResult:
    """Compares synthetic records with a run's, and writes a private page and one to release.

    Args:
        run: The folder of a run whose training has ended.
        synthetic: What ``dpft generate`` wrote with its model.
        limit: Most records of each kind that are compared.
        label: Column of a class, by which a classifier is taught; None: none is.
        device: How many threads; no model is run.

    Raises:
        InputError: The run cannot be read, or its model writes no texts; or the synthetic records
            cannot be read, or are another run's; or a library is missing.
        StateError: A file of the run is damaged.
    """
    quiet_transformers()
    device.prepare()
    config = saved_run(str(run))
    task = check_writes_texts(config)
    needed("datasketch")
    if label is not None:
        label_task(task, label)
    privacy = run_privacy(run / PRIVACY) if (run / PRIVACY).exists() else None
    file = read_synthetic(run, task, synthetic.expanduser(), privacy)
    with hold_run(run):
        result = _compared(run, config, task, file, limit, label, privacy)
        _write_pages(run, result)
    return result


def _compared(
    run: Path,
    config: TrainConfig,
    task: TextTask,
    file: SyntheticFile,
    limit: int,
    label: str | None,
    privacy: RunPrivacy | None,
) -> SyntheticResult:
    encoding = trained_model_of_run(run, config).encoding(task, max_new_tokens=None)
    records, unseen = records_and_unseen(run, config, encoding)
    not_there = {}
    if not isinstance(records, RunRecords):
        not_there[TRAINING] = records
    if not isinstance(unseen, Unseen):
        not_there["other records"] = unseen
    texts = file.texts(limit)
    training = _texts(records.training, file, limit) if isinstance(records, RunRecords) else None
    others = _texts(unseen.records, file, limit) if isinstance(unseen, Unseen) else None
    leakage = None if training is None else leakage_of(texts, training, others)
    return SyntheticResult(
        file=file,
        limit=limit,
        shape=shape_of(texts),
        quality=_quality(texts, training, others, unseen),
        utility=utility_of(config, file.path, label, records, unseen, limit),
        leakage=leakage,
        most_found=[] if leakage is None else most_found(leakage.training, training or []),
        canaries=canaries_found(run, texts),
        not_there=not_there,
        promise=guarantee(privacy) if privacy and is_promised(privacy) else None,
    )


def _texts(records: Sequence[Example], file: SyntheticFile, limit: int) -> list[str] | None:
    """Returns what a model would have written of records; None where there are none."""
    chosen = [records[at] for at in spread(len(records), limit)] if records else []
    return [written_text(each, prompted=file.prompted) for each in chosen] or None


def _quality(
    texts: Sequence[str],
    training: Sequence[str] | None,
    others: Sequence[str] | None,
    unseen: Unseen | str,
) -> Quality | None:
    """Returns texts against real ones, which were not trained on where there are such."""
    reference, public, real = TRAINING, False, training
    if others is not None and isinstance(unseen, Unseen):
        reference, public, real = f"{unseen.split} records".replace("_", "-"), unseen.public, others
    if real is None:
        return None
    return Quality(
        reference=reference, public=public, shape=shape_of(real), likeness=likeness(texts, real)
    )


def _write_pages(run: Path, result: SyntheticResult) -> None:
    """Writes the private page, and the other one where it may be released; an old one goes."""
    path = private_audit_path(run, PRIVATE_SYNTHETIC_AUDIT)
    write_text(path, private_page(result), mode=0o600)
    released = run / SYNTHETIC_AUDIT
    released.unlink(missing_ok=True)
    if result.file.why_private is not None:
        return
    write_text(audit_path(run, SYNTHETIC_AUDIT), released_page(result))


def written_pages(run: Path, result: SyntheticResult) -> list[str]:
    """Returns sentences that say where the pages of an audit are."""
    private = f"A page with plots, for the owner of the data alone: {run / PRIVATE_SYNTHETIC_AUDIT}"
    if result.file.why_private is not None:
        return [private]
    return [private, f"A page that may be released: {run / SYNTHETIC_AUDIT}"]
