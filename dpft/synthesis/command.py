"""``dpft synthesize``, hand-over by hand-over: schema, table, histogram, training, rows, pages.

Whatever public numbers can refuse is refused before a record is read, and whatever the records can
before noise is drawn. Then come three parts, each of which is kept when it is done: the histogram,
whose ledger line is on disk before its noise is drawn and whose noisy counts are never drawn again;
the training, a run of its own in ``training/``, which goes on as any run does; the rows, in blocks.
``resume=`` goes on with the first that is not done.
"""

import hmac
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpft.config.load import dump
from dpft.config.schema import TrainCommand
from dpft.config.synthesize import (
    CONFIGURATION,
    OpenSynthesis,
    SharedPrivacy,
    SynthesizeConfig,
)
from dpft.data.held_out import new_key
from dpft.data.memory import Rows, rows_in_memory
from dpft.errors import InputError, StateError
from dpft.files import check_writable, read_json, write_json, write_text
from dpft.kinds import OWN_DATA
from dpft.links import refuse_links
from dpft.models.architecture import read_architecture
from dpft.models.loading import quiet_transformers
from dpft.models.positions import max_positions
from dpft.privacy.accounting import Accountants
from dpft.privacy.accounting.mechanism import AccountantError, Composition, SampledGaussian
from dpft.privacy.accounting.search import smallest_noise
from dpft.privacy.keys import secret_key
from dpft.privacy.ledger import Ledger, read_ledger
from dpft.privacy.mechanisms.histogram import GaussianCounts, noisy_counts
from dpft.privacy.plan import (
    EXAMPLE,
    GIVEN,
    HistogramPlan,
    check_delta,
    default_delta,
    write_plan,
)
from dpft.run_folder import LEDGER, MODEL, hold_run, private_path
from dpft.runs import run as runs
from dpft.runs.answer import Answer
from dpft.runs.called_words import IN_MEMORY, TRAIN_COMMAND
from dpft.runs.exit_codes import crash_kept, say
from dpft.runs.folder import has_begun
from dpft.runs.trained_model import TrainedModel
from dpft.synthesis.condition import Condition, allotted, plan_counts, shares
from dpft.synthesis.draft import draft_schema
from dpft.synthesis.rows import RowFormat, check_tokenizer
from dpft.synthesis.schema import Row, Schema, read_schema
from dpft.synthesis.table import PrivateTable, read_table, source_rows

logger = logging.getLogger(__name__)
SCHEMA_FILE, COUNTS = "schema.yaml", "counts.json"
TRAINING = "training"
SYNTHETIC = "synthetic.csv"
DRAFTED = "private/draft.schema.yaml"
TABLE_KEY = "private/table_key"
GIVEN_COLUMN, ROW_COLUMN = "__given__", "__row__"
"""Columns of the records that the training reads: what of a row is given, and what is learned."""
NO_COUNTS: tuple[float, ...] = ()


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


def synthesize(config: SynthesizeConfig, folder: Path, rows: Rows | None = None) -> Answer | None:
    """Makes a synthetic table of a private one, or goes on with one that broke off.

    Args:
        config: What is asked for.
        folder: A new one, or with ``config.resume`` that one.
        rows: The private table, in place of a file.

    Returns:
        What the command prints; None of a draft, of which only the log speaks.

    Raises:
        InputError: Something does not fit.
        RunError: Training failed.
        StateError: What a synthesis left is damaged.
    """
    quiet_transformers()
    refuse_links(folder)
    with rows_in_memory(rows), crash_kept(folder):
        if config.is_draft:
            _draft(config, folder)
            return None
        if config.resume is None:
            return _begin(config, folder)
        return _go_on(config, folder)


def _draft(config: SynthesizeConfig, folder: Path) -> None:
    """Writes a schema that the data suggest into private/, for its owner to go through."""
    check_writable(folder)
    text = draft_schema(source_rows(config.data), unit=config.privacy.unit)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(private_path(folder, DRAFTED), text, mode=0o600)
    name = "schema.yaml" if config.data is None else str(_beside(config.data)[0])
    logger.info(
        "a draft is in %s: what it says comes from the data, and what you leave in it becomes"
        " public; go through it, save it as %s, and run dpft synthesize without schema=draft",
        folder / DRAFTED,
        name,
    )


