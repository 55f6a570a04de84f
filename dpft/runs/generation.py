"""Synthetic records in a task's own format, written by a run's model, and what they cost.

Nothing here reads a record that was trained on: the model goes on from the user's prompts, or from
nothing where whole records were trained on.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from dpft.config.schema import GenerateConfig, TrainConfig
from dpft.data.prompts import load_prompts, refuse_records
from dpft.errors import InputError
from dpft.evaluation.groups import Group
from dpft.files import write_json, write_jsonl
from dpft.models.loading import quiet_transformers
from dpft.reports.run.run_record import read_privacy
from dpft.reports.run.synthetic import cost, synthetic_record
from dpft.run_folder import GENERATED, PRIVACY, hold_run
from dpft.runs.crashes import crash_kept
from dpft.runs.progress import batch_progress
from dpft.runs.saved_run import saved_run
from dpft.runs.trained_model import TrainedModel, trained_model_of_run
from dpft.tasks.base import Task, TextTask
from dpft.tasks.records import Example

logger = logging.getLogger(__name__)

Prompt = tuple[Mapping[str, Any], Example]
"""A row in the task's format without its answer, and what the model goes on from."""


class Target(NamedTuple):
    """The two files to write."""

    records: Path
    statement: Path


def generate(config: GenerateConfig) -> Target:
    """Writes the records with a run's model, and beside them the statement of what they cost.

    A crash's text is kept in the run's private/.

    Args:
        config: Which run, whose texts are of what task, and how they are written.

    Returns:
        The two files.

    Raises:
        InputError: Anything does not fit, or another process writes to the run's folder.
        StateError: A file of the run is damaged.
    """
    quiet_transformers()
    folder = Path(config.run)
    with crash_kept(folder):
        return _generate(config, saved_run(config.run), folder)


def _generate(config: GenerateConfig, saved: TrainConfig, folder: Path) -> Target:
    privacy = privacy_of(folder)
    task = text_task(config.task)
    prompts = prompts_of(config, task, saved.task)
    with hold_run(folder):
        target = new_files(folder, config.to)
        if not privacy["private"]:
            logger.warning(cost(privacy))
        texts = write_texts(
            config, trained_model_of_run(folder, saved), [shown for _, shown in prompts]
        )
        records = [task.record(row, text) for (row, _), text in zip(prompts, texts, strict=True)]
        write(config, target, privacy, records)
    logger.info("records: %s, what they cost: %s", *target)
    return target


def privacy_of(folder: Path) -> dict[str, Any]:
    """Returns the run's privacy.json.

    Raises:
        InputError: The run has none, so that what its texts cost cannot be said, or one of another
            schema version.
        StateError: It is damaged.
    """
    path = folder / PRIVACY
    if not path.exists():
        raise InputError(
            f"run must have a {PRIVACY}, which says what its texts cost, got {str(folder)!r},"
            " which has none; put it back, or train anew."
        )
    return read_privacy(path)


def text_task(task: Task) -> TextTask:
    """Returns the task, whose answers are texts.

    Raises:
        InputError: They are labels.
    """
    if not isinstance(task, TextTask):
        raise InputError(
            f"run must be of a task whose answers are texts, got task={task.name}, whose answers"
            " are labels; `dpft eval` writes those."
        )
    return task


def prompts_of(config: GenerateConfig, task: TextTask, trained: Task) -> list[Prompt]:
    """Returns what the model goes on from: the user's prompts, or nothing ``num`` times.

    Raises:
        InputError: The task's records have a prompt and none is given, or the reverse; or the
            prompts are the run's own records, or not of the task's form.
    """
    if config.num is not None:
        if task.prompt_columns:
            raise InputError(
                f"num needs a task whose whole record was trained on, got task={task.name}, which"
                f" was trained to go on from {', '.join(task.prompt_columns)}; give"
                " prompts=FILE with such rows."
            )
        return [({}, task.prompt({}))] * config.num
    if not task.prompt_columns:
        raise InputError(
            f"prompts needs a task whose records have a prompt, got task={task.name}, whose whole"
            " record was trained on; give num=N instead."
        )
    file = str(config.prompts)
    if not refuse_records(trained, file):
        logger.warning(
            "the run's own records are not here, so whether the prompts are among them was not"
            " checked"
        )
    return list(load_prompts(task, file))


def new_files(folder: Path, to: str | None) -> Target:
    """Returns the files to write, in the run's folder ``generated`` unless ``to`` names another.

    Raises:
        InputError: One is there, or cannot be made, or ``to`` does not end in .jsonl.
    """
    if to is None:
        numbers = range(1, len(list((folder / GENERATED).glob("*"))) + 2)
        candidates = [_target(folder / GENERATED / f"{number}.jsonl") for number in numbers]
        return next(target for target in candidates if not _existing(target))
    target = _target(Path(to).expanduser())
    if target.records.suffix != ".jsonl":
        raise InputError(f"to must end in .jsonl, got {to!r}.")
    for path in _existing(target):
        raise InputError(f"to must be a new file, got {to!r}, but {path} exists; choose another.")
    above = next(parent for parent in target.records.parents if parent.exists())
    if not above.is_dir():
        raise InputError(f"to must be a new file, got {to!r}, but {above} is a file.")
    return target


def write_texts(
    config: GenerateConfig, trained_model: TrainedModel, prompts: Sequence[Example]
) -> list[str]:
    """Returns what the model writes after each prompt, with a bar on a terminal."""
    outputs = trained_model.outputs(
        config.task,
        config.train.prepare(),
        batch_size=config.batch_size,
        max_new_tokens=config.decode.max_new_tokens,
    )
    groups = [Group(input=prompt.group, examples=(prompt,)) for prompt in prompts]
    done = 0
    with batch_progress() as show:

        def count(batch_size: int) -> None:
            nonlocal done
            done += batch_size
            show("records", done, len(groups))

        return outputs.texts(groups, config.decode, count)


def write(
    config: GenerateConfig,
    target: Target,
    privacy: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
) -> None:
    """Writes both files, the statement first: no records lie there without it.

    Records are no more open to other users than the prompts that stand in them.
    """
    statement = synthetic_record(
        privacy,
        run=_name_of(Path(config.run)),
        task=config.task.name,
        decode=asdict(config.decode),
        records=len(records),
        prompted=config.prompts is not None,
    )
    mode = 0o644
    if config.prompts is not None:
        mode = 0o600 | (mode & Path(config.prompts).expanduser().stat().st_mode)
    target.records.parent.mkdir(parents=True, exist_ok=True)
    write_json(target.statement, statement)
    try:
        write_jsonl(target.records, records, mode=mode)
    except OSError:
        target.statement.unlink()
        raise


def _target(records: Path) -> Target:
    return Target(records, records.with_name(f"{records.stem}.privacy.json"))


def _existing(target: Target) -> list[Path]:
    return [path for path in target if path.exists() or path.is_symlink()]


def _name_of(run: Path) -> str:
    """Returns a run's name, such as DATE/TIME: the records may go where this machine is unknown."""
    return "/".join(run.parts[-2:]) if run.is_absolute() else str(run)
