"""A run prepared and trained: what can be refused is refused before its folder is written to.

No private record is used before the plan stands and the clipper has been proved on synthetic data
(``prepare``); ``train`` takes the steps.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from dpft.config.schema import TrainConfig
from dpft.data.batches import Layout
from dpft.data.canaries import Canary, check_suffixes_learned, make_canaries
from dpft.data.encoding import Encoding
from dpft.errors import Faults, InputError, StateError
from dpft.evaluation.metrics.base import metric_specs
from dpft.files import CHECKPOINTS, KEYS, MODEL, share, sync_tree
from dpft.kinds import Head
from dpft.methods.base import Method, ParameterCounts, count_parameters
from dpft.models.architecture import Architecture, read_architecture
from dpft.models.checkpoint_rows import RowsOfModel
from dpft.models.losses import per_example_losses
from dpft.parallel.processes import own_device
from dpft.parallel.ranks import ALONE, Ranks, Share
from dpft.parallel.shards import ShardedModel, WholeSums, gathered, whole_reader
from dpft.privacy.accounting.curve import EpsilonCurve, EpsilonSoFar
from dpft.privacy.clipping.clipper import ClippingChoice
from dpft.privacy.frozen_state import digests_of
from dpft.privacy.privacy_config import DifferentialPrivacy
from dpft.released import write_released
from dpft.reports.epsilon import NOT_PRIVATE_SEED
from dpft.runs.folder import Secrets, restored_plan
from dpft.runs.held_out import Division, divide, load_training_data
from dpft.runs.modality import modality_of
from dpft.runs.run_cost import check_micro_batch_tokens, with_micro_batch_size
from dpft.runs.run_plan import (
    RunPlan,
    plan_run,
    public_size,
    warn_of_delta,
    warn_of_noise,
    with_batch_size,
)
from dpft.runs.task_model import (
    digest_of_base,
    encoding_of,
    fitted_to,
    prepare_in_shards,
    prepare_model,
    training_head,
)
from dpft.runs.tracking import check_tracking
from dpft.runs.training_records import (
    DataSummary,
    make_training_set,
    summarize,
    training_layout,
)
from dpft.runs.white_box import check_white_box
from dpft.startup import CHECKING, ENCODING, LOADING, PLANNING, doing
from dpft.training.checkpoint import ResumePoint, check_promises, delete_generator_states
from dpft.training.listeners import StepEvaluation, StepListener
from dpft.training.loop import TrainingSet
from dpft.training.ordinary import Clipped, train_ordinarily
from dpft.training.private_run import train_privately
from dpft.training.session import (
    Session,
    Start,
    prepare_training_state,
    share_start,
)
from dpft.training.synthetic_batches import self_check_batches
from dpft.training.training_config import warn_if_slow

logger = logging.getLogger(__name__)


Planner = Callable[[TrainConfig, Callable[[], int]], RunPlan]
"""From a run's configuration, and a count of its units, to its plan."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Everything a run needs before its folder is written to."""

    config: TrainConfig
    architecture: Architecture
    plan: RunPlan
    encoding: Encoding
    processor: Any
    """What is saved beside the model: its tokenizer, or its image processor."""
    division: Division
    model: PreTrainedModel
    """On its device. One that is to be sharded is on the CPU or the meta device."""
    counts: ParameterCounts
    training_set: TrainingSet
    unit_key: bytes | None
    """Secret, where units have several records."""
    canaries: Sequence[Canary]
    """Those that an audit will look for, with what their coins said; private."""
    audit_key: bytes
    """Of which they are made; secret."""
    summary: DataSummary
    """What became of the records that were read; private."""
    choices: tuple[ClippingChoice, ...] = ()
    """Results of the clipper's self-check, one per phase; of a model that is to be sharded, empty
    until it is."""
    shards: ShardedModel | None = None
    """``model``, where each process has but a shard of it."""
    rows: RowsOfModel | None = None
    """Where the weights are that ``model`` has on the meta device, until it is cut."""


