"""What is fixed before noise is drawn: the public part, and how one epsilon is divided.

Everything here follows from the schema, the configuration and the public number of rows or units.
The histogram spends ``privacy.share`` of epsilon by itself; training gets the least noise with
which both together, composed by PLD at the same delta, keep within epsilon. Since noise adds up in
squares, a share of 5 % costs the training far less than that.
"""

from dataclasses import dataclass, replace
from typing import Any

from dpft.config.synthesize import OpenSynthesis, SharedPrivacy, SynthesizeConfig
from dpft.errors import InputError
from dpft.kinds import OWN_DATA
from dpft.models.architecture import max_positions, read_architecture
from dpft.privacy.accounting import evaluate
from dpft.privacy.accounting.calibration import smallest_noise
from dpft.privacy.accounting.mechanism import AccountantError, Composition, SampledGaussian
from dpft.privacy.mechanisms.histogram import GaussianCounts
from dpft.privacy.plan import GIVEN, check_delta, default_delta
from dpft.runs.api import IN_MEMORY, TRAIN_COMMAND
from dpft.runs.task_model import TrainedModel
from dpft.synthesis.condition import Condition, plan_counts
from dpft.synthesis.decoding import RowGrammar
from dpft.synthesis.rows import RowFormat, check_tokenizer
from dpft.synthesis.schema import Schema
from dpft.synthesis.table import PrivateTable

SCHEMA_FILE, COUNTS = "schema.yaml", "counts.json"
SYNTHETIC = "synthetic.csv"
DRAFTED = "private/draft.schema.yaml"
TABLE_KEY = "private/table_key"
GIVEN_COLUMN, ROW_COLUMN = "__given__", "__row__"
"""Columns of the records that the training reads: what of a row is given, and what is learned."""


ACCOUNTANT = "pld"
"""Whose bound of both parts is kept within epsilon: the tightest that composes different noise."""


