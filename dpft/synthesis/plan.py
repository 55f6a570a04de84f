"""The public plan of a synthesis, and the division of epsilon between its parts.

The histogram by itself spends ``privacy.share`` of epsilon. The training gets the smallest noise
multiplier with which both parts, composed by PLD at the same delta, stay within epsilon.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.commands.python_api import IN_MEMORY, TRAIN_COMMAND
from dpft.commands.task_model import TrainedModel
from dpft.config.schema import TrainCommand
from dpft.constants import OWN_DATA
from dpft.errors import InputError
from dpft.models.architecture import max_positions, read_architecture
from dpft.privacy.accounting import evaluate
from dpft.privacy.accounting.calibration import smallest_noise
from dpft.privacy.accounting.mechanism import AccountantError, Composition, SampledGaussian
from dpft.privacy.mechanisms.histogram import GaussianCounts
from dpft.privacy.plan import GIVEN, DeltaSource, check_delta, default_delta
from dpft.privacy.privacy_config import DifferentialPrivacy, NoPrivacy
from dpft.strict_model import values_of
from dpft.synthesis.config import SharedPrivacy, SynthesizeConfig
from dpft.synthesis.histogram import Condition
from dpft.synthesis.rows import RowFormat, check_tokenizer, compile_grammar

GIVEN_COLUMN, ROW_COLUMN = "__given__", "__row__"
"""Columns of the training records: the text that the model reads, and the text that it
generates."""
SECTIONS = ("model", "method", "train", "optimizer", "scheduler")
"""Sections of the configuration that also apply to the training."""
ACCOUNTANT = "pld"
"""The tightest accountant that composes different noise levels."""


@dataclass(frozen=True, kw_only=True)
class SynthesisPlan:
    """The public plan of a synthesis; see ``plan_synthesis``."""

    config: SynthesizeConfig
    """The configuration of the synthesis, with the training defaults that follow from the size
    filled in."""
    rows: RowFormat
    condition: Condition | None
    max_prompt: int
    """Maximum number of tokens of a prompt."""
    max_target: int
    """Maximum number of tokens of a target."""
    unit_definition: str
    """Description of the privacy unit, as text after "the unit is"."""
    num_examples: int
    """Number of rows or units."""
    num_examples_source: str
    delta: float | None
    """The delta of the whole synthesis; None without privacy."""
    counts: GaussianCounts | None
    """The histogram and its noise; None without a condition or without privacy."""
    noise_multiplier: float | None
    """The noise multiplier of the training; None without privacy."""

    @property
    def guarantee(self) -> SharedPrivacy | None:
        """The privacy settings; None without privacy."""
        privacy = self.config.privacy
        return privacy if isinstance(privacy, SharedPrivacy) else None

    @property
    def delta_source(self) -> DeltaSource:
        """``GIVEN``, or the rule that determines delta from the number of units."""
        is_given = self.guarantee is not None and self.guarantee.delta is not None
        return GIVEN if is_given else OWN_DATA


def row_tokenizer(config: SynthesizeConfig, rows: RowFormat) -> Any:
    """Return the tokenizer of the generator, after checking that the model can write every row.

    Raises:
        InputError: The unit is not a column, the model does not fit, or llguidance is not
            installed.
        RunError: The grammar of the schema is too large.
    """
    units = rows.schema.named.keys() - {GIVEN_COLUMN, ROW_COLUMN}
    if config.privacy.has_units and config.privacy.unit not in units:
        raise InputError(
            "privacy.unit must be a column of the schema, of type: id or type: drop, and not named"
            f" {GIVEN_COLUMN} or {ROW_COLUMN}, got {config.privacy.unit!r}.",
            key="privacy.unit",
            value=config.privacy.unit,
        )
    task = plain_training(64).task
    trained = TrainedModel(architecture=read_architecture(config.model))
    tokenizer = trained.processor(task, trained.head(task))
    check_tokenizer(tokenizer)
    length = sum(rows.longest(tokenizer)) + 2
    positions = max_positions(trained.architecture.config())
    if positions is not None and length > positions:
        raise InputError(
            f"the longest row that the schema allows has {length} tokens, but"
            f" model={config.model.name} has room for {positions}. Lower max_tokens of its texts,"
            " remove a column, or omit the column names.",
            key="model",
            value=config.model.name,
            hint="form=array",
        )
    compile_grammar(rows, tokenizer)  # fails here, before any epsilon is spent
    return tokenizer


def plan_synthesis(
    config: SynthesizeConfig,
    rows: RowFormat,
    condition: Condition | None,
    tokenizer: Any,
    num_units: int,
) -> SynthesisPlan:
    """Return the plan: the public size, the training defaults, and the noise of each part.

    Args:
        config: The configuration of the synthesis.
        rows: The format of the rows.
        condition: The cells of the histogram, if there is one.
        tokenizer: The tokenizer from ``row_tokenizer``.
        num_units: The number of rows or units in the data, which is public.

    Raises:
        InputError: The batch is larger than the data, delta is too large, the noise would exceed
            the histogram's counts, or epsilon is out of reach.
    """
    privacy = config.privacy
    given_size = getattr(privacy, "num_examples", None)
    size = num_units if given_size is None else given_size
    train = config.train.for_own_data(size, method=config.method.name, is_user_data=True)
    train = train.replace(expected_batch_size=train.batch_size(size))
    delta: float | None = None
    counts: GaussianCounts | None = None
    noise_multiplier: float | None = None
    record = plain_training(64).task.unit_definition
    unit_definition = f"one {record}"
    if isinstance(privacy, SharedPrivacy):
        unit_definition = privacy.unit_definition(record)
        delta = default_delta(size, OWN_DATA) if privacy.delta is None else privacy.delta
        check_delta(delta, num_examples=size, allow_large=privacy.allow_large_delta)
        assert privacy.eps is not None
        if condition is not None:
            counts = condition.plan(
                eps=privacy.eps, share=privacy.share, delta=delta, num_examples=size
            )
        noise_multiplier = training_noise(
            counts,
            eps=privacy.eps,
            delta=delta,
            sample_rate=train.batch_size(size) / size,
            steps=train.planned_steps(size),
        )
    max_prompt, max_target = rows.longest(tokenizer)
    return SynthesisPlan(
        config=config.replace(train=train),
        rows=rows,
        condition=condition,
        max_prompt=max_prompt,
        max_target=max_target,
        unit_definition=unit_definition,
        num_examples=size,
        num_examples_source=(
            "counted in the data" if given_size is None else "privacy.num_examples"
        ),
        delta=delta,
        counts=counts,
        noise_multiplier=noise_multiplier,
    )


def target_file(config: SynthesizeConfig, folder: Path) -> Path:
    """Return the file of the synthetic rows."""
    return folder / "synthetic.csv" if config.to is None else Path(config.to).expanduser()


def plain_training(max_length: int, weights: tuple[float, ...] = ()) -> TrainCommand:
    """Return the configuration of a training on the rows of a synthesis, without privacy.

    Args:
        max_length: Maximum number of tokens of prompt and target together.
        weights: ``RowFormat.json_weights``. If empty, all tokens have the same weight.
    """
    words = [
        "task=custom",
        f"task.json_weights=[{','.join(map(repr, weights))}]",
        f"task.prompt='{{{GIVEN_COLUMN}}}'",
        f"task.target='{{{ROW_COLUMN}}}'",
        f"task.max_length={max_length}",
        *IN_MEMORY,
        "privacy=none",
    ]
    composed = TRAIN_COMMAND.compose(words)
    command: TrainCommand = TRAIN_COMMAND.load(composed.values, composed.words)
    return command


def training_command(plan: SynthesisPlan) -> TrainCommand:
    """Return the configuration of the generator's training, with the noise of the plan."""
    config = plan.config
    weights = () if config.text_weight == 1 else plan.rows.json_weights(config.text_weight)
    plain = plain_training(plan.max_prompt + plan.max_target + 2, weights)
    kind = NoPrivacy if plan.guarantee is None else DifferentialPrivacy
    privacy = values_of(config.privacy, kind)
    if plan.guarantee is not None:
        privacy |= {
            "eps": None,
            "noise_multiplier": plan.noise_multiplier,
            "delta": plan.delta,
            "num_examples": plan.num_examples,
            "accountant": ACCOUNTANT,
        }
    return plain.replace(
        privacy=kind(**privacy),
        eval=plain.eval.replace(enabled=False),
        **{key: getattr(config, key) for key in SECTIONS},
    )


def training_noise(
    counts: GaussianCounts | None, *, eps: float, delta: float, sample_rate: float, steps: int
) -> float:
    """Return the smallest noise multiplier with which training and histogram stay within epsilon.

    Raises:
        InputError: No noise stays within epsilon.
    """
    before = []
    if counts is not None:
        noise = counts.noise_multiplier
        before = [SampledGaussian(noise_multiplier=noise, sample_rate=1.0, steps=1, delta=delta)]

    def together(noise_multiplier: float) -> float:
        training = SampledGaussian(
            noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps, delta=delta
        )
        answer = evaluate(ACCOUNTANT, Composition(parts=(training, *before)))
        assert answer.upper is not None
        return answer.upper

    try:
        return smallest_noise(together, eps, start=1.0)
    except AccountantError as error:
        raise InputError(
            f"privacy.eps={eps:g} is out of reach: {error}.", key="privacy.eps", value=eps
        ) from error