def warn(config: TrainConfig, plan: RunPlan) -> None:
    """Says on stderr, before training, what makes the promise weak or void."""
    if plan.privacy is None:
        logger.warning("%s", config.privacy.alarm)
        return
    warn_of_delta(plan.privacy)
    if config.privacy.noise_seed is not None:
        logger.warning(NOT_PRIVATE_SEED)


def check_clipper(
    config: TrainConfig,
    plan: RunPlan,
    model: PreTrainedModel,
    layout: Layout,
    shards: WholeSums | None = None,
) -> tuple[ClippingChoice, ...]:
    """Run each phase's self-check on synthetic records; returns the public choices.

    Raises:
        InputError: The model combines examples.
        RunError: The model writes to its state, or its gradients are not finite.
    """
    clips, clipping = config.privacy.clips, plan.clipping
    if clips is None or clipping is None:
        return ()
    options = clips.clipping_options(config.train.backward_scale)
    options = replace(options, shards=shards, autocast=config.train.autocast_dtype)
    was_training = model.training
    model.train()
    choices = []
    for phase, start in zip(clipping.phases, clipping.phase_starts(), strict=True):
        config.method.begin_step(model, start)
        check = self_check_batches(
            model, max_length=config.task.longest, layout=layout, has_units=clips.has_units
        )
        own = replace(options, max_grad_norm=phase.max_grad_norm)
        with own.make(model, per_example_losses) as clipper:
            choice = clipper.self_check(
                *check.batches, alone=check.alone, rows_per_unit=check.rows_per_unit
            )
        logger.info("Clipping engine: %s (%s)", choice.engine, clips.engine)
        choices.append(choice)
    config.method.begin_step(model, 0)
    model.train(was_training)
    return tuple(choices)


def digests_at_start(prepared: Prepared) -> dict[str, str] | None:
    """Returns digests of a private run's model before it runs on any record; None of another run.

    The processes of a model in shards serve the one that asks: inside ``ranks.settled()``.
    """
    if prepared.plan.privacy is None:
        return None
    shards = prepared.shards
    return digests_of(prepared.model, read=None if shards is None else whole_reader(shards))


