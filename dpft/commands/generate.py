"""``dpft generate``: write synthetic records with a run's model, and a statement of their epsilon.

The command reads no training record. The model continues prompts of the user, or generates whole
records without a prompt if it was trained on whole records. If the task's template cannot parse a
text into columns, the text is sampled again with other random numbers of the same seed, at most
``retries`` times. Texts that still cannot be parsed go to a separate file.
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
from dpft.commands.progress_bars import batch_progress
from dpft.commands.rank_agreement import check_alike, check_same_model
from dpft.commands.run_cost import loading_device, shard_model
from dpft.commands.task_model import TrainedModel, trained_model_of_run
from dpft.config.keys import in_shell
from dpft.config.schema import GenerateConfig
from dpft.data.raw_rows import MEMORY, WRITERS, write_rows
from dpft.data.rows import Check, accept_all, are_records, load_prompts
from dpft.errors import InputError, RunError
from dpft.evaluation.evaluate import counter
from dpft.generation.decoding import Draws
from dpft.models.loading import quiet_transformers
from dpft.parallel.processes import own_device, started
from dpft.parallel.rank_environment import without_logging
from dpft.parallel.ranks import ALONE, Ranks
from dpft.reports.privacy_json import OWN_RECORDS, Prompts, RunPrivacy
from dpft.reports.report import notes_on, statement
from dpft.run_folder import GENERATED, hold_run
from dpft.strict_model import write_model
from dpft.tasks.base import Example, Task, TextTask
from dpft.tasks.custom import CustomTexts

logger = logging.getLogger(__name__)

Prompt = tuple[Mapping[str, Any], Example]
"""Row in the format of the task without its answer, and the example that the model continues."""
Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class GeneratedTexts:
    """Texts that were generated for some prompts."""

    texts: tuple[str, ...]
    """The last text for each prompt."""
    records: tuple[Record | None, ...]
    """The row that was parsed from each text, or None for an invalid text."""
    unread: tuple[int, ...]
    """Number of invalid texts after the first attempt, after the second, and so on."""

    @property
    def rows(self) -> list[Record]:
        """The valid rows, in the order of the prompts."""
        return [record for record in self.records if record is not None]

    def unparsed(self, prompts: Sequence[Prompt]) -> list[Record]:
        """Return the invalid texts, each with the columns of its prompt if the prompt has any."""
        answers = zip(prompts, self.texts, self.records, strict=True)
        return [
            {"text": text} | ({"prompt": dict(row)} if row else {})
            for (row, _), text, record in answers
            if record is None
        ]


class GeneratedFiles(NamedTuple):
    """Paths of the files to write."""

    records: Path
    """The rows, in the format of the file name's extension."""
    statement: Path
    """The privacy statement of the rows."""
    unparsed: Path
    """The invalid texts, if there are any."""


def generate(config: GenerateConfig) -> GeneratedFiles:
    """Write records with a run's model, and a statement of their epsilon next to them.

    The traceback of a crash is stored in the run's ``private/``.

    Raises:
        InputError: The configuration is invalid, or another process writes to the run's folder.
        RunError: No text can be parsed into a row.
        StateError: A file of the run is damaged.
    """
    quiet_transformers()
    folder = Path(config.run)
    with ExitStack() as stack:
        # 1. The processes, the run's model and its guarantee.
        ranks = stack.enter_context(started(config.parallel))
        stack.enter_context(crash_kept(folder) if ranks.is_rank_0 else without_logging())
        check_alike(config, ranks)
        with ranks.failing_together():
            saved, privacy = saved_run(config.run), privacy_of(folder)
            trained_model = trained_model_of_run(folder, saved)
            trained = trained_model.fitted(saved.task)

            # 2. The prompts that the model continues. They are empty for whole records.
            config = config.replace(task=trained_model.fitted(config.task))
            task = generated_task(config, trained)
            encoding = trained_model.encoding(task, max_new_tokens=config.decode.max_new_tokens)
            prompts = prompts_of(config, task, encoding.check)
            source = source_of_prompts(config, trained)

        # 3. The files to write; the run's folder is locked.
        ranks.on_rank_0(stack.enter_context, hold_run(folder))
        paths = ranks.broadcast_from_rank_0(
            lambda: [str(p) for p in new_files(folder, config.to, task)]
        )
        files = GeneratedFiles(*map(Path, paths))
        if ranks.is_rank_0 and (not privacy.private or source == OWN_RECORDS):
            logger.warning(notes_on(privacy, source)[0])

        # 4. The texts, and the statement and the records on disk.
        texts = generate_texts(config, task, trained_model, prompts, ranks)
        ranks.on_rank_0(
            write_generated,
            config,
            files,
            privacy=privacy,
            task=task,
            texts=texts,
            prompts=prompts,
            source=source,
        )
        ranks.on_rank_0(_log_outcome, task, files, texts)
    return files


