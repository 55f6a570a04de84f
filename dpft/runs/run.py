"""``dpft train``: a run prepared, begun or gone on with, and finished.

Everything that can be refused is refused before the run's folder is opened; no private record is
used before the plan stands and the clipper has been proved on synthetic data. A run that broke off
goes on through the same functions.

Every process of a run goes through all of them. The first one alone writes, logs, and has the
run's private state; ``Ranks.first`` says where.

Written down with a run is what the model that it starts from has promised already, as the ledger
beside that model shows. Training a private model without the records that made it is
post-processing: its epsilon for them stays, whatever it is trained on next. Where the same people
are in both data sets, the costs add up (simple composition; Dwork and Roth 2014, theorem 3.16),
which a report can only say: nobody tells dpft who they are.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from dpft.config.load import dump
from dpft.config.schema import TrainCommand, TrainConfig
from dpft.errors import InputError, StateError, note_records_read
from dpft.files import (
    AUDIT_KEY,
    CANARIES,
    CHECKPOINTS,
    CONFIGURATION,
    DATA_SUMMARY,
    FINGERPRINT,
    HELD_OUT_KEY,
    LEDGER,
    MODEL,
    PRIVACY,
    REPORT,
    UNIT_KEY,
    WHITE_BOX,
    check_writable,
    hold_run,
    private_path,
    refuse_links,
    write_private,
)
from dpft.models.loading import quiet_transformers
from dpft.models.source import ModelConfig
from dpft.parallel.processes import started
from dpft.parallel.rank_environment import without_logging
from dpft.parallel.ranks import ALONE, Ranks
from dpft.parallel.shards import WholeSums
from dpft.privacy.accounting.curve import EpsilonCurve
from dpft.privacy.replay_log import read_run_ledger
from dpft.reports.promises import PrivateRun, StartingModel, read_privacy
from dpft.reports.run_record import read_own_evaluations
from dpft.runs.ending import report
from dpft.runs.evaluation import not_evaluated, scheduled_scores, score, write_scores
from dpft.runs.exit_codes import crash_kept
from dpft.runs.folder import (
    Secrets,
    WriteRequest,
    automatically_resumed,
    digest_of,
    fingerprint_text,
    fresh_secrets,
    has_scores,
    hint_of_resume,
    read_secrets,
    refuse_used_folder,
    same_records,
    start_anew,
    write_begun,
)
from dpft.runs.guarantee import privacy_of
from dpft.runs.held_out import canaries_text
from dpft.runs.prepared_run import (
    Planner,
    Prepared,
    check_clipper,
    digests_at_start,
    prepare,
    train,
)
from dpft.runs.run_cost import check_sharding, cut
from dpft.runs.run_plan import RunPlan, announce_steps, curve_of_run, plan_run, with_noise
from dpft.runs.saved_run import check_model
from dpft.runs.together import (
    agreed,
    check_alike,
    check_arithmetic,
    share_secrets,
    share_settings,
)
from dpft.runs.tracking import Tracking, results, tracked
from dpft.runs.training_records import render
from dpft.runs.white_box import WhiteBoxListener, white_box
from dpft.training.checkpoint import ResumePoint, delete_generator_states, find_resume_point
from dpft.training.listeners import StepProgress
from dpft.training.progress import ProgressRecord

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
    """
    if command.launch.name != "none":
        raise InputError(
            f"launch={command.launch.name} is for the command line, got it from Python; start the"
            " program's processes by torchrun, and have each call dpft.train with parallel=ddp."
        )
    check_sharding(command.settings())
    quiet_transformers()
    with ExitStack() as held:
        ranks = held.enter_context(started(command.parallel))
        if not ranks.is_first:
            held.enter_context(without_logging())
        check_alike(command.settings(), ranks)
        found = ranks.first(_look, command, folder)
        config, folder, goes_on = share_settings(found, ranks)
        if ranks.is_first:
            held.enter_context(crash_kept(folder))
        if goes_on:
            note_records_read()  # Its private state is read before its rows.
            go_on(config, folder, ranks=ranks)
        else:
            begin(config, folder, planner, write_request=write_request, ranks=ranks)


def _look(command: TrainCommand, folder: Path) -> tuple[TrainConfig, Path, bool]:
    """Return the configuration and folder of a run, and whether it is resumed; on rank 0 only."""
    refuse_links(folder)
    command = automatically_resumed(command, folder)
    return command.settings(), folder, command.resume is not None


