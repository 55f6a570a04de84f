"""Everything a run needs before its folder is written to: what can be refused is refused here.

No private record is used before the plan stands and the clipper has been proved on synthetic data.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedModel

from dpft.config.schema import TrainConfig
from dpft.data.canaries import Canary, check_suffixes_learned, make_canaries
from dpft.data.encoding import Encoding
from dpft.errors import Faults, InputError
from dpft.evaluation.metrics.base import metric_specs
from dpft.kinds import Head
from dpft.methods.base import ParameterCounts, count_parameters
from dpft.models.architecture import Architecture, read_architecture
from dpft.models.checkpoint_rows import RowsOfModel
from dpft.parallel.processes import own_device
from dpft.parallel.ranks import ALONE, Ranks
from dpft.parallel.shards import ShardedModel
from dpft.parallel.shares import Share
from dpft.privacy.keys import secret_key
from dpft.runs.held_out import Division, divide
from dpft.runs.modality.base import modality_of
from dpft.runs.planned_ranks import with_micro_batch_size
from dpft.runs.records import DataSummary, make_training_set, summarize, training_layout, unit_key
from dpft.runs.resuming import Secrets, restored_plan
from dpft.runs.run_cost import check_micro_batch_tokens
from dpft.runs.run_plan import RunPlan, plan_run, public_size, warn_of_noise, with_batch_size
from dpft.runs.task_model import (
    encoding_of,
    fitted_to,
    prepare_in_shards,
    prepare_model,
    training_head,
)
from dpft.runs.tracking import check_tracking
from dpft.runs.training import prove_clipper, warn
from dpft.runs.training_data import load_training_data
from dpft.runs.white_box import check_white_box
from dpft.startup import CHECKING, ENCODING, LOADING, PLANNING, doing
from dpft.training.compiling import check_compiler, check_first_step_compiles
from dpft.training.loop import TrainingSet
from dpft.training.precision import warn_if_slow
from dpft.training.resume import ResumePoint

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
    """On its device, its clipper proved; one that is to be cut is on the CPU or the meta
    device, and not proved yet."""
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
    shards: ShardedModel | None = None
    """``model``, where each process has but a shard of it."""
    rows: RowsOfModel | None = None
    """Where the weights are that ``model`` has on the meta device, until it is cut."""


def prepare(
    config: TrainConfig,
    secrets: Secrets | None,
    resume_point: ResumePoint | None,
    planner: Planner = plan_run,
    ranks: Ranks = ALONE,
) -> Prepared:
    """Returns the parts of a run, nothing of it written yet.

    Args:
        config: Of the run.
        secrets: Of the run that goes on; None: fresh ones are drawn.
        resume_point: Where that run broke off.
        planner: Makes the plan of a run that begins.
        ranks: The run's processes, of which this one takes its share of each batch.

    Raises:
        InputError: Anything does not fit.
        RunError: The clipper is not exact on this model.
    """
    if config.eval.enabled:
        metric_specs(config.task.metrics)
    check_tracking(config)
    device = own_device(config.train.prepare(), ranks)
    warn_if_slow(config.train.precision, device)
    check_compiler(device, wanted=config.train.compile)
    architecture = read_architecture(config.model)
    config = fitted_to(config, architecture)
    head = _fitting_head(config, architecture)
    task = config.task
    processor = modality_of(task).processor(task, architecture, head, tokens=task.special_tokens)
    encoding = encoding_of(task, architecture, head, processor)
    check_micro_batch_tokens(config)
    data = load_training_data(config)
    division = divide(config, data, None if secrets is None else secrets.held_out_key)
    config = with_batch_size(config, lambda: data.num_units)
    config = with_micro_batch_size(config, architecture, head, device)
    check_compiled_shape(config, lambda: data.num_units)
    doing(PLANNING)
    if resume_point is None:
        plan = planner(config, lambda: data.num_units)
    else:
        plan = restored_plan(config, resume_point, lambda: data.num_units)
    warn(config, plan)
    doing(LOADING)
    rows = None
    if config.parallel.shards_model:
        model, new, rows = prepare_in_shards(config, architecture, head)
    else:
        model, new = prepare_model(config, architecture, head)
    counts = count_parameters(model, new)
    config.optimizer.check_model(model)
    if plan.privacy is not None:
        warn_of_noise(plan.privacy, counts.trainable)
    if config.audit.white_box:
        check_white_box(model)
    if not config.parallel.shards_model:
        model.to(device)  # type: ignore[arg-type]
        doing(CHECKING)
        prove_clipper(config, plan, model, training_layout(config, encoding.layout, device))
    doing(ENCODING)
    key = unit_key(config) if secrets is None else secrets.unit_key
    audit_key = secret_key("audit", config.privacy.noise_seed)
    audit_key = audit_key if secrets is None else secrets.audit_key
    canaries = make_canaries(config.audit, processor, audit_key)
    if resume_point is None:
        check_suffixes_learned(canaries, config.audit, processor, task, encoding)
    training_set = make_training_set(
        config, data.only(division.kept), encoding, device, unit_key=key, canaries=canaries
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
        unit_key=None if data.units is None else key,
        canaries=canaries,
        audit_key=audit_key,
        summary=summarize(
            config, data, division, training_set, canaries=sum(each.copies for each in canaries)
        ),
        rows=rows,
    )


def check_compiled_shape(config: TrainConfig, count_units: Callable[[], int]) -> None:
    """Refuses to compile a clipped run whose first step may have nothing to compile.

    Raises:
        InputError: Its micro-batches are too large for its batches.
    """
    if not config.train.compile or config.privacy.clips is None:
        return
    size = public_size(config, count_units).num_examples
    check_first_step_compiles(
        expected_batch_size=config.train.batch_size(size),
        micro_batch_size=config.train.most_rows,
        longest=config.task.longest,
        tokens=config.train.micro_batch_tokens,
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
