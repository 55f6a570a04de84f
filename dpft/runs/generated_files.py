"""The files of ``dpft generate``: rows, what they cost, and apart from them what is no row."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from dpft.config.schema import GenerateConfig
from dpft.data.memory import MEMORY
from dpft.data.writers import WRITERS, write_rows
from dpft.errors import InputError
from dpft.files import write_json
from dpft.reports.run.synthetic import synthetic_record
from dpft.run_folder import GENERATED
from dpft.runs.written_records import Prompt, Written
from dpft.tasks.base import TextTask


class Target(NamedTuple):
    """The files to write."""

    records: Path
    """The rows, in the format of the name."""
    statement: Path
    """What they cost."""
    unparsed: Path
    """Texts that are no rows, where there are any."""


def new_files(folder: Path, to: str | None, task: TextTask) -> Target:
    """Returns the files to write, in the run's folder ``generated`` unless ``to`` names another.

    Raises:
        InputError: One is there, or cannot be made, or ``to`` ends in no format, or in one that
            cannot hold the task's rows.
    """
    if to is None:
        numbers = range(1, len(list((folder / GENERATED).glob("*"))) + 2)
        candidates = [_target(folder / GENERATED / f"{number}.jsonl") for number in numbers]
        return next(target for target in candidates if not _existing(target))
    target = _target(Path(to).expanduser())
    _check_format(target.records.suffix, to, task)
    for path in _existing(target):
        raise InputError(f"to must be a new file, got {to!r}, but {path} exists; choose another.")
    above = next(parent for parent in target.records.parents if parent.exists())
    if not above.is_dir():
        raise InputError(f"to must be a new file, got {to!r}, but {above} is a file.")
    return target


def _check_format(ending: str, to: str, task: TextTask) -> None:
    if ending not in WRITERS:
        raise InputError(f"to must end in {', '.join(WRITERS)}, got {to!r}.")
    if ending == ".csv" and task.holds_lists:
        raise InputError(
            f"to must end in .jsonl or .parquet for task={task.name}, whose rows hold lists, got"
            f" {to!r}; .csv has no place for them."
        )


def write(
    config: GenerateConfig,
    target: Target,
    *,
    privacy: Mapping[str, Any],
    task: TextTask,
    written: Written,
    prompts: Sequence[Prompt],
) -> None:
    """Writes the files, the statement first: no records lie there without it.

    Records are no more open to other users than the prompts that stand in them, and how many of
    a user's prompts have become rows the statement does not say.

    Args:
        config: What was asked for.
        target: The files.
        privacy: The run's privacy.json.
        task: Says whether a template has read the texts.
        written: After each prompt.
        prompts: What the model went on from.
    """
    unparsed, prompted = written.unparsed(prompts), config.prompts is not None
    statement = synthetic_record(
        privacy,
        run=_name_of(Path(config.run)),
        task=config.task.name,
        decode=asdict(config.decode),
        retries=config.retries,
        records=len(prompts),
        unparsed=len(unparsed) if task.written_columns and not prompted else None,
        prompted=prompted,
    )
    target.records.parent.mkdir(parents=True, exist_ok=True)
    write_json(target.statement, statement)
    try:
        for path, rows in ((target.unparsed, unparsed), (target.records, written.rows)):
            if rows:
                write_rows(path, rows, mode=_mode(config))
    except OSError:
        target.unparsed.unlink(missing_ok=True)
        target.statement.unlink()
        raise


def _mode(config: GenerateConfig) -> int:
    if config.prompts is None:
        return 0o644
    if config.prompts == MEMORY:
        return 0o600
    return 0o600 | (0o644 & Path(config.prompts).expanduser().stat().st_mode)


def _target(records: Path) -> Target:
    stem = records.stem
    return Target(
        records=records,
        statement=records.with_name(f"{stem}.privacy.json"),
        unparsed=records.with_name(f"{stem}.unparsed.jsonl"),
    )


def _existing(target: Target) -> list[Path]:
    return [path for path in target if path.exists() or path.is_symlink()]


def _name_of(run: Path) -> str:
    """Returns a run's name, such as DATE/TIME: the records may go where this machine is unknown."""
    return "/".join(run.parts[-2:]) if run.is_absolute() else str(run)
