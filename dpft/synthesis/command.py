"""``dpft synthesize``, in the shell or Python: schema, table, histogram, training, rows, pages.

Whatever public numbers can refuse is refused before a record is read, and whatever the records can
before noise is drawn. Then come three parts, each of which is kept when it is done: the histogram,
whose ledger line is on disk before its noise is drawn and whose noisy counts are never drawn again;
the training, a run of its own in ``training/``, which goes on as any run does; the rows, in blocks.
``resume=`` goes on with the first that is not done.
"""

import hmac
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dpft.config.composing import given_text
from dpft.config.keys import in_shell
from dpft.config.load import dump
from dpft.config.schema import TrainCommand, TrainConfig
from dpft.config.synthesize import (
    OpenSynthesis,
    SharedPrivacy,
    SynthesizeConfig,
    configuration,
    expand,
)
from dpft.data.raw_rows import MEMORY, Rows, file_rows, rows_in_memory
from dpft.data.raw_rows import Row as SourceRow
from dpft.data.training_records import new_key
from dpft.errors import InputError, RunError, StateError
from dpft.files import (
    CHECKPOINTS,
    LEDGER,
    MODEL,
    SYNTHESIS,
    TRAINING,
    check_writable,
    hold_run,
    private_path,
    read_json,
    refuse_links,
    write_json,
    write_text,
)
from dpft.models.architecture import read_architecture
from dpft.models.loading import quiet_transformers
from dpft.privacy.cipher import secret_key
from dpft.privacy.ledger import Ledger, read_ledger
from dpft.privacy.mechanisms.histogram import noisy_counts
from dpft.privacy.plan import HistogramPlan, write_plan
from dpft.records.form import as_json
from dpft.reports.terminal import Figures
from dpft.runs import run as runs
from dpft.runs.api import TRAIN_COMMAND, Command, Folder, as_word, checked_words
from dpft.runs.composition import spent_before
from dpft.runs.exit_codes import crash_kept, say
from dpft.runs.folder import has_begun
from dpft.runs.run_cost import planned_model
from dpft.runs.run_plan import RunPlan, plan_run
from dpft.runs.saved_run import read_spent, read_spent_of_synthesis
from dpft.runs.task_model import fitted_to, training_head
from dpft.synthesis.condition import allotted, shares
from dpft.synthesis.generator import BLOCKS, generate_rows
from dpft.synthesis.outcome import Finished, digest, finished, is_whole, write_outcome
from dpft.synthesis.plan import (
    ACCOUNTANT,
    COUNTS,
    DRAFTED,
    GIVEN_COLUMN,
    ROW_COLUMN,
    SCHEMA_FILE,
    SYNTHETIC,
    TABLE_KEY,
    Budget,
    PublicPart,
    delta_source,
    plan_budget,
    public_part,
    size_of,
    task_words,
    unit_definition,
    with_chosen_training,
)
from dpft.synthesis.schema import Row, draft_schema, read_schema
from dpft.synthesis.table import PrivateTable, read_table, source_rows

if TYPE_CHECKING:
    import datasets
    import pandas


logger = logging.getLogger(__name__)


