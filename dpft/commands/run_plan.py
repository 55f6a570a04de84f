"""Plan of a run, made from its configuration: sizes, defaults, phases, noise, epsilon, messages.

Importing this module does not import torch.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from dpft.commands.composition import noise_beside, spent_before, tokenizer_of
from dpft.commands.ledger_account import SpentRun
from dpft.config.keys import AUTO
from dpft.config.load import published_num_train_examples
from dpft.config.schema import TrainCommand, TrainConfig
from dpft.constants import LABELS
from dpft.errors import InputError
from dpft.methods.base import MethodPhase
from dpft.methods.linear_probe import DEFAULT_FOR_LABELS
from dpft.models.source import ModelConfig
from dpft.parallel.rank_environment import is_other_rank
from dpft.privacy.accounting.calibration import Calibration, calibrate_noise_multiplier
from dpft.privacy.accounting.curve import EpsilonCurve, epsilon_curve
from dpft.privacy.accounting.interpretation import noise_warnings
from dpft.privacy.mechanisms.base import Numbers
from dpft.privacy.mechanisms.dp_sgd import DPSGD
from dpft.privacy.plan import (
    CHUNK,
    ClippingPlan,
    PrivacyPlan,
    SpentBefore,
    StepsPlan,
    default_delta,
    planned_steps,
)
from dpft.privacy.privacy_config import DifferentialPrivacy, HistogramPrivacy, Privacy
from dpft.reports.epsilon import NOT_PRIVATE_SEED, delta_warnings
from dpft.reports.run_record import with_kind
from dpft.tasks.base import Task
from dpft.training.optimizers import learning_rate_factor, schedule_factors
from dpft.training.training_config import LARGEST_DEFAULT_BATCH, TrainingConfig

COUNTED = "counted in the data"
"""The source of the number of examples or units if no public number is known."""
Config = TypeVar("Config", bound=TrainConfig)
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PublicSize:
    """The public number of training examples and its source."""

    num_examples: int
    source: str
    noun: str = "examples"
    """Description of the counted items, such as "values of customer_id"."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The plan of a run, fixed before any record is used."""

    size: PublicSize
    steps: int
    phases: tuple[MethodPhase, ...]
    privacy: PrivacyPlan | None
    """The private plan; None for a non-private run."""
    unnoised: ClippingPlan | None = None
    """The plan of a non-private run that clips; None for any other run."""

    @property
    def clipping(self) -> ClippingPlan | None:
        """The plan of draws and clipping, with or without noise; None if nothing is clipped."""
        return self.privacy or self.unnoised


def steps_plan(config: TrainConfig, plan: RunPlan) -> StepsPlan:
    """Return the plan of draws and clipping, or only the sizes and steps if nothing is clipped."""
    size = plan.size.num_examples
    return plan.clipping or StepsPlan(
        num_examples=size,
        expected_batch_size=config.train.batch_size(size),
        steps=plan.steps,
    )


def public_size(config: TrainConfig, count_rows: Callable[[], int]) -> PublicSize:
    """Return the number of training examples that is taken as public, including canaries.

    The section "The public number of examples" of docs/dev/design.md defines which source takes
    precedence.

    Args:
        config: The configuration of the run. Its task may have a published number. Its privacy
            settings may contain the user's number, which takes precedence, or a unit for which
            there is no published number.
        count_rows: Counts the rows that were read, or their units. It is called only if no public
            number is known.
    """
    size = size_of_data(config.task, config.privacy, count_rows)
    if config.privacy.unit == CHUNK and config.privacy.num_examples is None:
        chunks = config.task.most_rows
        size = replace(
            size,
            num_examples=size.num_examples * chunks,
            source=f"{size.source}, times task.chunks_per_record",
            noun="chunks",
        )
    canaries = config.audit.count(size.num_examples, units=config.privacy.has_units)
    if not canaries:
        return size
    return replace(
        size,
        num_examples=size.num_examples + canaries,
        source=f"{size.source}, with {canaries} canaries added",
    )