@dataclass(frozen=True, kw_only=True)
class PublicPart:
    """What is known of a synthesis before a record is read."""

    config: SynthesizeConfig
    schema: Schema
    rows: RowFormat
    condition: Condition | None
    max_prompt: int
    """Most tokens of what is given."""
    max_target: int
    """Most tokens of what is written."""
    tokenizer: Any
    record: str
    """What a record is, in words that follow "one"."""

    @property
    def guarantee(self) -> SharedPrivacy | None:
        """The promise; None without one."""
        privacy = self.config.privacy
        return privacy if isinstance(privacy, SharedPrivacy) else None


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much noise each part gets; all of it public."""

    num_examples: int
    source: str
    delta: float | None = None
    counts: GaussianCounts | None = None
    noise_multiplier: float | None = None
    """Of training; None without privacy."""


def public_part(config: SynthesizeConfig, schema: Schema) -> PublicPart:
    """Returns what follows from schema and configuration alone.

    Raises:
        InputError: Condition or model do not fit, or llguidance is not installed; before a record
            is read.
        RunError: The schema makes too large a grammar.
    """
    condition = Condition.of(schema, config.condition) if config.condition else None
    rows = RowFormat(schema=schema, condition=config.condition, form=config.form)
    if config.privacy.has_units and config.privacy.unit not in schema.named:
        raise InputError(
            f"the unit's column {config.privacy.unit} must be in the schema, too, as type: id or"
            " type: drop."
        )
    if config.privacy.unit in (GIVEN_COLUMN, ROW_COLUMN):
        raise InputError(
            f"privacy.unit may not be the column {config.privacy.unit}, a name that the training's"
            " own records have; rename the column."
        )
    task = TRAIN_COMMAND.compose(["task=custom", *task_words(64), "privacy=none"])
    known = TRAIN_COMMAND.load(task.values, task.words).task
    trained = TrainedModel(architecture=read_architecture(config.model))
    head = trained.head(known)
    tokenizer = trained.processor(known, head)
    check_tokenizer(tokenizer)
    prompt, target = rows.longest(tokenizer)
    positions = max_positions(trained.architecture.config())
    if positions is not None and prompt + target + 2 > positions:
        raise InputError(
            f"the longest row that the schema allows has {prompt + target + 2} tokens, and"
            f" model={config.model.name} has room for {positions}; lower max_tokens of its texts,"
            " drop a column, or set form=array."
        )
    RowGrammar(rows, tokenizer)  # What it refuses is refused before anything is spent.
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


def task_words(max_length: int, weights: tuple[float, ...] = ()) -> list[str]:
    """Returns the words by which the training reads what is given of a row, and what is learned.

    Args:
        max_length: Most tokens of both.
        weights: ``RowFormat.json_weights``; none: all tokens count alike.
    """
    return [
        f"task.json_weights=[{','.join(map(repr, weights))}]",
        f"task.prompt='{{{GIVEN_COLUMN}}}'",
        f"task.target='{{{ROW_COLUMN}}}'",
        f"task.max_length={max_length}",
        *IN_MEMORY,
    ]


def size_of(part: PublicPart, table: PrivateTable) -> tuple[int, str]:
    """Returns the public number of units, and who says it."""
    given = part.config.privacy
    if isinstance(given, SharedPrivacy | OpenSynthesis) and given.num_examples is not None:
        return given.num_examples, "privacy.num_examples"
    return table.num_units, "counted in the data"


def with_chosen_training(config: SynthesizeConfig, num_examples: int) -> SynthesizeConfig:
    """Returns the configuration with the batch, epochs and learning rate that null stands for."""
    train = config.train.for_own_data(num_examples, method=config.method.name, own=True)
    batch = train.batch_size(num_examples)
    return replace(config, train=replace(train, expected_batch_size=batch))


def plan_budget(part: PublicPart, table: PrivateTable) -> Budget:
    """Returns how the noise is divided, from the number of units and configuration alone.

    Raises:
        InputError: The batch is larger than the data, delta promises nothing, the histogram would
            be all noise, or epsilon is out of reach.
    """
    config, guarantee = part.config, part.guarantee
    size, source = size_of(part, table)
    if guarantee is None:
        return Budget(num_examples=size, source=source)
    delta = guarantee.delta
    if delta is None:
        delta = default_delta(size, OWN_DATA)
    check_delta(delta, num_examples=size, allow_large=guarantee.allow_large_delta)
    assert guarantee.eps is not None
    counts = None
    if part.condition is not None:
        counts = plan_counts(part.condition, eps=guarantee.eps, share=guarantee.share, delta=delta)
        part.condition.check_worth(counts, size)
    steps = config.train.planned_steps(size)
    rate = config.train.batch_size(size) / size
    noise = training_noise(counts, eps=guarantee.eps, delta=delta, sample_rate=rate, steps=steps)
    return Budget(
        num_examples=size, source=source, delta=delta, counts=counts, noise_multiplier=noise
    )


def training_noise(
    counts: GaussianCounts | None, *, eps: float, delta: float, sample_rate: float, steps: int
) -> float:
    """Returns the least noise of training with which it and the histogram keep within epsilon.

    Raises:
        InputError: No noise keeps within it.
    """
    before = []
    if counts is not None:
        noise = counts.noise_multiplier
        before = [SampledGaussian(noise_multiplier=noise, sample_rate=1.0, steps=1, delta=delta)]

    def together(noise_multiplier: float) -> float:
        own = SampledGaussian(
            noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps, delta=delta
        )
        found = evaluate(ACCOUNTANT, Composition(parts=(own, *before)))
        assert found.upper is not None
        return found.upper

    try:
        return smallest_noise(together, eps, start=1.0)
    except AccountantError as error:
        raise InputError(f"privacy.eps={eps:g} is out of reach: {error}.") from error


def delta_source(part: PublicPart) -> str:
    """Returns ``GIVEN``, or the rule by which delta follows from the number of units."""
    guarantee = part.guarantee
    return OWN_DATA if guarantee is None or guarantee.delta is None else GIVEN


def unit_definition(part: PublicPart) -> str:
    """Returns what the unit is, in words that follow "the unit is": the training's own."""
    guarantee = part.guarantee
    return f"one {part.record}" if guarantee is None else guarantee.unit_definition(part.record)