def make_table(config: SynthesizeConfig, folder: Path, rows: Rows | None = None) -> Finished | None:
    """Makes a synthetic table of a private one, or goes on with one that broke off.

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
    text = draft_schema(source_rows(config.data or ""), unit=config.privacy.unit)
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


def _begin(config: SynthesizeConfig, folder: Path) -> Finished:
    rows = source_rows(config.data or "")
    place = schema_file(config)
    schema = read_schema(place)
    _refuse_used(folder)
    target = target_file(config, folder)
    if target.exists():
        raise InputError(f"to must be a new file, got {str(target)!r}, which exists.")
    if config.to is not None and not target.parent.is_dir():
        raise InputError(
            f"to must be in a folder that is there, got {str(target)!r}; make {target.parent}."
        )
    part, table = _with_table(public_part(config, schema), rows)
    budget = plan_budget(part, table)
    # what does not go together is refused before the histogram spends anything
    training = _training(part, budget)
    architecture = read_architecture(training.model)
    fitted = fitted_to(training, architecture)
    model, _ = planned_model(fitted, architecture, training_head(fitted, architecture))
    if training.privacy.clips is not None:
        training.privacy.clips.clipping_options(training.train.backward_scale).resolved(model)
    key = new_key()
    sides = table.sides(config.eval.held_out, key)
    folder.mkdir(parents=True, exist_ok=True)
    with hold_run(folder):
        _refuse_used(folder)
        text = place.read_text(encoding="utf-8-sig")
        write_text(folder / SCHEMA_FILE, text)
        lines = f"{key.hex()}\n{table.fingerprint(key)}\n"
        write_text(private_path(folder, TABLE_KEY), lines, mode=0o600)
        dump(replace(config, resume=None), folder / SYNTHESIS)
        logger.info("synthesis: %s", folder)
        return _finish(part, table, budget, sides, folder)


def _go_on(config: SynthesizeConfig, folder: Path) -> Finished:
    target = target_file(config, folder)
    if is_whole(folder, target):
        logger.info("the synthesis in %s has ended; nothing is left to do", folder)
        return finished(folder, target)
    rows = source_rows(config.data or "")
    part = public_part(config, read_schema(folder / SCHEMA_FILE))
    with hold_run(folder):
        part, table = _with_table(part, rows)
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
    for name in (SYNTHESIS, LEDGER, TRAINING):
        if (folder / name).exists():
            raise InputError(
                f"{folder / name} exists: go on with it by dpft synthesize"
                f" {in_shell('resume', folder)}, or choose another folder with hydra.run.dir=DIR."
            )
    check_writable(folder)


def _with_table(part: PublicPart, rows: Iterator[SourceRow]) -> tuple[PublicPart, PrivateTable]:
    """Returns the table, and the public part with the training that goes with its public size."""
    config = part.config
    table = read_table(rows, part.schema, unit=config.privacy.unit, invalid=config.invalid)
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
) -> Finished:
    kept, held = sides
    with _hint(folder):
        noisy: tuple[float, ...] = ()
        if part.condition is not None:
            noisy = _histogram(part, table, budget, kept, folder)
        _train(part, table, budget, kept, folder)
        wanted = part.config.num or budget.num_examples
        cells: list[Mapping[str, Any]] = [{}] * wanted
        if part.condition is not None:
            numbers = allotted(shares(noisy), wanted)
            cells = [part.condition.row(at) for at, n in enumerate(numbers) for _ in range(n)]
        drawn = generate_rows(part, cells, folder)
        if not drawn.rows:
            raise RunError(
                f"none of {wanted} rows kept the schema's rules in {1 + part.config.retries}"
                " attempts, and all were given up; begin anew with rules that are kept more often,"
                " or with more training. What was spent stands in the ledgers."
            )
        target = target_file(part.config, folder)
        write_outcome(part, table, budget, sides, drawn, folder, target)
        shutil.rmtree(folder / BLOCKS, ignore_errors=True)  # their rows are in the table
    return finished(folder, target)


@contextmanager
def _hint(folder: Path) -> Iterator[None]:
    try:
        yield
    except (InputError, StateError):
        raise
    except BaseException:
        training = folder / TRAINING
        if (training / MODEL).is_dir() or not (training / CHECKPOINTS).is_dir():
            say(
                f"to go on: dpft synthesize {in_shell('resume', folder)}"
            )  # else the training said so
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
    if (folder / TRAINING).exists():
        raise StateError(
            f"{path} is gone, and a training of its counts has begun: noise is not drawn twice. Put"
            f" it back as it was, with {folder / LEDGER}."
        )
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
        ledger.close(released=digest(path))
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
    if len(found) != budget.counts.cells or record.released not in (None, digest(path)):
        raise StateError(f"{path} is not what was released under noise; put it back as it was.")
    if not record.closed:
        with Ledger.reopen(ledger, record) as open_ledger:
            open_ledger.close(released=digest(path))
    return tuple(map(float, found))


def _row(table: PrivateTable, at: int) -> Row:
    row = table.rows[at]
    assert row is not None
    return row


def _train(
    part: PublicPart, table: PrivateTable, budget: Budget, kept: Sequence[int], folder: Path
) -> None:
    """Trains the generator, a run in a folder of its own; goes on with one that broke off.

    Its plan, the first line of its ledger, names the histogram, so that what both spent follows
    from that ledger alone.

    Raises:
        StateError: The training that goes on names another histogram.
    """
    records = []
    for at in kept:
        row = _row(table, at)
        records.append({GIVEN_COLUMN: part.rows.prompt(row), ROW_COLUMN: part.rows.target(row)})
        if part.config.privacy.has_units:
            records[-1][part.config.privacy.unit] = table.units[at]
    training = folder / TRAINING
    counts = None if budget.counts is None else spent_before(read_spent(str(folder)))

    def planner(config: TrainConfig, count_units: Callable[[], int]) -> RunPlan:
        plan = plan_run(config, count_units)
        if plan.privacy is None:
            return plan
        return replace(plan, privacy=replace(plan.privacy, counts=counts))

    with rows_in_memory(records):
        if (training / MODEL).is_dir() or has_begun(training):
            if counts is not None:
                read_spent_of_synthesis(str(folder))
            composed = TRAIN_COMMAND.compose([f"resume={training}"])
            command = TRAIN_COMMAND.load(composed.values, composed.words)
        else:
            command = _training(part, budget)
        runs.run(command, training, planner=planner)


def _training(part: PublicPart, budget: Budget) -> TrainCommand:
    config = part.config
    weights = () if config.text_weight == 1 else part.rows.json_weights(config.text_weight)
    longest = part.max_prompt + part.max_target + 2
    words = ["task=custom", *task_words(longest, weights), "privacy=none"]
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
            accountant=ACCOUNTANT,
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


COMMAND = Command("synthesize", SynthesizeConfig, configuration)


@dataclass(frozen=True, kw_only=True)
class Synthesized:
    """A synthetic table, and where everything lies."""

    rows: "datasets.Dataset" = field(repr=False)
    """The synthetic rows."""
    path: Path
    """Their file."""
    folder: Path
    """Of the synthesis; its private/ is for the owner alone."""
    statement: Figures = field(repr=False)
    """What may be released with the rows: ``.statement.epsilon``."""

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns the rows as a frame of pandas."""
        frame: pandas.DataFrame = self.rows.to_pandas()
        return frame