def size_of_data(
    task: Task, privacy: Privacy | HistogramPrivacy, count_rows: Callable[[], int]
) -> PublicSize:
    """Return the public number of a task's records or units: ``public_size`` without canaries."""
    noun = f"values of {privacy.unit}" if privacy.has_units else "examples"
    if privacy.num_examples is not None:
        given = privacy.num_examples
        return PublicSize(num_examples=given, source="privacy.num_examples", noun=noun)
    if privacy.has_units:
        return PublicSize(num_examples=count_rows(), source=COUNTED, noun=noun)
    if task.public_num_train_examples is not None:
        published = task.public_num_train_examples
        return PublicSize(num_examples=published, source=f"published size of task {task.name}")
    return PublicSize(num_examples=count_rows(), source=COUNTED)


def plan_run(
    config: TrainConfig,
    count_rows: Callable[[], int],
    *,
    noise_multiplier: float | None = None,
    calibration: Calibration | None = None,
    counts: SpentBefore | None = None,
) -> RunPlan:
    """Return the plan of a run; calibrate its noise unless a noise multiplier is given.

    Args:
        config: The configuration of the run.
        count_rows: As in ``public_size``.
        noise_multiplier: The noise multiplier that a search or an interrupted run has already
            chosen.
        calibration: The calibration of a search, if this run is a trial of the search.
        counts: The histogram of a synthesis, which is part of the run's cost.

    Raises:
        InputError: The budget cannot be met, or the batch is larger than the data.
    """
    from dpft.privacy.plan_building import make_plan

    config = with_noise(config, noise_multiplier)
    size = public_size(config, count_rows)
    steps = config.train.planned_steps(size.num_examples, of=size.noun)
    phases = method_phases(config, steps, size.num_examples)
    guarantee = config.privacy.guarantee
    if guarantee is None:
        return plan_without_noise(config, size, steps, phases)
    tokenizer = tokenizer_of(config)
    if guarantee.total_eps is not None:
        guarantee = _within_total(config, guarantee, tokenizer, size.num_examples, phases)
    plan = make_plan(
        guarantee,
        num_examples=size.num_examples,
        expected_batch_size=config.train.batch_size(size.num_examples),
        phases=phases,
        record=config.task.unit_definition,
        delta_rule=config.task.default_delta,
        tokenizer=spent_before(tokenizer),
        mechanism=config.mechanism,
        weights=lambda: last_weights_of(config, phases),
    )
    if calibration is not None:
        plan = plan.replace(calibration=calibration, is_trial=True)
    if counts is not None:
        plan = plan.replace(counts=counts)
    return RunPlan(size=size, steps=steps, phases=phases, privacy=plan)


def last_weights_of(config: TrainConfig, phases: tuple[MethodPhase, ...]) -> list[float]:
    """Return the weight of each step's gradient in the final weights, from schedule and momentum.

    Adam also divides its updates by a quantity that depends on all gradients. For Adam, return the
    weight in its running mean.
    """
    steps = sum(phase.steps for phase in phases)
    rates = schedule_factors(config.scheduler, steps)
    momentum = config.optimizer.decay_of_mean
    shares, later = [0.0] * steps, 0.0
    for step in reversed(range(steps)):
        later = rates[step] + momentum * later
        shares[step] = later
    return shares


