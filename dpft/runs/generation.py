"""Synthetic records in a task's own format, written by a run's model, and what they cost.

Nothing here reads a record that was trained on: the model goes on from the user's prompts, or from
nothing where whole records were trained on.
"""

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpft.config.schema import GenerateConfig, TrainConfig
from dpft.data.prompts import load_prompts, refuse_records
from dpft.errors import InputError, RunError
from dpft.models.loading import quiet_transformers
from dpft.parallel.processes import started
from dpft.parallel.silence import without_logging
from dpft.reports.run.run_record import read_privacy
from dpft.reports.run.synthetic import cost
from dpft.run_folder import PRIVACY, hold_run
from dpft.runs.crashes import crash_kept
from dpft.runs.generated_files import Target, new_files, write
from dpft.runs.saved_run import saved_run
from dpft.runs.together import check_alike
from dpft.runs.trained_model import TrainedModel, trained_model_of_run
from dpft.runs.written_records import Prompt, Written, write_records
from dpft.tasks.base import Task, TextTask
from dpft.tasks.custom_texts import CustomTexts

logger = logging.getLogger(__name__)


def generate(config: GenerateConfig) -> Target:
    """Writes the records with a run's model, and beside them the statement of what they cost.

    A crash's text is kept in the run's private/.

    Args:
        config: Which run, whose texts are of what task, and how they are written.

    Returns:
        The files.

    Raises:
        InputError: Anything does not fit, or another process writes to the run's folder.
        RunError: No text is a row.
        StateError: A file of the run is damaged.
    """
    quiet_transformers()
    folder = Path(config.run)
    with started(config.parallel) as ranks, ExitStack() as held:
        held.enter_context(crash_kept(folder) if ranks.is_first else without_logging())
        check_alike(config, ranks)
        with ranks.settled():
            saved, privacy = saved_run(config.run), privacy_of(folder)
            trained_model, config, trained = _with_model(config, saved)
            task = written_task(config, trained)
            prompts = prompts_of(config, task, trained)

        def open_files() -> list[str]:
            held.enter_context(hold_run(folder))
            paths = new_files(folder, config.to, task)
            if not privacy["private"]:
                logger.warning(cost(privacy))
            return [str(path) for path in paths]

        target = Target(*map(Path, ranks.first_to_all(open_files)))
        written = write_records(config, task, trained_model, prompts, ranks)
        ranks.first(
            write, config, target, privacy=privacy, task=task, written=written, prompts=prompts
        )
        ranks.first(_say, task, target, written)
    return target


def _with_model(
    config: GenerateConfig, saved: TrainConfig
) -> tuple[TrainedModel, GenerateConfig, Task]:
    """Returns a run's model, and both tasks with what the model says of them."""
    trained_model = trained_model_of_run(Path(config.run), saved)
    asked = replace(config, task=trained_model.fitted(config.task))
    return trained_model, asked, trained_model.fitted(saved.task)


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


def written_task(config: GenerateConfig, trained: Task) -> TextTask:
    """Returns the task whose texts are written: the run's, or that of its whole records for num.

    Args:
        config: Whose ``task`` is the run's, as overrides have changed it.
        trained: The task that the model was trained on.

    Raises:
        InputError: It writes no texts, or no whole records and ``num`` is given, or what says what
            was learned, such as ``task.learn_prompt``, is not what the model was trained with.
    """
    task = config.task
    if not isinstance(task, TextTask) or task.written_from is None:
        instead = "eval", "has it label a split"
        if isinstance(task, TextTask):
            instead = "export", "hands it on"
        raise InputError(
            f"run must name a model that writes texts, got {config.run}, whose model"
            f" (task={task.name}) {task.answers_how}; `dpft {instead[0]} run={config.run}`"
            f" {instead[1]}."
        )
    for key in ("learn_prompt", "objective"):
        _refuse_other_learning(key, task, trained)
    return task if config.num is None else _whole(task)


def _refuse_other_learning(key: str, task: Task, trained: Task) -> None:
    was, given = (str(vars(each).get(key)).lower() for each in (trained, task))
    if type(task) is type(trained) and was != given:
        raise InputError(
            f"task.{key} must be what the run was trained with, {was}, got {given}; drop it,"
            " or train anew with it."
        )


def _whole(task: TextTask) -> TextTask:
    whole = task.from_nothing
    if whole is None:
        custom = isinstance(task, CustomTexts)
        learned = ", or train with task.learn_prompt=true, for the model to write these, too"
        raise InputError(
            f"num needs a task whose whole record was trained on, got task={task.name}, whose model"
            f" goes on from {task.given_form}; give prompts=FILE with such rows"
            f"{learned if custom else ''}."
        )
    return whole


def prompts_of(config: GenerateConfig, task: TextTask, trained: Task) -> list[Prompt]:
    """Returns what the model goes on from: the user's prompts, or nothing ``num`` times.

    Raises:
        InputError: Prompts are given and the task's records have none; or the prompts are the
            run's own records, or not of the task's form.
    """
    if config.num is not None:
        return [({}, task.prompt({}))] * config.num
    if not task.given_columns:
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


def _say(task: TextTask, target: Target, written: Written) -> None:
    if task.written_columns:
        logger.info("%s", _parsed(task, target, written))
    if not written.rows:
        raise RunError(
            f"none of the {len(written.texts)} texts is a row by the task's template; they are in"
            f" {target.unparsed}. Train longer or with less noise, or give texts more room by"
            " decode.max_new_tokens."
        )
    logger.info("records: %s, what they cost: %s", target.records, target.statement)


def _parsed(task: TextTask, target: Target, written: Written) -> str:
    """Returns how many texts are rows, at once and in the end, and where the others are."""
    total, first, last = len(written.texts), written.unread[0], written.unread[-1]
    columns = ", ".join(task.written_columns)
    said = f"texts: {total - first} of {total} read as {columns} at once"
    retries = len(written.unread) - 1
    if retries:
        said += f", {total - last} after {retries} {'retry' if retries == 1 else 'retries'}"
    return said + (f"; the other {last} are in {target.unparsed}" if last else "")
