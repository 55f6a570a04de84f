"""The command ``dpft synthesize``: check, plan, count, train, write rows and report.

``make_table`` reads from top to bottom. Settings that can be checked with public numbers are
rejected before a record is read. Invalid records are rejected before noise is drawn. Each of the
three parts (histogram, training, rows) is kept on disk when it is done. The line of the histogram's
ledger is on disk before its noise is drawn, and the noise is never drawn again. The training is a
separate run in ``training/``. The rows are written in blocks. ``resume=`` continues with the first
unfinished part.
"""

import hmac
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
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
from dpft.config.hydra_compose import given_text
from dpft.config.keys import in_shell, quoted
from dpft.config.load import dump
from dpft.config.output_keys import check_folder
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
from dpft.strict_model import as_json
from dpft.synthesis.config import DRAFT, SynthesizeConfig, configuration, expand
from dpft.synthesis.draft import draft_schema
from dpft.synthesis.generate import BLOCKS, generate_rows
from dpft.synthesis.histogram import Condition, cell_shares, rows_per_cell
from dpft.synthesis.plan import (
    GIVEN_COLUMN,
    ROW_COLUMN,
    SynthesisPlan,
    plan_synthesis,
    row_tokenizer,
    target_file,
    training_command,
)
from dpft.synthesis.report import SCHEMA_FILE, answer_of, digest, is_finished, write_outcome
from dpft.synthesis.rows import RowFormat
from dpft.synthesis.schema import read_schema
from dpft.synthesis.table import PrivateTable, read_table, source_rows

if TYPE_CHECKING:
    import datasets
    import pandas

logger = logging.getLogger(__name__)

COUNTS, DRAFTED, TABLE_KEY = "counts.json", "private/draft.schema.yaml", "private/table_key"


