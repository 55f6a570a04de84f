"""A run, hand-over by hand-over: prepared, begun or gone on with, and finished.

Everything that can be refused is refused before the run's folder is opened; no private record is
used before the plan stands and the clipper has been proved on synthetic data. A run that broke off
goes on through the same hand-overs.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dpft.config.load import dump
from dpft.config.schema import TrainCommand, TrainConfig
from dpft.data.encoding import Encoding
from dpft.evaluation.evaluate import Evaluation
from dpft.evaluation.metrics.base import metric_specs
from dpft.files import check_writable
from dpft.links import refuse_links
from dpft.methods.base import ParameterCounts, count_parameters
from dpft.models.architecture import read_architecture
from dpft.models.loading import load_tokenizer, quiet_transformers
from dpft.models.vocabulary import add_tokens
from dpft.privacy.witness import Handover, Witness
from dpft.reports.run.run_record import read_evaluations
from dpft.run_folder import (
    CHECKPOINTS,
    CONFIGURATION,
    METRICS,
    PRIVACY,
    REPORT,
    hold_run,
)
from dpft.runs.crashes import crash_kept
from dpft.runs.evaluation import evaluate, write_scores
from dpft.runs.folder import WriteOrigin, refuse_used_folder, start_anew
from dpft.runs.held_out import Division, divide, keep_key, not_evaluated
from dpft.runs.outcome import report
from dpft.runs.records import (
    load_training_data,
    make_training_set,
    save_unit_key,
    unit_key,
)
from dpft.runs.resuming import (
    Secrets,
    has_scores,
    hint_of_resume,
    read_secrets,
    restored_plan,
    same_records,
    save_fingerprint,
)
from dpft.runs.run_plan import (
    RunPlan,
    plan_run,
    warn_of_noise,
    with_transferred_batch_size,
)
from dpft.runs.task_model import encoding_of, prepare_model, training_head
from dpft.runs.tracking import check_tracking, conclude, tracked
from dpft.runs.training import prove_clipper, train, warn
from dpft.runs.witnessing import (
    begin_handover,
    check_witness,
    hand_over_end,
    witness_of,
)
from dpft.training.checkpoint import delete_generator_states
from dpft.training.loop import TrainingSet
from dpft.training.precision import warn_if_slow
from dpft.training.resume import ResumePoint, find_resume_point

logger = logging.getLogger(__name__)

Planner = Callable[[TrainConfig, Callable[[], int]], RunPlan]
"""From a run's configuration, and a count of its units, to its plan."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Everything a run needs before its folder is written to."""

    config: TrainConfig
    plan: RunPlan
    encoding: Encoding
    tokenizer: PreTrainedTokenizerBase
    division: Division
    model: PreTrainedModel
    """On its device, its clipper proved."""
    counts: ParameterCounts
    training_set: TrainingSet
    unit_key: bytes | None
    """Secret, where units have several records."""


def run(command: TrainCommand, folder: Path, *, write_origin: WriteOrigin | None = None) -> None:
    """Trains, evaluates and reports; a crash's text is kept in the folder's private/.

    Args:
        command: The run's configuration, and whether it goes on.
        folder: Of the run: a new one, or with ``command.resume`` the one to go on in.
        write_origin: Writes how a new run was asked for.

    Raises:
        InputError: Anything does not fit.
        RunError: Training failed, or the clipper is not exact on this model.
        StateError: What a run that goes on left is damaged.
    """
    quiet_transformers()
    refuse_links(folder)
    witness = witness_of(command, folder)
    with crash_kept(folder):
        if command.resume is None:
            begin(command.settings(), folder, witness=witness, write_origin=write_origin)
        else:
            go_on(command.settings(), folder, witness=witness)


def begin(
    config: TrainConfig,
    folder: Path,
    planner: Planner = plan_run,
    *,
    witness: Witness | None = None,
    write_origin: WriteOrigin | None = None,
) -> None:
    """Runs from the first step to the report.

    Args:
        config: Of the run.
        folder: Of the run; made if need be.
        planner: Makes its plan, of which nothing is left to choose afterwards.
        witness: Of its ledger.
        write_origin: Writes how it was asked for.
    """
    refuse_used_folder(folder)
    check_writable(folder)
    prepared = prepare(config, None, None, planner)
    folder.mkdir(parents=True, exist_ok=True)
    with hold_run(folder):
        refuse_used_folder(folder)
        start_anew(folder)
        if write_origin is not None:
            write_origin(folder)
        dump(prepared.config, folder / CONFIGURATION)
        logger.info("run: %s", folder)
        if prepared.unit_key is not None:
            save_unit_key(folder, prepared.unit_key)
        keep_key(folder, prepared.division)
        save_fingerprint(folder, prepared.training_set)
        finish(prepared, folder, None, begin_handover(witness, folder))