def generated_task(config: GenerateConfig, trained: Task) -> TextTask:
    """Return the run's task, or the corresponding task for whole records if ``num`` is given.

    Raises:
        InputError: The task generates no texts, the task generates no whole records although
            ``num`` is given, or a key such as ``task.learn_prompt`` differs from training.
    """
    task = config.task
    if not isinstance(task, TextTask) or task.written_from is None:
        command = "export" if isinstance(task, TextTask) else "eval"
        raise InputError(
            f"dpft generate needs a generative model, but the model of {config.run}"
            f" (task={task.name}) {task.answers_how}.",
            key="run",
            value=config.run,
            hint=f"dpft {command} {in_shell('run', config.run)}",
        )
    for key in ("learn_prompt", "objective"):
        was, given = (str(vars(one).get(key)).lower() for one in (trained, task))
        if type(task) is type(trained) and was != given:
            raise InputError(
                f"task.{key} must be {was}, as the run was trained, got {given}. Remove the"
                " argument, or train a new run with it.",
                key=f"task.{key}",
                value=given,
            )
    if config.num is None:
        return task
    if task.from_nothing is None:
        custom = isinstance(task, CustomTexts)
        learned = ", or train with task.learn_prompt=true to generate these columns too"
        raise InputError(
            f"num needs a model that was trained on whole records, but task={task.name} generates"
            f" from {task.given_form}. Pass these with prompts=FILE{learned if custom else ''}.",
            key="num",
            value=config.num,
        )
    return task.from_nothing


def prompts_of(config: GenerateConfig, task: TextTask, check: Check = accept_all) -> list[Prompt]:
    """Return the prompts that the model continues: the user's, or ``num`` empty prompts.

    ``check`` raises ``InputError`` for a prompt that the model cannot read.

    Raises:
        InputError: Prompts are given although the task has no prompts, or they do not have the
            format of the task.
    """
    if config.num is not None:
        return [({}, task.prompt({}))] * config.num
    if not task.given_columns:
        raise InputError(
            f"prompts needs a task that is trained on prompts, but task={task.name} is trained on"
            " whole records.",
            key="prompts",
            value=config.prompts,
            hint="num=100",
        )
    return list(load_prompts(task, str(config.prompts), check))


def source_of_prompts(config: GenerateConfig, trained: Task) -> Prompts:
    """Return the source of the prompts: no prompts, the run's own data, or the user.

    The run's own data files are recognized only if they have not moved.
    """
    if config.prompts is None:
        return "none"
    is_own = config.prompts != MEMORY and are_records(trained, config.prompts)
    return OWN_RECORDS if is_own else "the user's"


def new_files(folder: Path, to: str | None, task: TextTask) -> GeneratedFiles:
    """Return the files to write, in the run's folder ``generated`` unless ``to`` names a file.

    Raises:
        InputError: A file exists or cannot be created, the extension of ``to`` names no format, or
            the format cannot store the task's rows.
    """
    if to is None:
        numbers = range(1, len(list((folder / GENERATED).glob("*"))) + 2)
        candidates = [_files_of(folder / GENERATED / f"{number}.jsonl") for number in numbers]
        return next(target for target in candidates if not _existing(target))
    target = _files_of(Path(to).expanduser())
    if target.records.suffix not in WRITERS:
        raise InputError(f"to must end in {', '.join(WRITERS)}, got {to!r}.", key="to", value=to)
    if target.records.suffix == ".csv" and task.holds_lists:
        raise InputError(
            f"to must end in .jsonl or .parquet for task={task.name}, got {to!r}. The rows contain"
            " lists, which .csv cannot store.",
            key="to",
            value=to,
        )
    for path in _existing(target):
        raise InputError(
            f"to must be a new file, got {to!r}, but {path} exists. Choose another name.",
            key="to",
            value=to,
        )
    above = next(parent for parent in target.records.parents if parent.exists())
    if not above.is_dir():
        raise InputError(
            f"to must be a new file, got {to!r}, but {above} is a file.", key="to", value=to
        )
    return target