def _beside(data: str) -> tuple[Path, Path]:
    """Returns where a table's schema lies unless it is named."""
    path = Path(data).expanduser()
    stem = path.name.split(".")[0] if path.name.count(".") <= 2 else path.stem
    return path.with_name(f"{stem}.schema.yaml"), path.with_name(f"{stem}.schema.json")


def schema_file(config: SynthesizeConfig) -> Path:
    """Returns the file of the schema.

    Raises:
        InputError: There is none; the sentence says how one is drafted.
    """
    if config.schema is not None:
        return Path(config.schema).expanduser()
    places: tuple[Path, ...] = () if config.data is None else _beside(config.data)
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        data = "" if config.data is None else f" data={config.data}"
        where = "" if config.data is None else f", and there is no {places[0]}"
        raise InputError(
            "dpft synthesize needs a schema, which says what is public of the table, got none"
            f"{where}; have one drafted for you to edit by dpft synthesize{data} schema=draft."
        )
    return found


def public_part(config: SynthesizeConfig, schema: Schema) -> PublicPart:
    """Returns what follows from schema and configuration alone.

    Raises:
        InputError: Condition or model do not fit; before a record is read.
    """
    condition = Condition.of(schema, config.condition) if config.condition else None
    rows = RowFormat(schema=schema, condition=config.condition, form=config.form)
    if config.privacy.has_units and config.privacy.unit not in schema.named:
        raise InputError(
            f"the unit's column {config.privacy.unit} must be in the schema, too, as type: id or"
            " type: drop."
        )
    task = TRAIN_COMMAND.compose(["task=custom", *_task_words(64), "privacy=none"])
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
    return PublicPart(
        config=config,
        schema=schema,
        rows=rows,
        condition=condition,
        max_prompt=prompt,
        max_target=target,
        tokenizer=tokenizer,
    )


