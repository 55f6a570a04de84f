"""Training of a run (``dpft train``): check, plan, prepare, train, score and report.

``train_run`` reads from top to bottom. Everything that can be rejected is rejected before the run's
folder is written to. No private record is used before the plan is fixed and the clipper was checked
on synthetic data. A resumed run executes the same code, starting from a checkpoint.

Every process of a run (rank) executes this module. ``ranks.on_rank_0(f, …)`` calls ``f`` on rank 0
only. An error inside ``ranks.failing_together()`` on one rank ends all ranks.
"""

import logging
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from dpft.commands.canary_steps import check_white_box, white_box
from dpft.commands.closing_summary import report
from dpft.commands.exit_codes import crash_kept
from dpft.commands.interrupted_run import (
    automatically_resumed,
    bound_noise,
    check_ended,
    check_same_base,
    check_same_records,
    has_scores,
    hint_of_resume,
    is_reported,
    open_interrupted,
    read_secrets,
    restored_plan,
    whole_digests,
)
from dpft.commands.modality import modality_of
from dpft.commands.new_run import (
    fresh_secrets,
    hold_new_folder,
    refuse_used_folder,
    write_beginning,
)
from dpft.commands.rank_agreement import (
    check_alike,
    check_arithmetic,
    check_same_inputs,
    share_plan,
    share_secrets,
    share_settings,
)
from dpft.commands.references import with_references
from dpft.commands.run_cost import (
    check_micro_batch_tokens,
    check_sharding,
    shard_model,
    with_micro_batch_size,
)
from dpft.commands.run_plan import (
    announce_steps,
    curve_of_run,
    plan_run,
    public_size,
    steps_plan,
    warn_of_guarantee,
    warn_of_noise,
    with_batch_size,
)
from dpft.commands.scheduled_scores import ScheduledScores
from dpft.commands.scoring import not_evaluated, score_stage, write_scores
from dpft.commands.self_check import check_clipper
from dpft.commands.splits import (
    TrainingData,
    divide,
    load_training_data,
)
from dpft.commands.task_model import (
    digest_of_base,
    encoding_of,
    fitted_to,
    prepare_in_shards,
    prepare_model,
    save_model,
    training_head,
)
from dpft.commands.tracking import (
    check_tracking,
    results,
    tracked,
)
from dpft.commands.training_set import make_training_set, render, summarize, training_layout
from dpft.config.hydra_compose import Composed
from dpft.config.schema import TrainCommand, TrainConfig
from dpft.constants import Head
from dpft.data.canaries import check_suffixes_learned, make_canaries
from dpft.errors import Faults, InputError, SaidElsewhere, note_records_read
from dpft.evaluation.metrics.base import metric_specs
from dpft.methods.base import count_parameters
from dpft.models.architecture import Architecture, read_architecture
from dpft.models.loading import quiet_transformers
from dpft.parallel.processes import own_device, started
from dpft.parallel.rank_environment import without_logging
from dpft.parallel.ranks import ALONE, Ranks, RankShare
from dpft.parallel.shards import UnshardedSums
from dpft.privacy.accounting.calibration import Calibration
from dpft.privacy.accounting.curve import EpsilonSoFar
from dpft.privacy.clipping.clipper import ClippingChoice
from dpft.privacy.journal import ReplayError, read_run_ledger
from dpft.privacy.plan import SpentBefore
from dpft.run_folder import (
    CHECKPOINTS,
    DATA_SUMMARY,
    WHITE_BOX,
    check_writable,
    private_path,
    refuse_links,
    write_private,
)
from dpft.startup import CHECKING, ENCODING, LOADING, PLANNING, show_startup_stage
from dpft.training import loop
from dpft.training.checkpoint import delete_generator_states
from dpft.training.listeners import StepProgress
from dpft.training.progress import ProgressRecord
from dpft.training.training_config import warn_if_slow
from dpft.training.training_run import TrainingRun

logger = logging.getLogger(__name__)