def begin(
    config: TrainConfig,
    folder: Path,
    planner: Planner = plan_run,
    *,
    write_request: WriteRequest | None = None,
    with_curve: bool = True,
    ranks: Ranks = ALONE,
) -> None:
    """Runs from the first step to the report, in a folder that is made if need be.

    ``planner`` makes the plan, of which nothing is left to choose afterwards.
    """

    def refuse_folder() -> None:
        refuse_used_folder(folder)
        check_writable(folder)

    ranks.first(refuse_folder)
    secrets = share_secrets(fresh_secrets(config), ranks)
    today = ranks.first_to_all(lambda: datetime.now(UTC).date().isoformat())
    with ranks.settled():
        begun = config.replace(task=config.task.begun(today))
        prepared = prepare(begun, secrets, None, planner, ranks)
    prepared = sharded(agreed(prepared, ranks), ranks)
    with ExitStack() as held:

        def open_folder() -> Mapping[str, str] | None:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(hold_run(folder))
            refuse_used_folder(folder)
            write_beginning(prepared, folder, write_request, asked=digest_of(config))
            return digests_at_start(prepared)

        state = ranks.first(open_folder)
        finish(prepared, folder, None, state=state, with_curve=with_curve, ranks=ranks)


def go_on(
    config: TrainConfig,
    folder: Path,
    *,
    with_curve: bool = True,
    ranks: Ranks = ALONE,
) -> None:
    """Takes the steps that are left of a run that broke off, and does what else is left.

    Raises:
        InputError: It is none, or it would not go on as it was bound to.
        StateError: Its checkpoint, its ledger or its scores are damaged.
    """
    with ExitStack() as held:

        def look() -> tuple[ResumePoint, Secrets | None]:
            held.enter_context(hold_run(folder))
            resume_point = find_resume_point(folder)
            if resume_point.has_ended:
                check_model(folder, resume_point.ledger)  # It is scored, or stands as it is.
                if (folder / REPORT).exists() and (folder / PRIVACY).exists():
                    return resume_point, None
            read_own_evaluations(folder)
            return resume_point, read_secrets(folder)

        def bound_noise() -> float | None:
            assert resume_point is not None
            is_private = resume_point.checkpoint.run.plan is not None
            return resume_point.plan().noise_multiplier if is_private else None

        resume_point, secrets = ranks.first(look) or (None, None)
        (is_done,) = ranks.any(ranks.is_first and secrets is None)
        if is_done:
            ranks.first(delete_generator_states, folder / CHECKPOINTS)
            logger.info("the run in %s has ended; nothing is left to do", folder)
            return
        secrets = share_secrets(secrets, ranks)
        noise = ranks.first_to_all(bound_noise)

        def planner(config: TrainConfig, count: Callable[[], int]) -> RunPlan:
            return plan_run(with_noise(config, noise), count)  # the first process's plan leads

        with ranks.settled():
            prepared = prepare(config, secrets, resume_point, planner, ranks)
            if ranks.is_first:
                same_records(folder, prepared.training_set)
        prepared = sharded(agreed(prepared, ranks), ranks)
        ranks.first(same_base, prepared, resume_point)

        finish(prepared, folder, resume_point, with_curve=with_curve, ranks=ranks)


def same_base(prepared: Prepared, resume_point: ResumePoint | None) -> None:
    """Refuses to go on over other frozen weights than the run began with.

    The checkpoint has them too, and takes their place; what is released stands on those that the
    configuration names.

    Raises:
        StateError: A tensor of the model that nothing moves is another one.
    """
    before = {} if resume_point is None else resume_point.checkpoint.run.frozen or {}
    found = digests_at_start(prepared) if before else None
    others = [name for name in before if found is not None and found.get(name) != before[name]]
    if resume_point is not None and others:
        raise StateError(
            f"{resume_point.checkpoint.path} is a checkpoint of another model: {others[0]} differs"
            " from the one that model.path or model now gives; put the model that the run began"
            " with back."
        )


def finish(
    prepared: Prepared,
    folder: Path,
    resume_point: ResumePoint | None,
    *,
    state: Mapping[str, str] | None = None,
    with_curve: bool = True,
    ranks: Ranks = ALONE,
) -> None:
    """Scores, trains, scores again and reports; a run that goes on keeps the scores it has."""
    config, plan = prepared.config, prepared.plan
    with ExitStack() as held:
        if ranks.is_first:
            held.enter_context(hint_of_resume(folder))
        bar = None
        if ranks.is_first:
            bar = StepProgress(
                steps=plan.steps,
                expected_batch_size=config.train.batch_size(plan.size.num_examples),
                counted="examples" if prepared.training_set.units is None else "units",
            )

        def opened() -> tuple[Tracking | None, ProgressRecord, EpsilonCurve | None, bool]:
            tracking = held.enter_context(tracked(config, plan, folder))
            readers = [reader for reader in (bar, tracking) if reader is not None]
            progress = ProgressRecord(folder, readers)
            curve = curve_of_run(config, plan) if with_curve else None
            write_private(folder, {DATA_SUMMARY: render(prepared.summary)})
            taken = 0 if resume_point is None else resume_point.checkpoint.step
            if with_curve and taken < plan.steps:
                # A trial's steps are not those that the search takes in all.
                announce_steps(config, plan, taken=taken)
            return tracking, progress, curve, has_scores(folder, "before")

        def listening() -> tuple[WhiteBoxListener, ...]:
            if not config.audit.white_box:
                return ()
            known, device = prepared.canaries, prepared.training_set.device
            path = private_path(folder, WHITE_BOX)
            model, encoding = prepared.model, prepared.encoding
            return (white_box(model, encoding, config.task, known, device, path),)

        nothing = (None, None, None, False)
        tracking, progress, curve, is_scored = ranks.first(opened) or nothing
        (is_scored,) = ranks.any(is_scored)
        if not is_scored:
            evaluations = score(prepared, "before", ranks)
            ranks.first(write_scores, config, folder, evaluations)
        scheduled = scheduled_scores(prepared, progress, ranks)
        canaries = ranks.first(listening) or ()
        with nullcontext() if bar is None else bar:
            train(
                prepared,
                folder,
                resume_point,
                listeners=(*canaries, *([] if progress is None else [progress])),
                state_at_start=state,
                curve=curve,
                evaluation=scheduled,
                ranks=ranks,
            )
            if progress is not None:
                progress.publish(plan.steps)
        evaluations = score(prepared, "after", ranks)
        if ranks.is_first:  # The others have ended: nothing here waits for them.
            evaluations += not_evaluated(config)
            ledger = None if plan.privacy is None else read_run_ledger(folder)
            record = report(config, plan, folder, prepared.counts, evaluations, ledger, curve)
            if tracking is not None:
                tracking.conclude(plan.steps, results(record.privacy, record.evaluations))


