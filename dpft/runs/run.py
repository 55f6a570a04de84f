"""A run, hand-over by hand-over: prepared, begun or gone on with, and finished.

Everything that can be refused is refused before the run's folder is opened; no private record is
used before the plan stands and the clipper has been proved on synthetic data. A run that broke off
goes on through the same hand-overs.
"""

import logging
from pathlib import Path

from dpft.config.load import dump
from dpft.config.schema import TrainCommand, TrainConfig
from dpft.evaluation.evaluate import Evaluation
from dpft.files import check_writable
from dpft.links import refuse_links
from dpft.models.loading import quiet_transformers
from dpft.privacy.witness import Handover, Witness
from dpft.reports.run.run_record import read_evaluations
from dpft.run_folder import CHECKPOINTS, CONFIGURATION, METRICS, PRIVACY, REPORT, hold_run
from dpft.runs.begun import write_begun
from dpft.runs.crashes import crash_kept
from dpft.runs.data_summary import write_summary
from dpft.runs.ending import say_ending
from dpft.runs.evaluation import evaluate, write_scores
from dpft.runs.folder import WriteRequest, refuse_used_folder, start_anew
from dpft.runs.held_out import keep_key, not_evaluated
from dpft.runs.outcome import report
from dpft.runs.prepared_run import Planner, Prepared, prepare
from dpft.runs.records import save_unit_key
from dpft.runs.resuming import (
    has_scores,
    hint_of_resume,
    read_secrets,
    same_records,
    save_fingerprint,
)
from dpft.runs.run_plan import plan_run
from dpft.runs.spent_epsilon import curve_beside, finished_curve
from dpft.runs.tracking import conclude, tracked
from dpft.runs.training import train
from dpft.runs.witnessing import begin_handover, check_witness, hand_over_end, witness_of
from dpft.training.checkpoint import delete_generator_states
from dpft.training.resume import ResumePoint, find_resume_point

logger = logging.getLogger(__name__)


def run(
    command: TrainCommand,
    folder: Path,
    *,
    write_request: WriteRequest | None = None,
    planner: Planner = plan_run,
) -> None:
    """Trains, evaluates and reports; a crash's text is kept in the folder's private/.

    Args:
        command: The run's configuration, and whether it goes on.
        folder: Of the run: a new one, or with ``command.resume`` the one to go on in.
        write_request: Writes how a new run was asked for.
        planner: Makes the plan of a new run, of which nothing is left to choose afterwards.

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
            begin(command.settings(), folder, planner, witness=witness, write_request=write_request)
        else:
            go_on(command.settings(), folder, witness=witness)


def begin(
    config: TrainConfig,
    folder: Path,
    planner: Planner = plan_run,
    *,
    witness: Witness | None = None,
    write_request: WriteRequest | None = None,
    with_curve: bool = True,
) -> None:
    """Runs from the first step to the report.

    Args:
        config: Of the run.
        folder: Of the run; made if need be.
        planner: Makes its plan, of which nothing is left to choose afterwards.
        witness: Of its ledger.
        write_request: Writes how it was asked for.
        with_curve: Whether to compute its epsilon over the steps.
    """
    refuse_used_folder(folder)
    check_writable(folder)
    prepared = prepare(config, None, None, planner)
    folder.mkdir(parents=True, exist_ok=True)
    with hold_run(folder):
        refuse_used_folder(folder)
        start_anew(folder)
        write_begun(folder)
        if write_request is not None:
            write_request(folder)
        dump(prepared.config, folder / CONFIGURATION)
        logger.info("run: %s", folder)
        if prepared.unit_key is not None:
            save_unit_key(folder, prepared.unit_key)
        keep_key(folder, prepared.division)
        save_fingerprint(folder, prepared.training_set)
        finish(prepared, folder, None, begin_handover(witness, folder), with_curve=with_curve)


def go_on(
    config: TrainConfig, folder: Path, *, witness: Witness | None = None, with_curve: bool = True
) -> None:
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
            say_ending(folder, config.task)
            return
        read_evaluations(folder / METRICS)
        check_witness(witness, folder)
        prepared = prepare(config, read_secrets(folder), resume_point)
        same_records(folder, prepared.training_set)
        handover = begin_handover(witness, folder)
        finish(prepared, folder, resume_point, handover, with_curve=with_curve)


def finish(
    prepared: Prepared,
    folder: Path,
    resume_point: ResumePoint | None,
    handover: Handover | None = None,
    *,
    with_curve: bool = True,
) -> None:
    """Scores, trains, scores again and reports; a run that goes on keeps the scores it has."""
    config = prepared.config
    with (
        hint_of_resume(folder),
        tracked(config, prepared.plan, folder) as trackings,
        curve_beside(config, prepared.plan, wanted=with_curve) as curve,
    ):
        write_summary(folder, prepared.summary)
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
            curve=curve,
        )
        evaluations = score(prepared, "after")
        evaluations += not_evaluated(config)
        hand_over_end(handover, folder)
        spent = finished_curve(curve)
        report(config, prepared.plan, folder, prepared.counts, evaluations, spent)
        conclude(trackings, folder)
    say_ending(folder, config.task)


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
