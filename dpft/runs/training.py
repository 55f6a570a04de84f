"""What ``dpft train`` does with a model: prove the clipper on it, and train it."""

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from dpft.config.schema import TrainConfig
from dpft.data.batches import Layout
from dpft.errors import StateError
from dpft.files import share, sync_tree
from dpft.methods.base import Method
from dpft.parallel.gathering import gathered, whole_reader
from dpft.parallel.ranks import ALONE, Ranks
from dpft.parallel.shards import ShardedModel, WholeSums
from dpft.privacy.accounting.background import CurveInBackground
from dpft.privacy.frozen_state import digests_of
from dpft.privacy.privacy_config import DifferentialPrivacy
from dpft.privacy.witness import Handover
from dpft.released import write_released
from dpft.reports.accounting.epsilon import NOT_PRIVATE_SEED
from dpft.run_folder import CHECKPOINTS, KEYS, MODEL
from dpft.runs.run_plan import RunPlan, warn_of_delta
from dpft.runs.spent_epsilon import epsilon_so_far
from dpft.training.averaging import WeightAverage
from dpft.training.checkpoint import delete_generator_states
from dpft.training.listeners import StepEvaluation, StepListener
from dpft.training.loop import TrainingSet
from dpft.training.ordinary import Clipped, train_ordinarily
from dpft.training.private_run import train_privately
from dpft.training.replicas import Start, share_start
from dpft.training.resume import ResumePoint, check_promises
from dpft.training.self_check import check_clipper
from dpft.training.session import Session, prepare_training_state, put_released_in_place

logger = logging.getLogger(__name__)


def warn(config: TrainConfig, plan: RunPlan) -> None:
    """Says on stderr, before training, what makes the promise weak or void."""
    if plan.privacy is None:
        logger.warning("%s", config.privacy.alarm)
        return
    warn_of_delta(plan.privacy)
    if config.privacy.noise_seed is not None:
        logger.warning(NOT_PRIVATE_SEED)


def prove_clipper(
    config: TrainConfig,
    plan: RunPlan,
    model: PreTrainedModel,
    layout: Layout,
    shards: WholeSums | None = None,
) -> None:
    """Checks each phase's clipper against the one-at-a-time loop on synthetic tokens.

    Without the self-check, that each phase's clipper can be made is seen before the first step.
    """
    clips, clipping = config.privacy.clips, plan.clipping
    if clips is None or clipping is None:
        return
    options = clips.clipping_options(config.train.backward_scale)
    options = replace(options, shards=shards)
    for phase, start in zip(clipping.phases, clipping.phase_starts(), strict=True):
        config.method.begin_step(model, start)
        own = replace(options, max_grad_norm=phase.max_grad_norm)
        if not clips.self_check:
            own.resolved(model).make(model)
            continue
        difference = check_clipper(
            model,
            own,
            max_length=config.task.longest,
            layout=layout,
            precision=config.train.precision,
            has_units=clips.has_units,
        )
        logger.info("self-check: clipper equals the one-at-a-time loop to %.0e", difference)
    config.method.begin_step(model, 0)


def digests_at_start(
    plan: RunPlan, model: nn.Module, shards: ShardedModel | None
) -> dict[str, str] | None:
    """Returns digests of a private run's model before it runs on any record; None of another run.

    The processes of a model in shards serve the one that asks: inside ``ranks.settled()``.
    """
    if plan.privacy is None:
        return None
    return digests_of(model, read=None if shards is None else whole_reader(shards))


