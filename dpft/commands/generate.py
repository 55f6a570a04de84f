"""``dpft generate``: synthetic records in a task's own format, and the statement of their cost.

No record that was trained on is read: the model goes on from the user's prompts, or from nothing
where whole records were trained on. A text that the task's template does not divide into columns is
drawn again, with other random numbers of the same seed, at most ``retries`` times; what is no row
then is kept in a file of its own.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from dpft.commands.exit_codes import crash_kept
from dpft.commands.guarantee import privacy_of
from dpft.commands.ledger_account import saved_run
from dpft.commands.rank_agreement import check_alike, check_same_model
from dpft.commands.run_cost import cut, loading_device
from dpft.commands.task_model import TrainedModel, trained_model_of_run
from dpft.commands.tracking import batch_progress
from dpft.config.schema import GenerateConfig, TrainConfig
from dpft.data.raw_rows import MEMORY, WRITERS, write_rows
from dpft.data.rows import Check, accept_all, are_records, load_prompts
from dpft.errors import InputError, RunError
from dpft.evaluation.evaluate import counter
from dpft.generation.decoding import Draws
from dpft.models.loading import quiet_transformers
from dpft.parallel.processes import own_device, started
from dpft.parallel.rank_environment import without_logging
from dpft.parallel.ranks import ALONE, Ranks
from dpft.reports.promises import OWN_RECORDS, Prompts, RunPrivacy
from dpft.reports.report import notes_on, statement
from dpft.run_folder import GENERATED, hold_run
from dpft.strict_model import write_model
from dpft.tasks.base import Example, Task, TextTask
from dpft.tasks.custom import CustomTexts

Prompt = tuple[Mapping[str, Any], Example]
"""A row in the task's format without its answer, and what the model goes on from."""
Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written after some prompts."""

    texts: tuple[str, ...]
    """The last text after each."""
    records: tuple[Record | None, ...]
    """The row that it is; None where it is none."""
    unread: tuple[int, ...]
    """How many were no rows after the first attempt, after the second, and so on."""

    @property
    def rows(self) -> list[Record]:
        """The rows, in the order of the prompts."""
        return [record for record in self.records if record is not None]

    def unparsed(self, prompts: Sequence[Prompt]) -> list[Record]:
        """Returns the texts that are no rows, each with the prompt's columns where it has any."""
        found = zip(prompts, self.texts, self.records, strict=True)
        return [
            {"text": text} | ({"prompt": dict(row)} if row else {})
            for (row, _), text, record in found
            if record is None
        ]


def write_records(
    config: GenerateConfig,
    task: TextTask,
    trained_model: TrainedModel,
    prompts: Sequence[Prompt],
    ranks: Ranks = ALONE,
) -> Written:
    """Returns what the model writes after each prompt, with a bar on a terminal.

    The processes share the prompts; each of them has what all have written.
    """
    with ranks.settled():
        device = own_device(config.train.prepare(), ranks)
        outputs = trained_model.outputs(
            task,
            loading_device(config.parallel, device),
            batch_size=config.batch_size,
            max_new_tokens=config.decode.max_new_tokens,
        )
    if ranks.size > 1:
        check_same_model(outputs.model, prompts, ranks)
        outputs = replace(outputs, ranks=ranks)
    if config.parallel.shards_model:
        cut(outputs.model, config.parallel, device, ranks)
    texts, unread = [""] * len(prompts), []
    places = list(range(len(prompts)))
    with batch_progress(shown=ranks.is_first) as show:
        # Where nothing is drawn, another attempt writes the same text.
        retries = config.retries if config.decode.draws else 0
        for attempt in range(1 + retries):
            draws = Draws(places=places, attempt=attempt)
            asked = [prompts[place][1] for place in places]
            doing = counter(f"attempt {attempt + 1}" if attempt else "records", len(asked), show)
            found = outputs.texts(asked, config.decode, doing, draws)
            for place, text in zip(places, found, strict=True):
                texts[place] = text
            places = [at for at in places if task.record(prompts[at][0], texts[at]) is None]
            unread.append(len(places))
            if not places:
                break
    records = [task.record(row, text) for (row, _), text in zip(prompts, texts, strict=True)]
    return Written(texts=tuple(texts), records=tuple(records), unread=tuple(unread))


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
    if target.records.suffix not in WRITERS:
        raise InputError(f"to must end in {', '.join(WRITERS)}, got {to!r}.")
    if target.records.suffix == ".csv" and task.holds_lists:
        raise InputError(
            f"to must end in .jsonl or .parquet for task={task.name}, whose rows hold lists, got"
            f" {to!r}; .csv has no place for them."
        )
    for path in _existing(target):
        raise InputError(f"to must be a new file, got {to!r}, but {path} exists; choose another.")
    above = next(parent for parent in target.records.parents if parent.exists())
    if not above.is_dir():
        raise InputError(f"to must be a new file, got {to!r}, but {above} is a file.")
    return target