def train(
    command: TrainCommand,
    folder: Path,
    *,
    rows: TrainingData | None = None,
    counts: SpentBefore | None = None,
    composed: Composed | None = None,
) -> None:
    """Train, evaluate and report; keep the traceback of a crash in the folder's ``private/``.

    Args:
        command: The run's configuration, and whether it is resumed.
        folder: A new folder, or with ``command.resume`` the folder of the interrupted run.
        rows: The training records, if they were read already. With several processes, each process
            reads them itself.
        counts: The histogram of a synthesis, which is part of the run's cost.
        composed: The composition by Hydra, which is written into ``.hydra/`` of a new folder.

    Raises:
        InputError: A setting or a record is invalid. This is raised before any record is used.
        RunError: Training failed.
        StateError: A file of the interrupted run is damaged.
    """
    if command.launch.name != "none":
        raise InputError(
            f"launch={command.launch.name} works only on the command line. In Python, start the"
            " processes of your program with torchrun, and call dpft.train with parallel=ddp in"
            " each.",
            key="launch",
            value=command.launch.name,
        )
    check_sharding(command.settings())
    quiet_transformers()
    with ExitStack() as stack:
        ranks = stack.enter_context(started(command.parallel))
        if not ranks.is_rank_0:
            stack.enter_context(without_logging())
        check_alike(command.settings(), ranks)
        ranks.on_rank_0(refuse_links, folder)
        resumed = ranks.on_rank_0(automatically_resumed, command, folder)
        config, folder, resumes = share_settings(
            None if resumed is None else resumed.settings(),
            folder,
            resumes=resumed is not None and resumed.resume is not None,
            ranks=ranks,
        )
        if ranks.is_rank_0:
            stack.enter_context(crash_kept(folder))
        if resumes:
            note_records_read()  # The private state of the run is read before its rows.
        train_run(
            config,
            folder,
            resumes=resumes,
            rows=rows,
            counts=counts,
            composed=composed,
            ranks=ranks,
        )