def go_on(config: TrainConfig, folder: Path, *, witness: Witness | None = None) -> None:
    """Takes the steps that are left of a run that broke off, and does what else is left.

    Raises:
        InputError: It is none, or it would not go on as it was bound to.
        StateError: Its checkpoint, its ledger or its scores are damaged, or the witness has a head
            that the ledger lacks.
    """
    with hold_run(folder):
        resume_point = find_resume_point(folder)
        if resume_point.has_ended and (folder / REPORT).exists() and (folder / PRIVACY).exists():
            delete_generator_states(folder / CHECKPOINTS)
            logger.info("the run in %s has ended; nothing is left to do", folder)
            return
        read_evaluations(folder / METRICS)
        check_witness(witness, folder)
        prepared = prepare(config, read_secrets(folder), resume_point)
        same_records(folder, prepared.training_set)
        finish(prepared, folder, resume_point, begin_handover(witness, folder))


def prepare(
    config: TrainConfig,
    secrets: Secrets | None,
    resume_point: ResumePoint | None,
    planner: Planner = plan_run,
) -> Prepared:
    """Returns the parts of a run, nothing of it written yet.

    Args:
        config: Of the run.
        secrets: Of the run that goes on; None: fresh ones are drawn.
        resume_point: Where that run broke off.
        planner: Makes the plan of a run that begins.

    Raises:
        InputError: Anything does not fit.
        RunError: The clipper is not exact on this model.
    """
    if config.eval.enabled:
        metric_specs(config.task.metrics)
    check_tracking(config)
    device = config.train.prepare()
    warn_if_slow(config.train.precision, device)
    architecture = read_architecture(config.model)
    head = training_head(config, architecture)
    tokenizer = load_tokenizer(architecture, kind=head.kind)
    add_tokens(tokenizer, config.task.special_tokens)
    encoding = encoding_of(config.task, architecture, head, tokenizer)
    data = load_training_data(config)
    division = divide(config, data, None if secrets is None else secrets.held_out_key)
    config = with_transferred_batch_size(config, lambda: data.num_units)
    if resume_point is None:
        plan = planner(config, lambda: data.num_units)
    else:
        plan = restored_plan(config, resume_point, lambda: data.num_units)
    warn(config, plan)
    model, new = prepare_model(config, architecture, head)
    counts = count_parameters(model, new)
    if plan.privacy is not None:
        warn_of_noise(plan.privacy, counts.trainable)
    model.to(device)  # type: ignore[arg-type]
    prove_clipper(config, plan, model, encoding.layout)
    key = unit_key(config) if secrets is None else secrets.unit_key
    training_set = make_training_set(
        config, data.only(division.kept), encoding, device, unit_key=key
    )
    return Prepared(
        config=config,
        plan=plan,
        encoding=encoding,
        tokenizer=tokenizer,
        division=division,
        model=model,
        counts=counts,
        training_set=training_set,
        unit_key=None if data.units is None else key,
    )


def finish(
    prepared: Prepared,
    folder: Path,
    resume_point: ResumePoint | None,
    handover: Handover | None = None,
) -> None:
    """Scores, trains, scores again and reports; a run that goes on keeps the scores it has."""
    config = prepared.config
    with hint_of_resume(folder), tracked(config, prepared.plan, folder) as trackings:
        if not has_scores(folder, "before"):
            write_scores(config, folder, score(prepared, "before"))
        train(
            config,
            prepared.plan,
            folder,
            prepared.model,
            prepared.tokenizer,
            prepared.training_set,
            resume_point,
            listeners=trackings,
            handover=handover,
        )
        evaluations = score(prepared, "after")
        evaluations += not_evaluated(config)
        hand_over_end(handover, folder)
        report(config, prepared.plan, folder, prepared.counts, evaluations)
        conclude(trackings, folder)
    logger.info("report: %s", folder / REPORT)


def score(prepared: Prepared, stage: str) -> list[Evaluation]:
    """Returns the scores of a run's model before or after training; none where nothing is scored.

    Args:
        prepared: The run.
        stage: "before" or "after" training.
    """
    scored = prepared.division.scored
    if scored:
        logger.info("evaluating %s fine-tuning", stage)
    return evaluate(
        prepared.config,
        prepared.model,
        prepared.encoding,
        scored,
        stage=stage,
        extra_positions=prepared.config.method.extra_positions,
    )