def noise_beside_independent(config: TrainConfig, plan: RunPlan) -> float | None:
    """Return the noise in the final weights relative to independent noise at the same epsilon.

    Return None if the steps are independent or if the noise was given. Both noises are calibrated
    by RDP, which is fast and equally loose for both.
    """
    guarantee, private = config.privacy.guarantee, plan.privacy
    if guarantee is None or private is None or not private.mechanism.has_streams:
        return None
    if guarantee.eps is None:
        return None
    rate, steps = private.expected_batch_size / private.num_examples, private.steps
    last_noises = []
    for mechanism in (private.mechanism, DPSGD()):
        noise, _ = calibrate_noise_multiplier(
            eps=guarantee.eps,
            delta=private.delta,
            sample_rate=mechanism.rate(rate),
            steps=mechanism.compositions((steps,)),
            accountant="rdp",
        )
        last_noises.append(noise * mechanism.last_noise(last_weights_of(config, plan.phases)))
    return last_noises[0] / last_noises[1]


def with_noise(config: TrainConfig, noise_multiplier: float | None) -> TrainConfig:
    """Return the configuration with the noise multiplier that is already known.

    The configuration is unchanged if the noise multiplier is None or the run has no guarantee.
    """
    guarantee = config.privacy.guarantee
    if guarantee is None or noise_multiplier is None:
        return config
    noise_guarantee = guarantee.replace(eps=None, total_eps=None, noise_multiplier=noise_multiplier)
    return config.replace(privacy=noise_guarantee)


def plan_without_noise(
    config: TrainConfig, size: PublicSize, steps: int, phases: tuple[MethodPhase, ...]
) -> RunPlan:
    """Return the plan of a run with ``privacy=none``, with or without clipping."""
    from dpft.privacy.plan_building import make_clipping_plan

    clips, clipping = config.privacy.clips, None
    if clips is not None:
        clipping = make_clipping_plan(
            clips,
            num_examples=size.num_examples,
            expected_batch_size=config.train.batch_size(size.num_examples),
            phases=phases,
        )
    return RunPlan(size=size, steps=steps, phases=phases, privacy=None, unnoised=clipping)


def _within_total(
    config: TrainConfig,
    guarantee: DifferentialPrivacy,
    tokenizer: SpentRun | None,
    num_examples: int,
    phases: tuple[MethodPhase, ...],
) -> DifferentialPrivacy:
    """Return the guarantee. The training gets the ε that the tokenizer has not spent.

    Raises:
        InputError: The tokenizer leaves too little, or there is no tokenizer with a ledger.
    """
    assert guarantee.total_eps is not None
    if tokenizer is None:
        raise InputError(
            "privacy.total_eps covers a training run and its tokenizer, but no model.tokenizer with"
            " a ledger is set. Set model.tokenizer to the folder of a dpft tokenizer run, or"
            " replace the key with privacy.eps.",
            key="privacy.total_eps",
            value=guarantee.total_eps,
        )
    delta = guarantee.delta
    if delta is None:
        delta = default_delta(num_examples, config.task.default_delta)
    batch, steps = config.train.batch_size(num_examples), sum(phase.steps for phase in phases)
    numbers = Numbers(
        num_examples=num_examples,
        expected_batch_size=batch,
        steps=steps,
        delta=delta,
        weights=lambda: last_weights_of(config, phases),
    )
    mechanism = config.mechanism.choose(numbers)
    noise = noise_beside(
        tokenizer,
        total_eps=guarantee.total_eps,
        delta=delta,
        sample_rate=mechanism.rate(batch / num_examples),
        steps=mechanism.compositions((steps,)),
    )
    return guarantee.replace(total_eps=None, noise_multiplier=noise)


def method_phases(config: TrainConfig, steps: int, num_examples: int) -> tuple[MethodPhase, ...]:
    """Return the phases into which the method divides a run of ``steps`` steps.

    Raises:
        InputError: The learning rates of the phases do not fit ``train.learning_rate``, or a phase
            has a clipping norm although nothing is clipped.
    """

    def steps_of_epochs(epochs: float) -> int:
        return planned_steps(
            epochs=epochs,
            num_examples=num_examples,
            expected_batch_size=config.train.batch_size(num_examples),
        )

    phases = config.method.phases(steps, steps_of_epochs)
    learning_rate_factor(phases, config.train.peak_learning_rate)
    norms = [phase for phase in phases if phase.max_grad_norm is not None]
    if norms and config.privacy.clips is None:
        raise InputError(
            f"privacy=none clips no gradient, but phase {norms[0].method} of the method has the"
            f" clipping norm {norms[0].max_grad_norm:g}. Remove one of the two, or set"
            " privacy.max_grad_norm=NORM to clip without noise.",
            key="privacy",
            value="none",
        )
    return phases