def train_run(
    config: TrainConfig,
    folder: Path,
    *,
    resumes: bool = False,
    rows: TrainingData | None = None,
    noise_multiplier: float | None = None,
    calibration: Calibration | None = None,
    counts: SpentBefore | None = None,
    composed: Composed | None = None,
    with_curve: bool = True,
    ranks: Ranks = ALONE,
) -> None:
    """Train with a complete configuration; only its null values are filled in.

    Args:
        config: The configuration of the run.
        folder: Folder of the run.
        resumes: Whether the folder contains an interrupted run, which is resumed.
        rows: As in ``train``.
        noise_multiplier: The noise multiplier that a search has chosen for a trial.
        calibration: The calibration of the search.
        counts: As in ``train``.
        composed: As in ``train``.
        with_curve: Whether to compute epsilon over the steps, for progress and the report.
        ranks: The processes of the run.

    Raises:
        InputError: As in ``train``, or the configuration changes a setting that an interrupted run
            must keep.
        RunError: Training failed.
        StateError: A checkpoint, a ledger or scores are damaged.
    """
    with ExitStack() as stack:
        # 1. Check the folder. An interrupted run has a checkpoint and keys; a new run gets keys.
        resume_point = None
        if resumes:
            resume_point = ranks.on_rank_0(open_interrupted, folder, stack)
            if ranks.broadcast_from_rank_0(is_reported, folder, resume_point):
                ranks.on_rank_0(delete_generator_states, folder / CHECKPOINTS)
                logger.info("the run in %s is already complete", folder)
                return
            secrets = share_secrets(ranks.on_rank_0(read_secrets, folder), ranks)
            noise_multiplier = ranks.broadcast_from_rank_0(bound_noise, resume_point)
        else:
            ranks.on_rank_0(refuse_used_folder, folder)
            ranks.on_rank_0(check_writable, folder)
            secrets = share_secrets(fresh_secrets(config), ranks)
            today = ranks.broadcast_from_rank_0(lambda: datetime.now(UTC).date().isoformat())
        asked = config

        with ranks.failing_together():
            # 2. Read the model's config.json, which determines lengths, head and encoding.
            if not resumes:
                config = config.replace(task=config.task.begun(today))
            if config.eval.enabled:
                metric_specs(config.task.metrics)
            check_tracking(config)
            device = own_device(config.train.prepare(), ranks)
            warn_if_slow(config.train.precision, device)
            architecture = read_architecture(config.model)
            config = fitted_to(config, architecture)
            head = _fitting_head(config, architecture, rows)
            task = config.task
            processor = modality_of(task).processor(
                task, architecture, head, tokens=task.special_tokens
            )
            encoding = encoding_of(task, architecture, head, processor)
            check_micro_batch_tokens(config)

            # 3. Read and count the records; the model does not use them yet.
            if rows is None:
                rows = load_training_data(config, encoding.check)
            division = divide(config, rows, secrets.held_out_key, encoding.check)
            num_units = rows.num_units
            config = with_batch_size(config, lambda: num_units)
            config = with_micro_batch_size(config, architecture, head, device)

            # 4. Make the plan, which is public and fixed from here on.
            show_startup_stage(PLANNING)
            if resume_point is not None:
                plan = restored_plan(config, resume_point, lambda: num_units)
            else:
                plan = plan_run(
                    config,
                    lambda: num_units,
                    noise_multiplier=noise_multiplier,
                    calibration=calibration,
                    counts=counts,
                )
            warn_of_guarantee(config, plan)

            # 5. Load the model, and check the clipper on it with synthetic records.
            show_startup_stage(LOADING)
            unread_weights = None
            if config.parallel.shards_model:
                model, new, unread_weights = prepare_in_shards(config, architecture, head)
            else:
                model, new = prepare_model(config, architecture, head)
            parameters = count_parameters(model, new)
            if plan.privacy is not None:
                warn_of_noise(plan.privacy, parameters.trainable)
            if config.audit.white_box:
                check_white_box(model)
            layout = training_layout(config, encoding.layout, device)
            choices: tuple[ClippingChoice, ...] = ()
            if not config.parallel.shards_model:
                model.to(device)  # type: ignore[arg-type]
                show_startup_stage(CHECKING)
                choices = check_clipper(config, plan.clipping, model, layout)

            # 6. Encode the records. After this step, the model may use them.
            show_startup_stage(ENCODING)
            canaries = make_canaries(config.audit, processor, secrets.audit_key)
            if not resumes:
                check_suffixes_learned(canaries, config.audit, processor, task, encoding)
            kept = rows.only(division.kept)
            training_set = make_training_set(
                config, kept, encoding, device, unit_key=secrets.unit_key, canaries=canaries
            )
            training_set = replace(training_set, share=RankShare(ranks.rank, ranks.size))
            copies = sum(canary.copies for canary in canaries)
            summary = summarize(config, rows, division, training_set, canaries=copies)
            if resume_point is not None:
                check_same_records(folder, training_set)

        # 7. Check that all processes have the same records, plan and weights; shard a large model.
        check_same_inputs(config, plan, model, training_set, division.scored, unread_weights, ranks)
        plan = share_plan(plan, ranks)
        shards = None
        if not config.parallel.shards_model:
            if ranks.size > 1:
                check_arithmetic(config, model, training_set.layout, ranks)
        else:
            read = None if unread_weights is None else unread_weights.read
            shards = shard_model(model, config.parallel, device, ranks, read)
            assert shards is not None
            check_arithmetic(config, model, training_set.layout, ranks, shards.unsharded)
            with ranks.failing_together():
                whole = UnshardedSums(shards.unsharded)
                choices = check_clipper(config, plan.clipping, model, layout, whole)

        # 8. Open the folder: lock, configuration, secret keys.
        if resumes:
            ranks.on_rank_0(check_same_base, model, shards, resume_point)
        else:
            ranks.on_rank_0(hold_new_folder, folder, stack)
            ranks.on_rank_0(
                write_beginning,
                folder,
                config,
                asked=asked,
                secrets=secrets,
                division=division,
                training_set=training_set,
                canaries=canaries,
                composed=composed,
            )
        training_set = with_references(config, training_set, model, folder, ranks)
        digests = None
        if plan.privacy is not None and not resumes:
            digests = ranks.on_rank_0(whole_digests, model, shards)
        if ranks.is_rank_0:
            stack.enter_context(hint_of_resume(folder))
        run = TrainingRun(
            folder=folder,
            plan=steps_plan(config, plan),
            model=model,
            method=config.method,
            phases=plan.phases,
            training_set=training_set,
            settings=config.train,
            optimizer=config.optimizer,
            scheduler=config.scheduler,
            privacy=config.privacy,
            choices=choices,
            ranks=ranks,
            shards=shards,
            resume_point=resume_point,
            digests_at_start=digests,
        )

        # 9. Start progress, and score before training.
        bar = tracking = progress = curve = None
        if ranks.is_rank_0:
            bar = StepProgress(
                steps=plan.steps,
                expected_batch_size=config.train.batch_size(plan.size.num_examples),
                counted="examples" if training_set.units is None else "units",
            )
        with ranks.failing_together():
            if ranks.is_rank_0:
                tracking = stack.enter_context(tracked(config, plan, folder))
                readers = [reader for reader in (bar, tracking) if reader is not None]
                progress = ProgressRecord(folder, readers)
                write_private(folder, {DATA_SUMMARY: render(summary)})
                curve = curve_of_run(config, plan) if with_curve else None
        if curve is not None and plan.privacy is not None:
            run.epsilon_so_far = EpsilonSoFar(plan.privacy, curve)
        taken = 0 if resume_point is None else resume_point.checkpoint.step
        if with_curve and taken < plan.steps:
            # A trial announces no steps, because the search takes more steps than one trial.
            announce_steps(config, plan, taken=taken)
        scored = division.scored
        if not ranks.broadcast_from_rank_0(has_scores, folder, "before"):
            evaluations = score_stage(config, model, encoding, scored, "before", ranks)
            ranks.on_rank_0(write_scores, config, folder, evaluations)
        run.evaluation = ScheduledScores.of_run(
            config, plan.size.num_examples, model, encoding, scored, progress, ranks
        )
        if ranks.is_rank_0 and config.audit.white_box:
            path = private_path(folder, WHITE_BOX)
            run.listeners.append(white_box(model, encoding, task, canaries, device, path))
        if progress is not None:
            run.listeners.append(progress)

        # 10. Take the steps. A replay that fails is repeated with new noise.
        state = run.initial_state()
        (has_ended,) = ranks.any(resume_point is not None and resume_point.has_ended)
        base = None if has_ended else ranks.on_rank_0(digest_of_base, config)
        with nullcontext() if bar is None else bar:
            if has_ended:
                ranks.on_rank_0(check_ended, resume_point, plan, config.privacy.guarantee)
                run.restore_end(state)
            while not has_ended:
                try:
                    with run.steps(state) as engine:
                        loop.train(state, training_set, engine, run)
                        released = ranks.on_rank_0(
                            save_model, config, model, processor, folder, base, shards
                        )
                        ranks.on_rank_0(run.close, released)
                    has_ended = True
                except (ReplayError, SaidElsewhere) as error:
                    run.reseed_after(error)
            if progress is not None:
                progress.publish(plan.steps)

        # 11. Score and report. The report does not wait for other processes, because they may have
        # ended.
        evaluations = score_stage(config, model, encoding, scored, "after", ranks)
        if ranks.is_rank_0:
            evaluations += not_evaluated(config)
            ledger = None if plan.privacy is None else read_run_ledger(folder)
            record = report(config, plan, folder, parameters, evaluations, ledger, curve)
            if tracking is not None:
                tracking.conclude(plan.steps, results(record.privacy, record.evaluations))


def _fitting_head(
    config: TrainConfig, architecture: Architecture, rows: TrainingData | None
) -> Head:
    """Return the head that the task needs, after checking that model and method support it.

    Raises:
        InputError: Task, model and method do not fit together. The error also reports a batch that
            is too large for the data.
    """
    faults = Faults()
    with faults.gathering():
        return training_head(config, architecture)
    with faults.gathering():
        data = load_training_data(config) if rows is None else rows
        sized = with_batch_size(config, lambda: data.num_units)
        size = public_size(sized, lambda: data.num_units)
        sized.train.planned_steps(size.num_examples, of=size.noun)
    raise InputError(*faults.found)
