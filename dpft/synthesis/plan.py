"""What is fixed before noise is drawn: the public plan, and how one epsilon is divided.

The histogram spends ``privacy.share`` of epsilon by itself. The training gets the least noise with
which both together, composed by PLD at the same delta, keep within epsilon.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpft.commands.python_api import IN_MEMORY, TRAIN_COMMAND
from dpft.commands.task_model import TrainedModel
from dpft.config.schema import TrainCommand
from dpft.errors import InputError
from dpft.kinds import OWN_DATA
from dpft.models.architecture import max_positions, read_architecture
from dpft.privacy.accounting import evaluate
from dpft.privacy.accounting.calibration import smallest_noise
from dpft.privacy.accounting.mechanism import AccountantError, Composition, SampledGaussian
from dpft.privacy.mechanisms.histogram import GaussianCounts
from dpft.privacy.plan import GIVEN, DeltaSource, check_delta, default_delta
from dpft.synthesis.config import SharedPrivacy, SynthesizeConfig
from dpft.synthesis.histogram import Condition
from dpft.synthesis.rows import RowFormat, check_tokenizer, compile_grammar
from dpft.synthesis.schema import Schema

GIVEN_COLUMN, ROW_COLUMN = "__given__", "__row__"
"""Columns of the training's records: what the model reads of a row, and what it writes."""
ACCOUNTANT = "pld"
"""The tightest accountant that composes different noise."""


@dataclass(frozen=True, kw_only=True)
class PublicPart:
    """The public plan of a synthesis."""

    config: SynthesizeConfig
    schema: Schema
    rows: RowFormat
    condition: Condition | None
    max_prompt: int
    """Most tokens of a prompt."""
    max_target: int
    """Most tokens of a target."""
    tokenizer: Any
    record: str
    """What a record is, in words that follow "one"."""
    num_examples: int = 0
    """Number of rows, or units; 0 until it is known."""
    num_examples_source: str = ""
    delta: float | None = None
    counts: GaussianCounts | None = None
    """The histogram and its noise; None without condition or privacy."""
    noise_multiplier: float | None = None
    """Of the training; None without privacy."""

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

    @property
    def unit_definition(self) -> str:
        """What the unit is, in words that follow "the unit is"."""
        if self.guarantee is None:
            return f"one {self.record}"
        return self.guarantee.unit_definition(self.record)


def public_part(config: SynthesizeConfig, schema: Schema) -> PublicPart:
    """Return what follows from schema and configuration alone.

    Raises:
        InputError: Condition or model do not fit, or llguidance is not installed.
        RunError: The schema makes too large a grammar.
    """
    condition = Condition.of(schema, config.condition) if config.condition else None
    rows = RowFormat(schema=schema, condition=config.condition, form=config.form)
    units = schema.named.keys() - {GIVEN_COLUMN, ROW_COLUMN}
    if config.privacy.has_units and config.privacy.unit not in units:
        raise InputError(
            "privacy.unit must be a column of the schema, of type: id or type: drop, and not named"
            f" {GIVEN_COLUMN} or {ROW_COLUMN}, got {config.privacy.unit!r}."
        )
    known = plain_training(64).task
    trained = TrainedModel(architecture=read_architecture(config.model))
    tokenizer = trained.processor(known, trained.head(known))
    check_tokenizer(tokenizer)
    prompt, target = rows.longest(tokenizer)
    positions = max_positions(trained.architecture.config())
    if positions is not None and prompt + target + 2 > positions:
        raise InputError(
            f"the longest row that the schema allows has {prompt + target + 2} tokens, and"
            f" model={config.model.name} has room for {positions}; lower max_tokens of its texts,"
            " drop a column, or set form=array."
        )
    compile_grammar(rows, tokenizer)  # fails before anything is spent
    return PublicPart(
        config=config,
        schema=schema,
        rows=rows,
        condition=condition,
        max_prompt=prompt,
        max_target=target,
        tokenizer=tokenizer,
        record=known.unit_definition,
    )


def target_file(config: SynthesizeConfig, folder: Path) -> Path:
    """Return the file of the synthetic rows."""
    return folder / "synthetic.csv" if config.to is None else Path(config.to).expanduser()


def plain_training(max_length: int, weights: tuple[float, ...] = ()) -> TrainCommand:
    """Return a training on the records of a synthesis, without privacy.

    Args:
        max_length: Most tokens of prompt and target together.
        weights: ``RowFormat.json_weights``; empty: all tokens have the same weight.
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


def with_noise(part: PublicPart, num_units: int) -> PublicPart:
    """Return the plan with the public size, the training's defaults, and the noise of each part.

    Raises:
        InputError: The batch is larger than the data, delta is too large, the histogram would be
            all noise, or epsilon is out of reach.
    """
    config, guarantee = part.config, part.guarantee
    given = getattr(config.privacy, "num_examples", None)
    size = num_units if given is None else given
    train = config.train.for_own_data(size, method=config.method.name, own=True)
    train = train.replace(expected_batch_size=train.batch_size(size))
    source = "counted in the data" if given is None else "privacy.num_examples"
    part = replace(
        part,
        config=config.replace(train=train),
        num_examples=size,
        num_examples_source=source,
    )
    if guarantee is None:
        return part
    delta = default_delta(size, OWN_DATA) if guarantee.delta is None else guarantee.delta
    check_delta(delta, num_examples=size, allow_large=guarantee.allow_large_delta)
    assert guarantee.eps is not None
    counts = None
    if part.condition is not None:
        counts = part.condition.plan(
            eps=guarantee.eps, share=guarantee.share, delta=delta, num_examples=size
        )
    steps, rate = train.planned_steps(size), train.batch_size(size) / size
    noise = training_noise(counts, eps=guarantee.eps, delta=delta, sample_rate=rate, steps=steps)
    return replace(part, delta=delta, counts=counts, noise_multiplier=noise)


def training_noise(
    counts: GaussianCounts | None, *, eps: float, delta: float, sample_rate: float, steps: int
) -> float:
    """Return the least noise of the training with which it and the histogram keep within epsilon.

    Raises:
        InputError: No noise keeps within it.
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
        raise InputError(f"privacy.eps={eps:g} is out of reach: {error}.") from error