def train(
    prepared: Prepared,
    folder: Path,
    resume_point: ResumePoint | None = None,
    *,
    listeners: tuple[StepListener, ...] = (),
    state_at_start: Mapping[str, str] | None = None,
    curve: EpsilonCurve | None = None,
    evaluation: StepEvaluation | None = None,
    ranks: Ranks = ALONE,
) -> None:
    """Takes every step that is left and saves the model; one that ended is only read back.

    Only the first process has a resume point (None: the run begins), listeners, digests
    of the state at the start and the curve of epsilon.
    """
    config, plan, model, shards = prepared.config, prepared.plan, prepared.model, prepared.shards
    base = digest_of_base(config) if ranks.is_first else None

    def save_model() -> str:
        held = held_to_save(config.method, model)
        with nullcontext() if shards is None else gathered(shards, held=held):
            config.method.save(model, folder / MODEL)
            prepared.processor.save_pretrained(folder / MODEL)
            share(folder / MODEL)
            sync_tree(folder / MODEL)  # before the ledger closes, after which it is saved no more
            return write_released(folder / MODEL, base)

    session = Session(
        model=model,
        method=config.method,
        phases=plan.phases,
        training_set=prepared.training_set,
        settings=config.train,
        optimizer=config.optimizer,
        scheduler=config.scheduler,
        num_examples=plan.size.num_examples,
        folder=folder,
        save_model=save_model,
        show_diagnostics=config.privacy.show_diagnostics,
        listeners=listeners,
        state_at_start=state_at_start,
        evaluation=evaluation,
        choices=prepared.choices,
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
        return
    if plan.privacy is None or guarantee is None:
        clips, unnoised = config.privacy.clips, plan.unnoised
        clipped = None if clips is None or unnoised is None else Clipped(unnoised, clips)
        train_ordinarily(session, plan.steps, resume_point, clipped=clipped)
        return
    train_privately(
        session,
        plan.privacy,
        guarantee,
        epsilon_after=None if curve is None else EpsilonSoFar(plan.privacy, curve),
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
    """Refuses a run that has ended but not as it was bound to."""
    assert resume_point is not None
    if guarantee is not None:
        check_promises(resume_point, guarantee)
    checkpoint = resume_point.checkpoint
    if resume_point.ledger is None and checkpoint.step < plan.steps:
        raise StateError(
            f"{checkpoint.path / KEYS} is gone, and the run has taken {checkpoint.step} of"
            f" {plan.steps} steps; put it back, or begin a new run."
        )


def prepare(
    config: TrainConfig,
    secrets: Secrets,
    resume_point: ResumePoint | None,
    planner: Planner = plan_run,
    ranks: Ranks = ALONE,
) -> Prepared:
    """Returns the parts of a run, nothing of it written yet; this process's share of each batch.

    ``secrets`` are those of the run that goes on from ``resume_point``, or fresh ones.
    """
    if config.eval.enabled:
        metric_specs(config.task.metrics)
    check_tracking(config)
    device = own_device(config.train.prepare(), ranks)
    warn_if_slow(config.train.precision, device)
    architecture = read_architecture(config.model)
    config = fitted_to(config, architecture)
    head = _fitting_head(config, architecture)
    task = config.task
    processor = modality_of(task).processor(task, architecture, head, tokens=task.special_tokens)
    encoding = encoding_of(task, architecture, head, processor)
    check_micro_batch_tokens(config)
    data = load_training_data(config, encoding.check)
    division = divide(config, data, secrets.held_out_key, encoding.check)
    config = with_batch_size(config, lambda: data.num_units)
    config = with_micro_batch_size(config, architecture, head, device)
    doing(PLANNING)
    if resume_point is None:
        plan = planner(config, lambda: data.num_units)
    else:
        plan = restored_plan(config, resume_point, lambda: data.num_units)
    warn(config, plan)
    doing(LOADING)
    rows = None
    choices: tuple[ClippingChoice, ...] = ()
    if config.parallel.shards_model:
        model, new, rows = prepare_in_shards(config, architecture, head)
    else:
        model, new = prepare_model(config, architecture, head)
    counts = count_parameters(model, new)
    if plan.privacy is not None:
        warn_of_noise(plan.privacy, counts.trainable)
    if config.audit.white_box:
        check_white_box(model)
    if not config.parallel.shards_model:
        model.to(device)  # type: ignore[arg-type]
        doing(CHECKING)
        layout = training_layout(config, encoding.layout, device)
        choices = check_clipper(config, plan, model, layout)
    doing(ENCODING)
    canaries = make_canaries(config.audit, processor, secrets.audit_key)
    if resume_point is None:
        check_suffixes_learned(canaries, config.audit, processor, task, encoding)
    training_set = make_training_set(
        config,
        data.only(division.kept),
        encoding,
        device,
        unit_key=secrets.unit_key,
        canaries=canaries,
    )
    training_set = replace(training_set, share=Share(ranks.rank, ranks.size))
    return Prepared(
        config=config,
        architecture=architecture,
        plan=plan,
        encoding=encoding,
        processor=processor,
        division=division,
        model=model,
        counts=counts,
        training_set=training_set,
        unit_key=None if data.units is None else secrets.unit_key,
        canaries=canaries,
        audit_key=secrets.audit_key,
        summary=summarize(
            config, data, division, training_set, canaries=sum(each.copies for each in canaries)
        ),
        choices=choices,
        rows=rows,
    )


def _fitting_head(config: TrainConfig, architecture: Architecture) -> Head:
    """Returns what the model answers with.

    Raises:
        InputError: Task, model and method do not fit; a batch that the data are too few for is
            said with it.
    """
    faults = Faults()
    with faults.gathering():
        return training_head(config, architecture)
    with faults.gathering():
        data = load_training_data(config)
        sized = with_batch_size(config, lambda: data.num_units)
        size = public_size(sized, lambda: data.num_units)
        sized.train.planned_steps(size.num_examples, of=size.noun)
    raise InputError(*faults.found)