def with_batch_size(config: Config, count_rows: Callable[[], int]) -> Config:
    """Return the configuration with batch size, epochs and learning rate filled in.

    If ``train.transfer_sample_rate_from`` names another task, the batch size of that task is scaled
    to the size of this task. The sample rate, not the batch size, carries over between data sets
    (Li et al. 2022, Appendix L). Other values that are set are kept. Missing values follow from the
    method and the public number of examples. Chosen values are logged.

    Raises:
        InputError: There is no such task, or its batch size is larger than its data.
    """
    given, source = config.train, config.train.transfer_sample_rate_from
    is_open = given.epochs is None or given.learning_rate is None
    if source is None and given.expected_batch_size is not None:
        if not is_open:
            return config
        train = given.for_own_data(0, method=config.method.name, is_user_data=False)
        _announce(config, train, "")
        return config.replace(train=train)
    size = public_size(config, count_rows)
    train = given
    if source is not None:
        published = published_num_train_examples(source)
        theirs = given.batch_size(published, of=f"examples of {source}")
        batch = max(1, round(theirs / published * size.num_examples))
        logger.info("train.expected_batch_size: %d (the sample rate of %s)", batch, source)
        train = given.replace(expected_batch_size=batch, transfer_sample_rate_from=None)
    train = with_own_defaults(config.replace(train=train), size).train
    batch = train.batch_size(size.num_examples)
    train = train.replace(expected_batch_size=batch)
    if is_open or (source is None and batch < LARGEST_DEFAULT_BATCH):
        _announce(config, train, f"{size.num_examples} {size.noun} and ")
    return config.replace(train=train)


def _announce(config: TrainConfig, train: TrainingConfig, number: str) -> None:
    """Log the keys that were chosen because they were not given."""
    given = config.train
    names: list[str] = []
    if given.expected_batch_size is None and given.transfer_sample_rate_from is None:
        names.append("expected_batch_size")
    if given.epochs is None and given.steps is None:
        names.append("epochs")
    if given.learning_rate is None:
        names.append("learning_rate")
    if names:
        chosen = ", ".join(f"train.{name}={getattr(train, name):g}" for name in names)
        method = f"{number}method={config.method.name}"
        logger.info("defaults for %s: %s", method, chosen)


def with_own_defaults(config: Config, size: PublicSize) -> Config:
    """Return the configuration with batch size, epochs and learning rate in place of null."""
    train = config.train.for_own_data(
        size.num_examples, method=config.method.name, is_user_data=config.task.own_defaults
    )
    return config.replace(train=train)


def warn_of_guarantee(config: TrainConfig, plan: RunPlan) -> None:
    """Warn on stderr, before training, if the guarantee is weak or void."""
    if plan.privacy is None:
        logger.warning("%s", config.privacy.alarm)
        return
    warn_of_delta(plan.privacy)
    if config.privacy.noise_seed is not None:
        logger.warning(NOT_PRIVATE_SEED)


def warn_of_delta(plan: PrivacyPlan) -> None:
    """Warn on stderr if delta is so large that the guarantee means little."""
    for warning in delta_warnings(plan.delta, plan.num_examples, source=plan.delta_source):
        logger.warning(warning)


def warn_of_noise(plan: PrivacyPlan, trainable_parameters: int) -> None:
    """Warn on stderr if the noise is so large that it drowns the signal of the records."""
    for warning in noise_warnings(
        plan.as_independent(),
        expected_batch_size=plan.expected_batch_size,
        trainable_parameters=trainable_parameters,
    ):
        logger.warning(warning)