def sharded(prepared: Prepared, ranks: Ranks) -> Prepared:
    """Returns a run whose model is sharded if this was requested, after the clipper's self-check.

    Raises:
        InputError: A parameter cannot be sharded, the processes round otherwise, or the model
            combines examples.
    """
    config, training_set = prepared.config, prepared.training_set
    read = None if prepared.rows is None else prepared.rows.read
    shards = cut(prepared.model, config.parallel, training_set.device, ranks, read)
    if shards is None:
        return prepared
    prepared = replace(prepared, shards=shards)
    check_arithmetic(prepared, ranks)
    whole = WholeSums(shards.unsharded)
    with ranks.settled():
        choices = check_clipper(config, prepared.plan, prepared.model, training_set.layout, whole)
    return replace(prepared, choices=choices)


def write_beginning(
    prepared: Prepared, folder: Path, write_request: WriteRequest | None, *, asked: str
) -> None:
    """Writes into a run's folder, which this process holds, what it begins with."""
    start_anew(folder)
    starting = starting_models(prepared.config.model)
    write_begun(folder, asked=asked, starting_models=starting)
    if write_request is not None:
        write_request(folder)
    dump(prepared.config, folder / CONFIGURATION)
    logger.info("run: %s", folder)
    secrets = {HELD_OUT_KEY: prepared.division.key_text}
    if prepared.unit_key is not None:
        secrets[UNIT_KEY] = prepared.unit_key.hex() + "\n"
    if prepared.canaries:
        secrets[AUDIT_KEY] = prepared.audit_key.hex() + "\n"
        secrets[CANARIES] = canaries_text(prepared.canaries, prepared.config.task)
    write_private(folder, {**secrets, FINGERPRINT: fingerprint_text(prepared.training_set)})


def starting_models(model: ModelConfig) -> list[StartingModel]:
    """Returns what each private training of a model guarantees its records, the last one first.

    The guarantee of a run's model (``model.path``), or of an exported one, is computed from the
    ledger beside it; those of still earlier trainings are as its privacy.json recorded them.
    """
    folder = _run_beside(model)
    if folder is None:
        return []
    if isinstance(read_privacy(folder / PRIVACY), PrivateRun) and not (folder / LEDGER).exists():
        logger.warning(
            "%s has no %s beside it: the report will not state what was guaranteed when the model"
            " was trained", folder / PRIVACY, LEDGER,
        )  # fmt: skip
        return []
    record = privacy_of(folder)
    earlier = [*(record.starting_models or ())]
    if not isinstance(record, PrivateRun):
        return earlier
    plan = record.plan
    started = StartingModel(
        epsilon=record.epsilon,
        delta=record.delta,
        accountant=record.accountant,
        with_tokenizer=record.with_tokenizer,
        data=record.data,
        model=record.model,
        neighboring_relation=plan.neighboring_relation,
        num_examples=plan.num_examples,
        private=record.private,
        unit=plan.unit,
        unit_definition=plan.unit_definition,
        ledger=record.ledger.head,
    )
    return [started, *earlier]


def _run_beside(model: ModelConfig) -> Path | None:
    """Returns the folder with the privacy.json of a model that dpft trained; None: there is none.

    It is the model's own folder, if it was exported, or that of the run.
    """
    if model.path is None:
        return None
    folder = Path(model.path).expanduser().resolve()
    places = [folder, *([folder.parent] if folder.name == MODEL else [])]
    found = next((place for place in places if (place / PRIVACY).is_file()), None)
    if found is not None and found != folder:
        check_model(found, read_run_ledger(found))
    return found