def train(
    config: TrainConfig,
    plan: RunPlan,
    folder: Path,
    model: PreTrainedModel,
    processor: Any,
    training_set: TrainingSet,
    resume_point: ResumePoint | None = None,
    listeners: tuple[StepListener, ...] = (),
    handover: Handover | None = None,
    state_at_start: Mapping[str, str] | None = None,
    curve: CurveInBackground | None = None,
    foretold: str = "",
    evaluation: StepEvaluation | None = None,
    ranks: Ranks = ALONE,
    shards: ShardedModel | None = None,
) -> WeightAverage | None:
    """Takes every step that is left and saves the model; one that ended is only read back.

    Args:
        config: Of the run.
        plan: Of the run.
        folder: Of the run.
        model: Prepared, its clipper proved.
        processor: What is saved beside it.
        training_set: This process's share of the records.
        resume_point: Where the run goes on from; None: it begins, or this is not the first process.
        listeners: Who hears of the steps; nobody but on the first process.
        handover: To the witness; None but on the first process.
        state_at_start: As ``digests_at_start``; None but on the first process.
        curve: Of epsilon, while it is computed; None but on the first process.
        foretold: How long it will take, in words.
        evaluation: Scores the model between steps.
        ranks: The run's processes.
        shards: ``model``, where each of them has but a shard of it.

    Returns:
        As ``put_released_in_place``.
    """

    def save_model() -> str:
        held = held_to_save(config.method, model)
        with nullcontext() if shards is None else gathered(shards, held=held):
            config.method.save(model, folder / MODEL)
            processor.save_pretrained(folder / MODEL)
            share(folder / MODEL)
            sync_tree(folder / MODEL)  # before the ledger closes, after which it is saved no more
            return write_released(folder / MODEL)

    session = Session(
        model=model,
        method=config.method,
        phases=plan.phases,
        training_set=training_set,
        settings=config.train,
        optimizer=config.optimizer,
        scheduler=config.scheduler,
        num_examples=plan.size.num_examples,
        folder=folder,
        save_model=save_model,
        show_diagnostics=config.privacy.show_diagnostics,
        listeners=listeners,
        handover=handover,
        state_at_start=state_at_start,
        foretold=foretold,
        evaluation=evaluation,
        ranks=ranks,
        shards=shards,
    )
    (has_ended,) = ranks.any(resume_point is not None and resume_point.has_ended)
    guarantee = config.privacy.guarantee
    if has_ended:
        ranks.first(_check_end, resume_point, plan, guarantee)
        training_state = prepare_training_state(session, plan.steps, resume_point)
        ended = Start(done=plan.steps, last_step=plan.steps, secrets={})
        share_start(ended, training_state, ranks)
        ranks.first(delete_generator_states, folder / CHECKPOINTS)
        return put_released_in_place(training_state)
    if plan.privacy is None or guarantee is None:
        clips, unnoised = config.privacy.clips, plan.unnoised
        clipped = None if clips is None or unnoised is None else Clipped(unnoised, clips)
        return train_ordinarily(session, plan.steps, resume_point, clipped=clipped)
    return train_privately(
        session,
        plan.privacy,
        guarantee,
        epsilon_after=epsilon_so_far(config, plan.privacy, curve),
        resume_point=resume_point,
    )


def held_to_save(method: Method, model: nn.Module) -> Callable[[nn.Parameter], bool]:
    """Returns which parameters a process holds at once that saves a model in shards.

    Of a whole model it never holds more than a file's and a block's. An adapter it holds whole, and
    a base that is saved with it because no other place has it.
    """
    whole: Any = model
    saves_base = not method.saves_whole_model and not whole.name_or_path
    return lambda p: not method.saves_whole_model and (saves_base or p.requires_grad)


def _check_end(
    resume_point: ResumePoint | None, plan: RunPlan, guarantee: DifferentialPrivacy | None
) -> None:
    """Refuses a run that has ended but not as it was bound to.

    Raises:
        InputError: Its configuration was edited in what its report promises.
        StateError: It has no ledger, and its generator states are gone before its last step.
    """
    assert resume_point is not None
    if guarantee is not None:
        check_promises(resume_point, guarantee)
    checkpoint = resume_point.checkpoint
    if resume_point.ledger is None and checkpoint.step < plan.steps:
        raise StateError(
            f"{checkpoint.path / KEYS} is gone, and the run has taken {checkpoint.step} of"
            f" {plan.steps} steps; put it back, or begin a new run."
        )