def _files_of(records: Path) -> GeneratedFiles:
    stem = records.stem
    return GeneratedFiles(
        records=records,
        statement=records.with_name(f"{stem}.privacy.json"),
        unparsed=records.with_name(f"{stem}.unparsed.jsonl"),
    )


def _existing(files: GeneratedFiles) -> list[Path]:
    return [path for path in files if path.exists() or path.is_symlink()]


def generate_texts(
    config: GenerateConfig,
    task: TextTask,
    trained_model: TrainedModel,
    prompts: Sequence[Prompt],
    ranks: Ranks = ALONE,
) -> GeneratedTexts:
    """Return the generated texts for all prompts, with a progress bar on a terminal.

    The processes share the prompts, and each process returns the texts of all.
    """
    with ranks.failing_together():
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
        shard_model(outputs.model, config.parallel, device, ranks)
    texts, unread = [""] * len(prompts), []
    places = list(range(len(prompts)))
    with batch_progress(shown=ranks.is_rank_0) as show:
        # Without sampling, another attempt would generate the same text.
        retries = config.retries if config.decode.draws else 0
        for attempt in range(1 + retries):
            draws = Draws(places=places, attempt=attempt)
            asked = [prompts[place][1] for place in places]
            count = counter(f"attempt {attempt + 1}" if attempt else "records", len(asked), show)
            new_texts = outputs.texts(asked, config.decode, count, draws)
            for place, text in zip(places, new_texts, strict=True):
                texts[place] = text
            places = [at for at in places if task.record(prompts[at][0], texts[at]) is None]
            unread.append(len(places))
            if not places:
                break
    records = [task.record(row, text) for (row, _), text in zip(prompts, texts, strict=True)]
    return GeneratedTexts(texts=tuple(texts), records=tuple(records), unread=tuple(unread))


def write_generated(
    config: GenerateConfig,
    files: GeneratedFiles,
    *,
    privacy: RunPrivacy,
    task: TextTask,
    texts: GeneratedTexts,
    prompts: Sequence[Prompt],
    source: Prompts,
) -> None:
    """Write the files, the statement first, so that no records exist without a statement.

    The file of records gets at most the read permissions of the prompts, because it contains them.
    The statement does not reveal how many of a user's prompts became rows.
    """
    unparsed = texts.unparsed(prompts)
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
    files.records.parent.mkdir(parents=True, exist_ok=True)
    write_model(files.statement, said)
    try:
        for path, rows in ((files.unparsed, unparsed), (files.records, texts.rows)):
            if rows:
                write_rows(path, rows, mode=_mode(config, source))
    except OSError:
        files.unparsed.unlink(missing_ok=True)
        files.statement.unlink()
        raise


def _mode(config: GenerateConfig, source: Prompts) -> int:
    if config.prompts is None:
        return 0o644
    if config.prompts == MEMORY or source == OWN_RECORDS:
        return 0o600
    return 0o600 | (0o644 & Path(config.prompts).expanduser().stat().st_mode)


def _name_of(run: Path) -> str:
    """Return the name of a run, such as DATE/TIME, without the absolute path on this machine."""
    return "/".join(run.parts[-2:]) if run.is_absolute() else str(run)


def _log_outcome(task: TextTask, files: GeneratedFiles, texts: GeneratedTexts) -> None:
    """Log the number of valid texts after the first and after all attempts, and the file paths.

    Raises:
        RunError: No text is valid.
    """
    total, first, last = len(texts.texts), texts.unread[0], texts.unread[-1]
    if task.written_columns:
        columns = ", ".join(task.written_columns)
        said = f"texts: {total - first} of {total} contain {columns} at the first attempt"
        retries = len(texts.unread) - 1
        if retries:
            said += f", {total - last} after {retries} {'retry' if retries == 1 else 'retries'}"
        said += f"; {last} invalid texts: {files.unparsed}" if last else ""
        logger.info("%s", said)
    if not texts.rows:
        raise RunError(
            f"none of the {total} texts matches the template of the task; they are in"
            f" {files.unparsed}. Train longer or with less noise, or allow longer texts with"
            " decode.max_new_tokens."
        )
    logger.info("records: %s; privacy statement: %s", files.records, files.statement)