def make_table(config: SynthesizeConfig, folder: Path, rows: Rows | None = None) -> Answer | None:
    """Make a synthetic table from a private table, or continue an interrupted synthesis.

    Args:
        config: The configuration of the synthesis; with ``resume``, the configuration of the
            interrupted synthesis.
        folder: A new folder, or with ``resume`` the folder of the interrupted synthesis.
        rows: The private table, if it is in memory.

    Returns:
        The output of the command, or None for a draft.

    Raises:
        InputError: A setting or a row is invalid.
        RunError: Training failed.
        StateError: A file of the synthesis is damaged.
    """
    quiet_transformers()
    refuse_links(folder)
    with ExitStack() as stack:
        stack.enter_context(rows_in_memory(rows))
        stack.enter_context(crash_kept(folder))

        # 1. Write a draft and stop if schema=draft; show a finished synthesis again.
        data = config.data or ""
        if config.schema_file == DRAFT:
            check_writable(folder)
            text = draft_schema(source_rows(data), unit=config.privacy.unit)
            folder.mkdir(parents=True, exist_ok=True)
            write_text(private_path(folder, DRAFTED), text, mode=0o600)
            logger.info(
                "draft of the schema: %s. It is derived from private data, but the schema will be"
                " public: review it, save it as %s, and run dpft synthesize without schema=draft.",
                folder / DRAFTED,
                _default_schema(data),
            )
            return None
        target = target_file(config, folder)
        if config.resume is not None and is_finished(folder, target):
            logger.info("the synthesis in %s is already complete", folder)
            return answer_of(folder, target)

        # 2. Read the schema, which is public, and check that a new synthesis has room for its
        # files.
        private_rows = source_rows(data)
        schema_path = folder / SCHEMA_FILE
        if config.resume is None:
            if config.schema_file is not None:
                schema_path = Path(config.schema_file).expanduser()
            else:
                schema_path = _default_schema(data)
                if not schema_path.is_file():
                    raise InputError(
                        "dpft synthesize needs a schema, which declares the public facts of the"
                        f" table, but got none, and {schema_path} does not exist. Draft a schema"
                        " from the data, then review it.",
                        key="schema",
                        hint=f"dpft synthesize {in_shell('data', data)} schema=draft",
                    )
        schema = read_schema(schema_path)
        if config.resume is None:
            _refuse_used(folder)
            if target.exists():
                raise InputError(
                    f"to must be a new file, got {str(target)!r}, which exists.",
                    key="to",
                    value=str(target),
                )
            if config.to is not None:
                check_folder(str(target), key="to")
        condition = Condition.of(schema, config.condition) if config.condition else None
        row_format = RowFormat(schema=schema, condition=config.condition, form=config.form)
        tokenizer = row_tokenizer(config, row_format)

        # 3. Read the table. Its number of units is public, and fixes the plan.
        if config.resume is not None:
            stack.enter_context(hold_run(folder))
        unit = config.privacy.unit
        table = read_table(private_rows, schema, unit=unit, invalid=config.invalid)
        table = table.truncated(row_format, tokenizer)
        plan = plan_synthesis(config, row_format, condition, tokenizer, table.num_units)
        training = training_command(plan)

        # 4. Open a new folder, or the folder of an interrupted synthesis of the same table.
        if config.resume is None:
            # Reject a model and settings that do not fit before the histogram spends epsilon.
            architecture = read_architecture(training.model)
            fitted = fitted_to(training, architecture)
            model, _ = planned_model(fitted, architecture, training_head(fitted, architecture))
            if training.privacy.clips is not None:
                options = training.privacy.clips.clipping_options(training.train.backward_scale)
                options.make(model, per_example_losses)
            key = new_key()
            fingerprint = table.fingerprint(key)
            table = table.split(config.eval.held_out, key)
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(hold_run(folder))
            _refuse_used(folder)
            write_text(folder / SCHEMA_FILE, schema_path.read_text(encoding="utf-8-sig"))
            lines = f"{key.hex()}\n{fingerprint}\n"
            write_text(private_path(folder, TABLE_KEY), lines, mode=0o600)
            dump(config, folder / SYNTHESIS)
        else:
            path = folder / TABLE_KEY
            try:
                key_text, fingerprint = path.read_text(encoding="ascii").split("\n")[:2]
                key = bytes.fromhex(key_text)
            except (OSError, ValueError):
                raise StateError(f"{path} is missing or damaged. Restore the file.") from None
            if not hmac.compare_digest(table.fingerprint(key), fingerprint):
                raise InputError(
                    "resume needs the table that the synthesis began with, got another. Use the"
                    " same rows in the same order, or begin a new synthesis.",
                    key="resume",
                    value=config.resume,
                )
            table = table.split(config.eval.held_out, key)
        logger.info(
            "to resume after an interruption: dpft synthesize %s", in_shell("resume", folder)
        )

        # 5. Draw the histogram, which determines the number of rows in each cell.
        num = config.num or plan.num_examples
        cells: list[Mapping[str, Any]] = [{}] * num
        if condition is not None:
            noisy_histogram = _histogram(plan, condition, table, folder)
            numbers = rows_per_cell(cell_shares(noisy_histogram), num)
            cells = [condition.row(at) for at, n in enumerate(numbers) for _ in range(n)]

        # 6. Train in a separate folder. The plan in the first line of the training's ledger names
        # the histogram, so that the epsilon of both follows from that ledger.
        records = []
        for at in table.kept:
            row = table.rows[at] or {}
            record = {GIVEN_COLUMN: row_format.prompt(row), ROW_COLUMN: row_format.target(row)}
            records.append(record | ({unit: table.units[at]} if config.privacy.has_units else {}))
        counts = None if plan.counts is None else spent_before(read_spent(str(folder)))
        with rows_in_memory(records):
            if (folder / TRAINING / MODEL).is_dir() or has_begun(folder / TRAINING):
                if counts is not None:
                    read_spent_of_synthesis(str(folder))  # rejects another histogram
                composed = TRAIN_COMMAND.compose([f"resume={quoted(str(folder / TRAINING))}"])
                training = TRAIN_COMMAND.load(composed.values, composed.words)
            train(training, folder / TRAINING, counts=counts)

        # 7. Write the rows in blocks, and the pages.
        drawn = generate_rows(plan, cells, folder)
        if not drawn.rows:
            raise RunError(
                f"none of {num} rows followed the schema's rules in {1 + config.retries} attempts."
                " Begin a new synthesis with weaker rules or with more training; the ledgers state"
                " the epsilon that was spent."
            )
        write_outcome(plan, table, drawn, folder)
        shutil.rmtree(folder / BLOCKS, ignore_errors=True)  # their rows are in the table
        return answer_of(folder, target)


def _default_schema(data: str) -> Path:
    """Return the default path of a table's schema."""
    path = Path(data).expanduser()
    stem = path.name.split(".")[0] if path.name.count(".") <= 2 else path.stem
    return path.with_name(f"{stem}.schema.yaml")


def _refuse_used(folder: Path) -> None:
    for name in (SYNTHESIS, LEDGER, TRAINING):
        if (folder / name).exists():
            raise InputError(
                f"{folder / name} exists. Resume that synthesis, or choose another folder with"
                " hydra.run.dir=DIR.",
                key="hydra.run.dir",
                value=str(folder),
                hint=f"dpft synthesize {in_shell('resume', folder)}",
            )
    check_writable(folder)