def announce(command: TrainCommand) -> None:
    """Log the model, task and method that will be trained, on rank 0.

    This function reads only the configuration.
    """
    if is_other_rank():
        return
    if command.resume not in (None, AUTO):
        logger.info("resuming %s: %s", command.resume, what_is_trained(command))
    else:
        logger.info("training %s", what_is_trained(command))
        say_default_method(command)


def announce_steps(config: TrainConfig, plan: RunPlan, *, taken: int) -> None:
    """Log the number of steps of this session, and the accountant that bounds epsilon."""
    accountant = ""
    if plan.privacy is not None:
        accountant = f"; epsilon is the upper bound by {leading_accountant(config, plan.privacy)}"
    logger.info("training: %d steps%s", plan.steps - taken, accountant)


def say_default_method(config: TrainConfig) -> None:
    """Log why only the head trains if that is the default, and the key that changes the default."""
    is_of_labels = config.task.own_defaults and config.task.answers == LABELS
    if is_of_labels and config.method.name == "linear_probe":
        logger.info("method: %s", DEFAULT_FOR_LABELS)


def what_is_trained(command: TrainCommand) -> str:
    """Return task, model, method and guarantee of a run, as text that follows "training".

    An example is "model=gpt2 on task=e2e by method=full, under eps=3 for each example". A model in
    a folder is named by the last name of the folder and the type in its config.json:
    "model.path=…/NAME (bert)".
    """
    start = "" if command.model.init == "pretrained" else " from random weights"
    return (
        f"{_model(command.model)}{start} on task={command.task.name}"
        f" by method={command.method.name}, {_promise(command.privacy)}"
    )


def _model(model: ModelConfig) -> str:
    if model.path is None or model.folder is None:
        return f"model={model.name}"
    path = Path(model.path)
    name = path.name if len(path.parts) == 1 else f"…/{path.name}"
    return with_kind(f"model.path={name}", model.folder)


def _promise(privacy: Privacy) -> str:
    guarantee = privacy.guarantee
    if guarantee is None:
        clips = privacy.clips
        if clips is None:
            return "without privacy"
        return f"without privacy: each example clipped at {clips.clipping_norm:g}, no noise"
    unit = f"each value of {guarantee.unit}" if guarantee.has_units else "each example"
    if guarantee.total_eps is not None:
        return f"under eps={guarantee.total_eps:g} with its tokenizer for {unit}"
    if guarantee.eps is None:
        return f"with noise_multiplier={guarantee.noise_multiplier:g} for {unit}"
    delta = "" if guarantee.delta is None else f", delta={guarantee.delta:g}"
    return f"under eps={guarantee.eps:g}{delta} for {unit}"


def curve_of_run(config: TrainConfig, plan: RunPlan) -> EpsilonCurve | None:
    """Return the curve of epsilon over the steps of a private run.

    Return None for a run without privacy, and for a synthesis, because its histogram comes first.
    """
    private = plan.privacy
    if private is None or private.counts is not None:
        return None
    leader = leading_accountant(config, private)
    curve = epsilon_curve(private.event(), leader)
    others = ", ".join(sorted(set(curve.accountants) - {leader}))
    if others:
        logger.warning("curve of epsilon over the steps: bounds by %s", others)
    steps = (min(private.steps, private.mechanism.steps_within(count)) for count in curve.steps)
    return curve.replace(steps=tuple(steps))


def leading_accountant(config: TrainConfig, plan: PrivacyPlan) -> str:
    """Return the accountant whose bound a run reports.

    This is the accountant of the calibration if there is one, else the configured one.
    """
    if plan.calibration is not None:
        return plan.calibration.accountant
    assert config.privacy.guarantee is not None
    return config.privacy.guarantee.accountant