def synthesize(
    rows: Folder | Rows | None = None,
    overrides: Sequence[str] = (),
    *,
    schema: Folder | Mapping[str, Any] | None = None,
    privacy: Mapping[str, Any] | None = None,
    folder: Folder | None = None,
    **settings: Any,
) -> Synthesized:
    """Makes a synthetic table of a private one, as ``dpft synthesize`` does.

    Examples:
        >>> made = dpft.synthesize(  # doctest: +SKIP
        ...     "notes.csv", schema="notes.schema.yaml", privacy={"eps": 8}, num=5000
        ... )
        >>> made.to_pandas(), made.statement.epsilon  # doctest: +SKIP

    Args:
        rows: The private table: a file, a data set, a frame, or mappings. None: the words say
            where it is, or what to go on with.
        overrides: As on the command line, such as ``model=tiny``.
        schema: What is public of it: a file, or what such a file holds.
        privacy: Keys of the section ``privacy``: ``{"eps": 8, "unit": "customer_id"}``.
        folder: Of the synthesis; None: a new one under ``outputs/``.
        settings: Other keys of the command, such as ``num`` and ``condition``.

    Raises:
        InputError: Anything does not fit.
        RunError: Training failed.
        StateError: What a synthesis that goes on left is damaged.
    """
    in_memory = None if rows is None or isinstance(rows, str | os.PathLike) else rows
    words = list(checked_words(overrides, None))
    if rows is not None and given_text(words, "resume") is None:
        words.append(f"data={as_word(MEMORY if in_memory is not None else rows)}")
    words += [f"privacy.{key}={_word(value)}" for key, value in (privacy or {}).items()]
    words += [f"{key}={_word(value)}" for key, value in settings.items()]
    with tempfile.TemporaryDirectory() as place:
        if isinstance(schema, Mapping):
            file = Path(place) / "schema.yaml"
            file.write_text(yaml.safe_dump(dict(schema), sort_keys=False, allow_unicode=True))
            schema = file
        if schema is not None:
            words.append(f"schema={as_word(schema)}")
        resumed = given_text(words, "resume")
        there = COMMAND.place(expand(words), folder, resumed)
        composed = COMMAND.compose(expand(words), there)
        quiet_transformers()
        config = configuration(composed.values, composed.words)
        if config.is_draft:
            raise InputError("schema=draft is for the command line: a person goes through it.")
        found = make_table(config, there, in_memory)
    assert found is not None
    import datasets

    return Synthesized(  # rows are read here: the library would keep a copy in its cache
        rows=datasets.Dataset.from_list([dict(row.sound()) for row in file_rows(found.target)]),
        path=found.target,
        folder=there,
        statement=Figures(as_json(found.record.statement)),
    )


def _word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_word, value))}]"
    if value is None or isinstance(value, bool | float):
        return "null" if value is None else str(value).lower()
    return as_word(value)