def _histogram(
    plan: SynthesisPlan, condition: Condition, table: PrivateTable, folder: Path
) -> list[float]:
    """Return the noisy counts on disk, or draw new counts after writing their line of the ledger.

    Raises:
        StateError: Noise was drawn before, and the counts are missing or were changed.
    """
    guarantee, ledger_path = plan.guarantee, folder / LEDGER
    path = folder / COUNTS if guarantee is not None else private_path(folder, COUNTS)

    # 1. Return the counts on disk if the ledger released them. A crash may have left the ledger
    # open.
    if path.exists():
        saved_counts: list[float] = read_json(path)["counts"]
        if plan.counts is None:
            return saved_counts
        if not ledger_path.exists():
            raise StateError(
                f"{ledger_path} is missing, so the epsilon of the histogram is unknown. Restore the"
                " file."
            )
        record = read_ledger(ledger_path)
        is_released = record.released in (None, digest(path))
        if not is_released or len(saved_counts) != plan.counts.cells:
            raise StateError(
                f"{path} does not match the release in {ledger_path}. Restore both files."
            )
        if not record.closed:
            with Ledger.reopen(ledger_path, record) as ledger:
                ledger.close(released=digest(path))
        return saved_counts

    # 2. Compute the exact counts, which are private; without privacy they are the result.
    exact_counts = condition.count(
        (table.units[at], condition.place(table.rows[at] or {})) for at in table.kept
    )
    if plan.counts is None or guarantee is None:
        write_json(path, {"counts": exact_counts.tolist()}, mode=0o600)
        return list(exact_counts.tolist())

    # 3. Write the line of the ledger, and only then draw the noise.
    is_spent = ledger_path.exists() and read_ledger(ledger_path).counted_steps > 0
    if is_spent or (folder / TRAINING).exists():
        raise StateError(
            f"{path} is missing, and dpft cannot draw its noise again, because its epsilon is"
            f" already spent. Restore it and {ledger_path}; or, after a crash, begin in another"
            " folder and compose both with dpft account 'runs=[FIRST,SECOND]'."
        )
    ledger_path.unlink(missing_ok=True)  # has no step: no noise was drawn
    mechanism = plan.counts.replace(
        num_examples=plan.num_examples, num_examples_source=plan.num_examples_source
    )
    histogram_plan = HistogramPlan(
        histogram=mechanism,
        num_examples=plan.num_examples,
        delta=plan.counts.delta,
        delta_source=plan.delta_source,
        unit=guarantee.unit,
        unit_definition=plan.unit_definition,
        reproducible=guarantee.noise_seed is not None,
        data_id=guarantee.data_id,
    )
    key = secret_key("condition", guarantee.noise_seed)
    with Ledger(ledger_path, plan=histogram_plan) as ledger:
        ledger.append(1, mechanism)
        noisy = noisy_counts(exact_counts, plan.counts.noise_std, key)
        write_json(path, {"counts": noisy.tolist()})
        ledger.close(released=digest(path))
    return list(noisy.tolist())


COMMAND = Command("synthesize", SynthesizeConfig, configuration)


@dataclass(frozen=True, kw_only=True)
class Synthesized:
    """A synthetic table and its files."""

    rows: "datasets.Dataset" = field(repr=False)
    """The synthetic rows."""
    path: Path
    """The file of the rows."""
    folder: Path
    """The folder of the synthesis. Its ``private/`` is only for the owner."""
    statement: Figures = field(repr=False)
    """The public statement, such as ``.statement.epsilon``."""

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the rows as a pandas data frame."""
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
    """Make a synthetic table from a private table, as ``dpft synthesize`` does.

    Examples:
        >>> made = dpft.synthesize(  # doctest: +SKIP
        ...     "notes.csv", schema="notes.schema.yaml", privacy={"eps": 8}, num=5000
        ... )
        >>> made.to_pandas(), made.statement.epsilon  # doctest: +SKIP

    Args:
        rows: The private table: a file, a data set, a data frame, or mappings. None means that the
            overrides name the table, or the synthesis to continue.
        overrides: As on the command line, such as ``model=tiny``.
        schema: The public schema: a file or its content.
        privacy: Keys of the section ``privacy``, such as ``{"eps": 8, "unit": "customer_id"}``.
        folder: Folder of the synthesis; None creates a folder under ``outputs/``.
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
        run_folder = COMMAND.place(expand(words), folder, given_text(words, "resume"))
        composed = COMMAND.compose(expand(words), run_folder)
        config = configuration(composed.values, composed.words)
        if config.schema_file == DRAFT:
            raise InputError(
                "schema=draft works only on the command line, because you must review the draft.",
                key="schema",
                value=DRAFT,
            )
        answer = make_table(config, run_folder, in_memory)
    assert answer is not None
    import datasets

    path = Path(answer.record.to)
    return Synthesized(  # read here, because the library would keep a copy of the file
        rows=datasets.Dataset.from_list([dict(row.sound()) for row in file_rows(path)]),
        path=path,
        folder=run_folder,
        statement=Figures(as_json(answer.record.statement)),
    )


def _word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_word, value))}]"
    if value is None or isinstance(value, bool | float):
        return "null" if value is None else str(value).lower()
    return as_word(value)
