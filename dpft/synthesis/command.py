"""``dpft synthesize``, on the command line or from Python.

Settings that public numbers can reject are rejected before a record is read, and invalid records
before noise is drawn. Each of the three parts is kept when it is done: the histogram, whose ledger
line is on disk before its noise is drawn and whose noise is never drawn again; the training, a run
of its own in ``training/``; the rows, in blocks. ``resume=`` continues with the first unfinished
part.
"""

import hmac
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dpft.commands.composition import spent_before
from dpft.commands.exit_codes import crash_kept
from dpft.commands.ledger_account import read_spent, read_spent_of_synthesis
from dpft.commands.new_run import has_begun
from dpft.commands.python_api import TRAIN_COMMAND, Command, Folder, as_word, checked_words
from dpft.commands.run_cost import planned_model
from dpft.commands.task_model import fitted_to, training_head
from dpft.commands.train import train
from dpft.config.answers import check_folder
from dpft.config.hydra_compose import given_text
from dpft.config.keys import in_shell, quoted
from dpft.config.load import dump
from dpft.config.schema import TrainCommand
from dpft.data.raw_rows import MEMORY, Rows, file_rows, rows_in_memory
from dpft.data.training_records import new_key
from dpft.errors import InputError, RunError, StateError
from dpft.models.architecture import read_architecture
from dpft.models.loading import quiet_transformers
from dpft.models.losses import per_example_losses
from dpft.parallel.parallel_config import check_restarts
from dpft.privacy.cipher import secret_key
from dpft.privacy.ledger import Ledger, read_ledger
from dpft.privacy.mechanisms.histogram import noisy_counts
from dpft.privacy.plan import HistogramPlan
from dpft.privacy.privacy_config import DifferentialPrivacy, NoPrivacy
from dpft.reports.terminal import Answer, Figures
from dpft.run_folder import (
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
from dpft.strict_model import as_json, values_of
from dpft.synthesis.config import DRAFT, SynthesizeConfig, configuration, expand
from dpft.synthesis.draft import draft_schema
from dpft.synthesis.generate import BLOCKS, generate_rows
from dpft.synthesis.histogram import allotted, shares
from dpft.synthesis.plan import (
    ACCOUNTANT,
    GIVEN_COLUMN,
    ROW_COLUMN,
    PublicPart,
    plain_training,
    public_part,
    target_file,
    with_noise,
)
from dpft.synthesis.report import SCHEMA_FILE, digest, finished, is_whole, write_outcome
from dpft.synthesis.schema import read_schema
from dpft.synthesis.table import PrivateTable, read_table, source_rows

if TYPE_CHECKING:
    import datasets
    import pandas

logger = logging.getLogger(__name__)

SECTIONS = ("model", "method", "train", "optimizer", "scheduler")
"""Sections of the configuration that the training has, too."""
COUNTS, DRAFTED, TABLE_KEY = "counts.json", "private/draft.schema.yaml", "private/table_key"


def make_table(config: SynthesizeConfig, folder: Path, rows: Rows | None = None) -> Answer | None:
    """Make a synthetic table of a private one, or continue an interrupted synthesis.

    Returns:
        The output of the command; None for a draft.

    Raises:
        InputError: A setting or a row is invalid.
        RunError: Training failed.
        StateError: A file of the synthesis is damaged.
    """
    quiet_transformers()
    refuse_links(folder)
    with rows_in_memory(rows), crash_kept(folder):
        if config.schema_file == DRAFT:
            _draft(config, folder)
            return None
        return _begin(config, folder) if config.resume is None else _continue(config, folder)


def _draft(config: SynthesizeConfig, folder: Path) -> None:
    check_writable(folder)
    text = draft_schema(source_rows(config.data or ""), unit=config.privacy.unit)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(private_path(folder, DRAFTED), text, mode=0o600)
    logger.info(
        "a draft is in %s: what it says comes from the data, and what you leave in it becomes"
        " public; go through it, save it as %s, and run dpft synthesize without schema=draft",
        folder / DRAFTED,
        _default_schema(config.data or ""),
    )


def _default_schema(data: str) -> Path:
    """Return the default path of a table's schema."""
    path = Path(data).expanduser()
    stem = path.name.split(".")[0] if path.name.count(".") <= 2 else path.stem
    return path.with_name(f"{stem}.schema.yaml")


def _begin(config: SynthesizeConfig, folder: Path) -> Answer:
    data = config.data or ""
    rows = source_rows(data)
    place = (
        _default_schema(data)
        if config.schema_file is None
        else Path(config.schema_file).expanduser()
    )
    if config.schema_file is None and not place.is_file():
        raise InputError(
            "dpft synthesize needs a schema, which says what is public of the table, got none, and"
            f" there is no {place}; have one drafted for you to edit by dpft synthesize"
            f" data={data} schema=draft."
        )
    schema = read_schema(place)
    _refuse_used(folder)
    target = target_file(config, folder)
    if target.exists():
        raise InputError(f"to must be a new file, got {str(target)!r}, which exists.")
    if config.to is not None:
        check_folder(str(target), key="to")
    part, table = _with_table(public_part(config, schema), rows)
    # A model and settings that do not fit are rejected before the histogram spends anything.
    training = _training(part)
    architecture = read_architecture(training.model)
    fitted = fitted_to(training, architecture)
    model, _ = planned_model(fitted, architecture, training_head(fitted, architecture))
    if training.privacy.clips is not None:
        options = training.privacy.clips.clipping_options(training.train.backward_scale)
        options.make(model, per_example_losses)
    key = new_key()
    table = table.split(config.eval.held_out, key)
    folder.mkdir(parents=True, exist_ok=True)
    with hold_run(folder):
        _refuse_used(folder)
        write_text(folder / SCHEMA_FILE, place.read_text(encoding="utf-8-sig"))
        lines = f"{key.hex()}\n{table.fingerprint(key)}\n"
        write_text(private_path(folder, TABLE_KEY), lines, mode=0o600)
        dump(config.replace(resume=None), folder / SYNTHESIS)
        return _finish(part, table, folder)


def _continue(config: SynthesizeConfig, folder: Path) -> Answer:
    target = target_file(config, folder)
    if is_whole(folder, target):
        logger.info("the synthesis in %s has ended; nothing is left to do", folder)
        return finished(folder, target)
    rows = source_rows(config.data or "")
    part = public_part(config, read_schema(folder / SCHEMA_FILE))
    with hold_run(folder):
        part, table = _with_table(part, rows)
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
        return _finish(part, table.split(config.eval.held_out, key), folder)


def _refuse_used(folder: Path) -> None:
    for name in (SYNTHESIS, LEDGER, TRAINING):
        if (folder / name).exists():
            raise InputError(
                f"{folder / name} exists: go on with it by dpft synthesize"
                f" {in_shell('resume', folder)}, or choose another folder with hydra.run.dir=DIR."
            )
    check_writable(folder)


def _with_table(part: PublicPart, rows: Iterator[Any]) -> tuple[PublicPart, PrivateTable]:
    """Return the table, and the plan with its public size."""
    config = part.config
    table = read_table(rows, part.schema, unit=config.privacy.unit, invalid=config.invalid)
    cut = tuple(None if row is None else part.rows.cut(row, part.tokenizer) for row in table.rows)
    return with_noise(part, table.num_units), replace(table, rows=cut)


def _finish(part: PublicPart, table: PrivateTable, folder: Path) -> Answer:
    logger.info("if this is interrupted, run dpft synthesize %s", in_shell("resume", folder))
    num = part.config.num or part.num_examples
    cells: list[Mapping[str, Any]] = [{}] * num
    if part.condition is not None:
        noisy = _histogram(part, table, folder)
        numbers = allotted(shares(noisy), num)
        cells = [part.condition.row(at) for at, n in enumerate(numbers) for _ in range(n)]
    _train(part, table, folder)
    drawn = generate_rows(part, cells, folder)
    if not drawn.rows:
        raise RunError(
            f"none of {num} rows kept the schema's rules in {1 + part.config.retries}"
            " attempts, and all were given up; begin anew with rules that are kept more often,"
            " or with more training. What was spent stands in the ledgers."
        )
    write_outcome(part, table, drawn, folder)
    shutil.rmtree(folder / BLOCKS, ignore_errors=True)  # their rows are in the table
    return finished(folder, target_file(part.config, folder))


def _histogram(part: PublicPart, table: PrivateTable, folder: Path) -> Sequence[float]:
    """Return the noisy counts: those on disk, or new ones, whose ledger line is written first.

    Raises:
        StateError: Noise was drawn before and the counts are gone, or were changed.
    """
    condition, guarantee, ledger_path = part.condition, part.guarantee, folder / LEDGER
    assert condition is not None
    path = folder / COUNTS if guarantee is not None else private_path(folder, COUNTS)
    if path.exists():
        return _kept_counts(part, path, ledger_path)
    counts = condition.count(
        (table.units[at], condition.place(table.rows[at] or {})) for at in table.kept
    )
    if part.counts is None or guarantee is None:
        write_json(path, {"counts": counts.tolist()}, mode=0o600)
        return list(counts.tolist())
    is_spent = ledger_path.exists() and read_ledger(ledger_path).counted_steps > 0
    if is_spent or (folder / TRAINING).exists():
        raise StateError(
            f"{path} is missing, but its epsilon was spent, and noise is not drawn twice. Put it"
            f" back with {ledger_path}; or, after a crash, begin in another folder and compose both"
            " with dpft account runs=[FIRST,SECOND]."
        )
    ledger_path.unlink(missing_ok=True)  # interrupted before the step's line: no noise was drawn
    mechanism = part.counts.replace(
        num_examples=part.num_examples, num_examples_source=part.num_examples_source
    )
    plan = HistogramPlan(
        histogram=mechanism,
        num_examples=part.num_examples,
        delta=part.counts.delta,
        delta_source=part.delta_source,
        unit=guarantee.unit,
        unit_definition=part.unit_definition,
        reproducible=guarantee.noise_seed is not None,
        data_id=guarantee.data_id,
    )
    key = secret_key("condition", guarantee.noise_seed)
    with Ledger(ledger_path, plan=plan) as ledger:
        ledger.append(1, mechanism)
        noisy = noisy_counts(counts, part.counts.noise_std, key)
        write_json(path, {"counts": noisy.tolist()})
        ledger.close(released=digest(path))
    return list(noisy.tolist())


def _kept_counts(part: PublicPart, path: Path, ledger: Path) -> Sequence[float]:
    """Return the counts on disk, if the ledger released them; close the ledger."""
    counts: list[float] = read_json(path)["counts"]
    if part.counts is None:
        return counts
    if not ledger.exists():
        raise StateError(f"{ledger} is gone, so that what the histogram spent is not known.")
    record = read_ledger(ledger)
    if record.released not in (None, digest(path)) or len(counts) != part.counts.cells:
        raise StateError(f"{path} is not what {ledger} released; put both back as they were.")
    if not record.closed:
        with Ledger.reopen(ledger, record) as reopened:
            reopened.close(released=digest(path))
    return counts


def _train(part: PublicPart, table: PrivateTable, folder: Path) -> None:
    """Train the generator, a run in a folder of its own, or continue its training.

    The plan in the first line of its ledger names the histogram, so that the epsilon of both
    follows from that ledger alone.

    Raises:
        StateError: The training that continues names another histogram.
    """
    records = []
    for at in table.kept:
        row = table.rows[at] or {}
        records.append({GIVEN_COLUMN: part.rows.prompt(row), ROW_COLUMN: part.rows.target(row)})
        if part.config.privacy.has_units:
            records[-1][part.config.privacy.unit] = table.units[at]
    training = folder / TRAINING
    counts = None if part.counts is None else spent_before(read_spent(str(folder)))

    with rows_in_memory(records):
        if (training / MODEL).is_dir() or has_begun(training):
            if counts is not None:
                read_spent_of_synthesis(str(folder))
            composed = TRAIN_COMMAND.compose([f"resume={quoted(str(training))}"])
            command = TRAIN_COMMAND.load(composed.values, composed.words)
        else:
            command = _training(part)
        train(command, training, counts=counts)


def _training(part: PublicPart) -> TrainCommand:
    config = part.config
    weights = () if config.text_weight == 1 else part.rows.json_weights(config.text_weight)
    plain = plain_training(part.max_prompt + part.max_target + 2, weights)
    kind = NoPrivacy if part.guarantee is None else DifferentialPrivacy
    privacy = values_of(config.privacy, kind)
    if part.guarantee is not None:
        privacy |= {
            "eps": None,
            "noise_multiplier": part.noise_multiplier,
            "delta": part.delta,
            "num_examples": part.num_examples,
            "accountant": ACCOUNTANT,
        }
    return plain.replace(
        privacy=kind(**privacy),
        eval=plain.eval.replace(enabled=False),
        **{key: getattr(config, key) for key in SECTIONS},
    )


COMMAND = Command("synthesize", SynthesizeConfig, configuration)


@dataclass(frozen=True, kw_only=True)
class Synthesized:
    """A synthetic table and its files."""

    rows: "datasets.Dataset" = field(repr=False)
    """The synthetic rows."""
    path: Path
    """Their file."""
    folder: Path
    """The folder of the synthesis; its private/ is only for the owner."""
    statement: Figures = field(repr=False)
    """The public statement: ``.statement.epsilon``."""

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the rows as a frame of pandas."""
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
    """Make a synthetic table of a private one, as ``dpft synthesize`` does.

    Examples:
        >>> made = dpft.synthesize(  # doctest: +SKIP
        ...     "notes.csv", schema="notes.schema.yaml", privacy={"eps": 8}, num=5000
        ... )
        >>> made.to_pandas(), made.statement.epsilon  # doctest: +SKIP

    Args:
        rows: The private table: a file, a data set, a frame, or mappings. None: the overrides name
            it, or what to continue.
        overrides: As on the command line, such as ``model=tiny``.
        schema: The public schema: a file, or its content.
        privacy: Keys of the section ``privacy``: ``{"eps": 8, "unit": "customer_id"}``.
        folder: The folder of the synthesis; None: a new one under ``outputs/``.
        settings: Other keys of the command, such as ``num`` and ``condition``.

    Raises:
        InputError: A setting or a row is invalid.
        RunError: Training failed.
        StateError: A file of an interrupted synthesis is damaged.
    """
    words = list(checked_words(overrides, None))
    resumes = given_text(words, "resume") is not None
    check_restarts(resumes=resumes, advice="give folder=FOLDER, and resume it with resume=FOLDER")
    in_memory = None if rows is None or isinstance(rows, str | os.PathLike) else rows
    if rows is not None and not resumes:
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
        there = COMMAND.place(expand(words), folder, given_text(words, "resume"))
        composed = COMMAND.compose(expand(words), there)
        config = configuration(composed.values, composed.words)
        if config.schema_file == DRAFT:
            raise InputError("schema=draft is for the command line: a person goes through it.")
        made = make_table(config, there, in_memory)
    assert made is not None
    import datasets

    path = Path(made.record.to)
    return Synthesized(  # read here, because the library would keep a copy of the file
        rows=datasets.Dataset.from_list([dict(row.sound()) for row in file_rows(path)]),
        path=path,
        folder=there,
        statement=Figures(as_json(made.record.statement)),
    )


def _word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_word, value))}]"
    if value is None or isinstance(value, bool | float):
        return "null" if value is None else str(value).lower()
    return as_word(value)