def write(
    config: GenerateConfig,
    target: Target,
    *,
    privacy: RunPrivacy,
    task: TextTask,
    written: Written,
    prompts: Sequence[Prompt],
    source: Prompts,
) -> None:
    """Writes the files, the statement first: no records lie there without it.

    Records are no more open to other users than the prompts that stand in them, and how many of
    a user's prompts have become rows the statement does not say.
    """
    unparsed = written.unparsed(prompts)
    said = statement(
        privacy,
        run=_name_of(Path(config.run)),
        task=config.task.name,
        decode=config.decode,
        retries=config.retries,
        records=len(prompts),
        unparsed=len(unparsed) if task.written_columns and source == "none" else None,
        prompts=source,
    )
    target.records.parent.mkdir(parents=True, exist_ok=True)
    write_model(target.statement, said)
    try:
        for path, rows in ((target.unparsed, unparsed), (target.records, written.rows)):
            if rows:
                write_rows(path, rows, mode=_mode(config, source))
    except OSError:
        target.unparsed.unlink(missing_ok=True)
        target.statement.unlink()
        raise


def source_of_prompts(config: GenerateConfig, trained: Task) -> Prompts:
    """Return where prompts come from; the run's own files are recognized if they have not moved."""
    if config.prompts is None:
        return "none"
    is_own = config.prompts != MEMORY and are_records(trained, config.prompts)
    return OWN_RECORDS if is_own else "the user's"


def _mode(config: GenerateConfig, source: Prompts) -> int:
    if config.prompts is None:
        return 0o644
    if config.prompts == MEMORY or source == OWN_RECORDS:
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


logger = logging.getLogger(__name__)


def generate(config: GenerateConfig) -> Target:
    """Writes the records with a run's model, and beside them the statement of what they cost.

    A crash's text is kept in the run's private/.

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
            encoding = trained_model.encoding(task, max_new_tokens=config.decode.max_new_tokens)
            prompts = prompts_of(config, task, encoding.check)
            source = source_of_prompts(config, trained)

        def open_files() -> list[str]:
            held.enter_context(hold_run(folder))
            paths = new_files(folder, config.to, task)
            if not privacy.private or source == OWN_RECORDS:
                logger.warning(notes_on(privacy, source)[0])
            return [str(path) for path in paths]

        target = Target(*map(Path, ranks.first_to_all(open_files)))
        written = write_records(config, task, trained_model, prompts, ranks)
        ranks.first(
            write,
            config,
            target,
            privacy=privacy,
            task=task,
            written=written,
            prompts=prompts,
            source=source,
        )
        ranks.first(_tell, task, target, written)
    return target


def _with_model(
    config: GenerateConfig, saved: TrainConfig
) -> tuple[TrainedModel, GenerateConfig, Task]:
    """Returns a run's model, and both tasks with what the model says of them."""
    trained_model = trained_model_of_run(Path(config.run), saved)
    asked = config.replace(task=trained_model.fitted(config.task))
    return trained_model, asked, trained_model.fitted(saved.task)


def written_task(config: GenerateConfig, trained: Task) -> TextTask:
    """Returns the task whose texts are written: the run's, or that of its whole records for num.

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
        was, given = (str(vars(each).get(key)).lower() for each in (trained, task))
        if type(task) is type(trained) and was != given:
            raise InputError(
                f"task.{key} must be what the run was trained with, {was}, got {given}; drop it,"
                " or train anew with it."
            )
    if config.num is None:
        return task
    if task.from_nothing is None:
        custom = isinstance(task, CustomTexts)
        learned = ", or train with task.learn_prompt=true, for the model to write these, too"
        raise InputError(
            f"num needs a task whose whole record was trained on, got task={task.name}, whose model"
            f" goes on from {task.given_form}; give prompts=FILE with such rows"
            f"{learned if custom else ''}."
        )
    return task.from_nothing


def prompts_of(config: GenerateConfig, task: TextTask, check: Check = accept_all) -> list[Prompt]:
    """Returns what the model goes on from: the user's prompts, or nothing ``num`` times.

    ``check`` raises ``InputError`` for a prompt that the model cannot read.

    Raises:
        InputError: Prompts are given and the task's records have none, or they are not of the
            task's form.
    """
    if config.num is not None:
        return [({}, task.prompt({}))] * config.num
    if not task.given_columns:
        raise InputError(
            f"prompts needs a task whose records have a prompt, got task={task.name}, whose whole"
            " record was trained on; give num=N instead."
        )
    return list(load_prompts(task, str(config.prompts), check))


def _tell(task: TextTask, target: Target, written: Written) -> None:
    """Logs how many texts are rows, at once and in the end, and where they and the others are."""
    total, first, last = len(written.texts), written.unread[0], written.unread[-1]
    if task.written_columns:
        columns = ", ".join(task.written_columns)
        said = f"texts: {total - first} of {total} read as {columns} at once"
        retries = len(written.unread) - 1
        if retries:
            said += f", {total - last} after {retries} {'retry' if retries == 1 else 'retries'}"
        said += f"; the other {last} are in {target.unparsed}" if last else ""
        logger.info("%s", said)
    if not written.rows:
        raise RunError(
            f"none of the {total} texts is a row by the task's template; they are in"
            f" {target.unparsed}. Train longer or with less noise, or give texts more room by"
            " decode.max_new_tokens."
        )
    logger.info("records: %s, what they cost: %s", target.records, target.statement)