def _task_words(max_length: int) -> list[str]:
    return [
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

    Args:
        counts: The histogram; None: training has epsilon for itself.
        eps: Of both together.
        delta: Of both together.
        sample_rate: Of training.
        steps: Of training.

    Raises:
        InputError: No noise keeps within it.
    """
    before = []
    if counts is not None:
        noise = counts.noise_multiplier
        before = [SampledGaussian(noise_multiplier=noise, sample_rate=1.0, steps=1, delta=delta)]

    with Accountants() as accountants:

        def together(noise_multiplier: float) -> float:
            own = SampledGaussian(
                noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps, delta=delta
            )
            found = accountants.evaluate("pld", Composition(parts=(own, *before)))
            assert found.upper is not None
            return found.upper

        try:
            return smallest_noise(together, eps, start=1.0)
        except AccountantError as error:
            raise InputError(f"privacy.eps={eps:g} is out of reach: {error}.") from error


def _begin(config: SynthesizeConfig, folder: Path) -> Answer:
    place = schema_file(config)
    part = public_part(config, read_schema(place))
    _refuse_used(folder)
    target = target_file(config, folder)
    if target.exists():
        raise InputError(f"to must be a new file, got {str(target)!r}, which exists.")
    part, table = _with_table(part)
    budget = plan_budget(part, table)
    key = new_key()
    sides = table.sides(config.eval.held_out, key)
    folder.mkdir(parents=True, exist_ok=True)
    with hold_run(folder):
        _refuse_used(folder)
        text = place.read_text(encoding="utf-8-sig")
        write_text(folder / SCHEMA_FILE, text)
        lines = f"{key.hex()}\n{table.fingerprint(key)}\n"
        write_text(private_path(folder, TABLE_KEY), lines, mode=0o600)
        dump(replace(config, resume=None), folder / CONFIGURATION)
        logger.info("synthesis: %s", folder)
        return _finish(part, table, budget, sides, folder)


def _go_on(config: SynthesizeConfig, folder: Path) -> Answer:
    part = public_part(config, read_schema(folder / SCHEMA_FILE))
    with hold_run(folder):
        part, table = _with_table(part)
        budget = plan_budget(part, table)
        path = folder / TABLE_KEY
        try:
            known, before = path.read_text(encoding="ascii").split("\n")[:2]
            key = bytes.fromhex(known)
        except (OSError, ValueError):
            raise StateError(f"{path} is gone or damaged; put it back as it was.") from None
        if not hmac.compare_digest(table.fingerprint(key), before):
            raise InputError(
                "resume needs the table that the synthesis was begun with, got another; give the"
                " same rows in the same order, or begin anew."
            )
        sides = table.sides(config.eval.held_out, key)
        return _finish(part, table, budget, sides, folder)


def target_file(config: SynthesizeConfig, folder: Path) -> Path:
    """Returns where the synthetic rows go."""
    return folder / SYNTHETIC if config.to is None else Path(config.to).expanduser()


def _refuse_used(folder: Path) -> None:
    for name in (CONFIGURATION, LEDGER, TRAINING):
        if (folder / name).exists():
            raise InputError(
                f"{folder / name} exists: go on with it by dpft synthesize resume={folder}, or"
                " choose another folder with hydra.run.dir=DIR."
            )
    check_writable(folder)


def _with_table(part: PublicPart) -> tuple[PublicPart, PrivateTable]:
    """Returns the table, and the public part with the training that goes with its public size."""
    config = part.config
    table = read_table(
        source_rows(config.data), part.schema, unit=config.privacy.unit, invalid=config.invalid
    )
    cut = tuple(None if row is None else part.rows.cut(row, part.tokenizer) for row in table.rows)
    table = replace(table, rows=cut)
    chosen = with_chosen_training(config, size_of(part, table)[0])
    return replace(part, config=chosen), table


def _finish(
    part: PublicPart,
    table: PrivateTable,
    budget: Budget,
    sides: tuple[Sequence[int], Sequence[int]],
    folder: Path,
) -> Answer:
    from dpft.synthesis.generator import forget_blocks, generate_rows
    from dpft.synthesis.outcome import write_outcome

    kept, held = sides
    with _hint(folder):
        noisy = NO_COUNTS
        if part.condition is not None:
            noisy = _histogram(part, table, budget, kept, folder)
        _train(part, table, budget, kept, folder / TRAINING)
        wanted = part.config.num or budget.num_examples
        cells: list[Mapping[str, Any]] = [{}] * wanted
        if part.condition is not None:
            numbers = allotted(shares(noisy), wanted)
            cells = [part.condition.row(at) for at, n in enumerate(numbers) for _ in range(n)]
        drawn = generate_rows(part, cells, folder)
        target = target_file(part.config, folder)
        write_outcome(part, table, budget, sides, drawn, folder, target)
        forget_blocks(folder)
    return answer(folder, target)


def answer(folder: Path, target: Path) -> Answer:
    """Returns what the command prints of a synthesis."""
    from dpft.synthesis.outcome import read_statement

    said = read_statement(folder)
    rows = [("synthetic rows", f"{said.rows} in {target}")]
    return Answer(table="\n".join(f"{a}: {b}" for a, b in rows), record=said)


@contextmanager
def _hint(folder: Path) -> Iterator[None]:
    try:
        yield
    except (InputError, StateError):
        raise
    except BaseException:
        say(f"to go on: dpft synthesize resume={folder}")
        raise


def _histogram(
    part: PublicPart, table: PrivateTable, budget: Budget, kept: Sequence[int], folder: Path
) -> tuple[float, ...]:
    """Returns the noisy counts: those that are kept, or new ones, whose ledger line comes first.

    Raises:
        StateError: The ledger says that noise was drawn and the counts are gone, or were changed.
    """
    condition, path = part.condition, folder / COUNTS
    assert condition is not None
    if part.guarantee is None:
        path = private_path(folder, COUNTS)
    if path.exists():
        return _kept_counts(path, folder / LEDGER, budget)
    units = ((table.units[at], condition.place(_row(table, at))) for at in kept)
    counts = condition.count(units)
    if budget.counts is None or part.guarantee is None:
        write_json(path, {"counts": counts.tolist()}, mode=0o600)
        return tuple(counts.tolist())
    if (folder / LEDGER).exists() and read_ledger(folder / LEDGER).counted_steps == 0:
        (folder / LEDGER).unlink()  # It broke off before a step's line: no noise was drawn.
    if (folder / LEDGER).exists():
        raise StateError(
            f"{folder / LEDGER} has the line of a histogram whose counts were never written: its"
            " epsilon stands spent, and noise is not drawn twice. Begin anew in another folder, and"
            " compose both by dpft account runs=[FIRST,SECOND]."
        )
    step = {
        **budget.counts.entry(),
        "num_examples": budget.num_examples,
        "num_examples_source": budget.source,
    }
    plan = HistogramPlan(
        histogram=step,
        num_examples=budget.num_examples,
        delta=budget.counts.delta,
        delta_source=delta_source(part),
        unit=part.guarantee.unit,
        unit_definition=unit_definition(part),
        reproducible=part.guarantee.noise_seed is not None,
        data_id=part.guarantee.data_id,
    )
    key = secret_key("condition", part.guarantee.noise_seed)
    with Ledger(folder / LEDGER, plan=write_plan(plan)) as ledger:
        ledger.append(1, step)
        noisy = noisy_counts(counts, budget.counts.noise_std, key)
        write_json(path, {"counts": noisy.tolist(), "run_id": ledger.run_id, "head": ledger.head})
        ledger.close()
    return tuple(noisy.tolist())


def _kept_counts(path: Path, ledger: Path, budget: Budget) -> tuple[float, ...]:
    """Returns counts that were written, once the ledger is known to be theirs, and closed."""
    content = read_json(path)
    found = content.get("counts")
    if not isinstance(found, list) or not all(isinstance(each, int | float) for each in found):
        raise StateError(f"{path} is damaged; put it back as it was.")
    if budget.counts is None:
        return tuple(map(float, found))
    if not ledger.exists():
        raise StateError(f"{ledger} is gone, so that what the histogram spent is not known.")
    record = read_ledger(ledger)
    if record.run_id != content.get("run_id") or content.get("head") not in record.heads:
        raise StateError(f"{path} is not what {ledger} is of; put both back as they were.")
    entry = {**budget.counts.entry()}
    if record.steps != 1 or any(record.mechanisms[0].get(key) != entry[key] for key in entry):
        raise StateError(f"{ledger} is of another histogram; put it back as it was.")
    if len(found) != budget.counts.cells:
        raise StateError(f"{path} has another number of cells; put it back as it was.")
    if not record.closed:
        with Ledger.reopen(ledger, record) as open_ledger:
            open_ledger.close()
    return tuple(map(float, found))


def _row(table: PrivateTable, at: int) -> Row:
    row = table.rows[at]
    assert row is not None
    return row


def delta_source(part: PublicPart) -> str:
    """Returns ``GIVEN``, or the rule by which delta follows from the number of units."""
    guarantee = part.guarantee
    return OWN_DATA if guarantee is None or guarantee.delta is None else GIVEN


def unit_definition(part: PublicPart) -> str:
    """Returns what the unit is, in words that follow "the unit is"."""
    privacy = part.config.privacy
    if privacy.unit == EXAMPLE:
        return "one row of the table"
    return f"all rows with one value of {privacy.unit}"


def _train(
    part: PublicPart, table: PrivateTable, budget: Budget, kept: Sequence[int], folder: Path
) -> None:
    """Trains the generator, a run in a folder of its own; goes on with one that broke off."""
    records = [_record(part, table, at) for at in kept]
    with rows_in_memory(records):
        if (folder / MODEL).is_dir() or has_begun(folder):
            composed = TRAIN_COMMAND.compose([f"resume={folder}"])
            command = TRAIN_COMMAND.load(composed.values, composed.words)
        else:
            command = _training(part, budget)
        runs.run(command, folder)


def _record(part: PublicPart, table: PrivateTable, at: int) -> dict[str, str]:
    row = _row(table, at)
    record = {GIVEN_COLUMN: part.rows.prompt(row), ROW_COLUMN: part.rows.target(row)}
    if part.config.privacy.has_units:
        record[part.config.privacy.unit] = table.units[at]
    return record


def _training(part: PublicPart, budget: Budget) -> TrainCommand:
    config = part.config
    words = ["task=custom", *_task_words(part.max_prompt + part.max_target + 2), "privacy=none"]
    composed = TRAIN_COMMAND.compose(words)
    plain: TrainCommand = TRAIN_COMMAND.load(composed.values, composed.words)
    assert isinstance(config.privacy, SharedPrivacy | OpenSynthesis)
    privacy = config.privacy.training
    if part.guarantee is not None:
        privacy = replace(
            part.guarantee.training,
            eps=None,
            noise_multiplier=budget.noise_multiplier,
            delta=budget.delta,
            num_examples=budget.num_examples,
        )
    return replace(
        plain,
        model=config.model,
        method=config.method,
        privacy=privacy,
        train=config.train,
        optimizer=config.optimizer,
        scheduler=config.scheduler,
        eval=replace(plain.eval, enabled=False),
    )
