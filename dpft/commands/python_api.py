"""Python API: functions such as ``dpft.train`` that do the same as the commands.

Overrides have the same meaning as on the command line (``"task=e2e"``, ``"privacy.eps=3"``). The
same configuration checks and composes them, and the same functions receive them. Values that do not
fit on a command line are passed as arguments.

Rows are kept in memory. A model and a tokenizer are written into ``private/base_model`` and read
from there like any other model. An interrupted run can therefore resume without the objects. The
objects themselves are never changed. If a command would reject its arguments, the function raises
the same message as ``InputError``, ``RunError`` or ``StateError``.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from omegaconf import DictConfig, OmegaConf
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dpft.commands import train as train_command
from dpft.commands import tune as tuning
from dpft.commands.account import answer
from dpft.commands.evaluate import evaluate as evaluate_command
from dpft.commands.finished_run import Run, open_run
from dpft.commands.generate import generate as write_records
from dpft.commands.new_run import has_begun, refuse_used_folder
from dpft.commands.overrides import (
    checked_overrides,
    evaluate_configuration,
    evaluate_overrides,
    generate_configuration,
    plan_configuration,
    train_configuration,
    tune_configuration,
    with_task_of_run,
)
from dpft.commands.plan import describe_run
from dpft.commands.run_plan import announce
from dpft.config.account import AccountConfig
from dpft.config.hydra_compose import Composed, Words, compose, given_overrides, given_text
from dpft.config.keys import AUTO, in_keys, quoted
from dpft.config.load import from_values, load
from dpft.config.schema import EvaluateConfig, GenerateConfig, PlanConfig, TrainCommand
from dpft.config.tune import TuneCommand
from dpft.data.raw_rows import MEMORY, TRAIN, Rows, Splits, file_rows, rows_in_memory
from dpft.data.rows import PROMPTS
from dpft.errors import DpftError, InputError
from dpft.evaluation.evaluate import Evaluation
from dpft.models.loading import quiet_transformers
from dpft.parallel.parallel_config import check_restarts
from dpft.reports.terminal import Figures
from dpft.run_folder import (
    BASE_MODEL,
    CONFIGURATION,
    LOCK,
    PRIVATE,
    TUNING,
    check_writable,
    hold_run,
    private_path,
    refuse_links,
)
from dpft.strict_model import as_json

Folder = str | os.PathLike[str]
IN_MEMORY = ("task.data_dir=null", f"task.source={MEMORY}")
"""Overrides that select rows in memory as the source, regardless of earlier overrides."""


def checked_words(overrides: Sequence[str], rows: object) -> list[str]:
    """Return a caller's overrides as a list.

    Args:
        overrides: ``key=value`` and ``group=option``.
        rows: Rows in memory, or None if there are none.

    Raises:
        InputError: An item is not an override, or an override sets another source although rows are
            given.
    """
    if isinstance(overrides, str):
        raise InputError(
            f"overrides must be a list of KEY=VALUE arguments, got {overrides!r}.",
            key="overrides",
            value=overrides,
            hint=f"[{overrides!r}]",
        )
    for word in overrides:
        if not isinstance(word, str):  # The caller may have passed a row.
            raise InputError(
                f"overrides must contain KEY=VALUE arguments, got a {type(word).__name__}. Pass"
                " rows of data as rows=ROWS.",
                key="overrides",
            )
        if word.startswith("-") or "=" not in word:
            raise InputError(
                f"overrides must contain KEY=VALUE arguments, got {word!r}. Only the command line"
                " supports sweeps and other flags.",
                key="overrides",
                value=word,
            )
    for key in ("task.data_dir", "task.source"):
        if rows is not None and given_text(overrides, key) is not None:
            raise InputError(f"at most one of {key} and rows may be given, got both.", key=key)
    return list(overrides)


def memory_words(rows: object, resumed: str | None = None) -> tuple[str, ...]:
    """Return the overrides that read rows from memory; a resumed run keeps its own source."""
    return () if rows is None or resumed is not None else IN_MEMORY


def run_and_words(
    run: Folder | Sequence[str] | None, overrides: Sequence[str], rows: object, *, call: str
) -> list[str]:
    """Return the overrides of a call; its first argument is a run, or overrides as for ``train``.

    Args:
        run: A run, its folder, or overrides; None if only ``overrides`` is given.
        overrides: Further overrides.
        rows: Rows in memory, or None if there are none.
        call: An example of the call, for messages.

    Raises:
        InputError: As in ``checked_words``, or the first argument is neither a run nor overrides.
    """
    if run is None:
        return checked_words(overrides, rows)
    if isinstance(run, str | os.PathLike):
        return [f"run={quoted(os.fspath(run))}", *checked_words(overrides, rows)]
    if not isinstance(run, list | tuple):
        raise InputError(
            "The first argument must be a run or a list of KEY=VALUE arguments, got a"
            f" {type(run).__name__}.",
            key="run",
            hint=call,
        )
    return checked_words([*run, *checked_words(overrides, rows)], rows)


def as_word(value: Any) -> str:
    """Return a number or a path as the value of an override."""
    value = as_text(value)
    return str(value) if isinstance(value, int) else quoted(os.fspath(value))


@dataclass(frozen=True)
class Command:
    """A command whose configuration is composed by a call from Python."""

    name: str
    root: type
    load: Callable[[DictConfig, Words], Any]

    def compose(self, words: Sequence[str], folder: Folder | None = None) -> Composed:
        """Return the composition of the overrides, with the caller's folder if one is given."""
        place = [] if folder is None else [f"hydra.run.dir={quoted(os.fspath(folder))}"]
        return compose(self.name, [*words, *place], self.root)

    def place(self, words: list[str], folder: Folder | None, resumed: str | None) -> Path:
        """Return a run's folder: the given folder, the resumed run's folder, or a new folder."""
        if folder is not None and resumed is not None:
            raise InputError(
                f"at most one of resume and folder may be given, got both ({resumed}).",
                key="folder",
                value=os.fspath(folder),
            )
        given = folder if folder is not None else resumed
        return Path(given) if given is not None else self.compose(words).folder


TRAIN_COMMAND = Command("train", TrainCommand, train_configuration)
TUNE_COMMAND = Command("tune", TuneCommand, tune_configuration)
PLAN_COMMAND = Command("plan", PlanConfig, plan_configuration)
EVALUATE_COMMAND = Command("eval", EvaluateConfig, evaluate_configuration)
ACCOUNT_COMMAND = Command(
    "account", AccountConfig, lambda composed, _: load(composed, AccountConfig)
)
GENERATE_COMMAND = Command("generate", GenerateConfig, generate_configuration)


def as_text(value: Any) -> Any:
    """Return a setting with runs and paths converted to text."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [as_text(inner) for inner in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def model_words(model: object, tokenizer: object, overrides: list[str], folder: Path) -> list[str]:
    """Return the overrides that select a model given as an object, or no overrides without a model.

    Raises:
        InputError: Only one of model and tokenizer is given, an object has the wrong type, or the
            overrides select a model too.
    """
    if model is None and tokenizer is None:
        return []
    if not isinstance(model, PreTrainedModel):
        kind = type(model).__name__
        advice = (
            "Pass the base model, with the weights of any adapters merged, and method=lora."
            if kind.startswith("Peft")
            else "Train any other module with dpft.privacy.clipping.PerExampleClipper in your own"
            " loop."
        )
        raise InputError(
            f"model must be a transformers.PreTrainedModel, got {kind}. {advice}",
            key="model",
            value=kind,
        )
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise InputError(
            "tokenizer must be the model's transformers tokenizer, got"
            f" {type(tokenizer).__name__}. Load it with AutoTokenizer.from_pretrained.",
            key="tokenizer",
            value=type(tokenizer).__name__,
        )
    chosen = sorted({"model", "model.path", "model.hub_name"} & set(given_overrides(overrides)))
    if chosen:
        raise InputError(
            f"at most one of {chosen[0]}= and a model object may be given, got both.",
            key=chosen[0],
        )
    name = (model.name_or_path or "").rpartition("/")[2] or str(model.config.model_type)
    path = quoted(str(folder / BASE_MODEL))
    return ["model=local", f"model.name={quoted(name)}", f"model.path={path}"]


@contextmanager
def kept_model(model: object, tokenizer: object, folder: Path) -> Iterator[None]:
    """Keep a model and its tokenizer in a run's folder, unless the run in the block is rejected.

    Raises:
        InputError: Privacy was spent in the folder, or the folder is not writable.
    """
    if model is None:
        yield
        return
    assert isinstance(model, PreTrainedModel) and isinstance(tokenizer, PreTrainedTokenizerBase)
    refuse_links(folder)
    refuse_used_folder(folder)
    check_writable(folder)
    places = (folder / PRIVATE, folder, *folder.parents)
    missing = [place for place in places if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    ours = False
    try:
        with hold_run(folder):
            ours = True  # Another process that holds the folder may have put its own model there.
            path = private_path(folder, BASE_MODEL)
            shutil.rmtree(path, ignore_errors=True)
            model.save_pretrained(path, safe_serialization=True)
            tokenizer.save_pretrained(path)
            for file in path.iterdir():
                file.chmod(0o600)
        yield
    finally:
        begun = (folder / CONFIGURATION).exists() or (folder / TUNING).exists()
        if ours and not begun:
            shutil.rmtree(folder / BASE_MODEL, ignore_errors=True)
            with suppress(OSError):  # A folder still contains a file.
                for place in missing:
                    if place.name == PRIVATE:
                        (place.parent / LOCK).unlink(missing_ok=True)
                    place.rmdir()


GENERATE_CALL = "dpft.generate(RUN, num=5)"
GENERATE_WORDS = 'dpft.generate(["run=RUN", "num=5"])'
"""The two ways to call ``generate``, for messages."""


@dataclass(frozen=True, kw_only=True)
class Generated:
    """Synthetic records and the paths of their files."""

    records: list[dict[str, Any]] = field(repr=False)
    """The records, in the task's own format."""
    path: Path
    """File of the records."""
    statement: Path
    """File that states the privacy cost of the records."""


@contextmanager
def _named_by_keys() -> Iterator[None]:
    """Make errors raised in the block name configuration keys that the caller set (``in_keys``)."""
    try:
        yield
    except DpftError as error:
        error.args = tuple(in_keys(str(sentence)) for sentence in error.args)
        raise


def train(
    overrides: Sequence[str] = (),
    *,
    rows: Rows | Splits | None = None,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    folder: Folder | None = None,
) -> Run:
    """Fine-tune, evaluate and report, as ``dpft train`` does, and return the finished run.

    Examples:
        >>> run = dpft.train(["task=e2e", "model=tiny", "privacy.eps=3"])  # doctest: +SKIP
        >>> run = dpft.train(  # doctest: +SKIP
        ...     ["task=custom", 'task.text="{note}"', "model=tiny", "privacy.eps=8"], rows=frame
        ... )

    Args:
        overrides: ``key=value`` and ``group=option``. ``resume=FOLDER`` resumes a run, and
            ``resume=auto`` resumes the run in ``folder`` if there is one.
        rows: The training records, or tables by split, instead of the task's own source. The
            records count as private and are never written to disk.
        model: A Transformers model, instead of ``model=``. It is copied and not changed.
        tokenizer: The tokenizer of the model.
        folder: Folder of the run. None creates a folder under ``outputs/``, or uses the folder of
            ``resume=``.

    Raises:
        InputError: An argument is invalid. This is raised before any record is used.
        RunError: Training failed, or the clipper is not exact on this model.
        StateError: A file of a resumed run is damaged.
    """
    given = {"rows": rows, "model": model, "tokenizer": tokenizer}
    return _carried_out(TRAIN_COMMAND, train_command.train, overrides, folder, **given)


def tune(
    overrides: Sequence[str] = (),
    *,
    rows: Rows | Splits | None = None,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    folder: Folder | None = None,
) -> Run:
    """Search for the best settings within one epsilon, as ``dpft tune`` does; return the best run.

    The arguments are the same as in ``train``.

    Raises:
        InputError: An argument is invalid. This is raised before any record is used.
        RunError: No trial has a score.
        StateError: A file of a resumed search is damaged.
    """
    given = {"rows": rows, "model": model, "tokenizer": tokenizer}
    return _carried_out(TUNE_COMMAND, tuning.run, overrides, folder, **given)


@_named_by_keys()
def plan(overrides: Sequence[str] = (), *, rows: Rows | Splits | None = None) -> Figures:
    """Return the plan and the cost of ``train`` with the same overrides, as ``dpft plan`` does.

    Args:
        overrides: As in ``train``; ``plan.measure=false`` omits the time.
        rows: As in ``train``; the rows are only counted.

    Returns:
        The keys of ``dpft plan output=json``, also available as attributes: ``.steps``,
        ``.noise_multiplier``.

    Raises:
        InputError: As in ``train``.
    """
    words = checked_overrides([*checked_words(overrides, rows), *memory_words(rows)])
    composed = PLAN_COMMAND.compose(words)
    quiet_transformers()
    with rows_in_memory(rows):
        planned = describe_run(plan_configuration(composed.values, composed.words))
        return Figures(as_json(planned.record))


def evaluate(
    run: Folder | Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    *,
    rows: Rows | Splits | None = None,
    folder: Folder | None = None,
) -> list[Evaluation]:
    """Score a run's model, any other model, or a file of outputs, as ``dpft eval`` does.

    Args:
        run: A run or its folder. None means that the overrides select another model or
            ``predictions=``. A list is interpreted as overrides, as in ``train``.
        overrides: As on the command line.
        rows: Records to score instead of the task's own source, or tables by split. If the run held
            records out, pass all records that the run received. Only the held-out records are then
            scored; ``eval.held_out=null`` scores all rows.
        folder: Folder for the scores if there is no ``run``; None creates a folder under
            ``outputs/``.

    Returns:
        The scores of each part of the split (``.metrics``), with the texts that were scored.

    Raises:
        InputError: An argument is invalid.
        StateError: A file of the run is damaged.
    """
    if run is not None and folder is not None:
        raise InputError(
            "at most one of run and folder may be given, got both. Remove folder.", key="folder"
        )
    words = run_and_words(run, overrides, rows, call="dpft.evaluate(RUN)")
    if not words:
        raise InputError(
            "evaluate needs a run or a model to score, got neither.",
            key="run",
            hint='dpft.evaluate(RUN) or dpft.evaluate(["task=NAME", "model=NAME"])',
        )
    given = [*words, *memory_words(rows)]
    composed = EVALUATE_COMMAND.compose(evaluate_overrides(given), folder)
    config = evaluate_configuration(composed.values, composed.words)
    place = composed.folder if config.run is None else Path(config.run)
    split = config.eval.split if config.eval.held_out is None else TRAIN
    with rows_in_memory(rows, split=split):
        return evaluate_command(config, place, composed=composed)


def generate(
    run: Folder | Sequence[str],
    overrides: Sequence[str] = (),
    *,
    num: int | None = None,
    prompts: Folder | Rows | None = None,
    to: Folder | None = None,
) -> Generated:
    """Write synthetic records with a run's model, as ``dpft generate`` does; this costs no epsilon.

    Args:
        run: A run or its folder; or the overrides, as in ``train``, including ``run=``.
        overrides: As on the command line.
        num: Number of records to write without a prompt, if the model was trained on whole records.
        prompts: Rows in the task's own format, in memory or as a file. Only the columns of the
            prompt are read.
        to: File to write; None creates a file in the run's folder.

    Raises:
        InputError: An argument is invalid.
        StateError: A file of the run is damaged.
    """
    in_memory = None if prompts is None or isinstance(prompts, str | os.PathLike) else prompts
    given = {"num": num, "prompts": prompts if in_memory is None else MEMORY, "to": to}
    words = [f"{key}={as_word(value)}" for key, value in given.items() if value is not None]
    asked = run_and_words(run, overrides, None, call=f"{GENERATE_CALL} or {GENERATE_WORDS}")
    if given_text(asked, "run") is None:
        raise InputError(
            "generate needs a run, got none.",
            key="run",
            hint=f"{GENERATE_CALL} or {GENERATE_WORDS}",
        )
    words = [*asked, *words]
    composed = GENERATE_COMMAND.compose(with_task_of_run(words))
    with rows_in_memory(in_memory, split=PROMPTS):
        target = write_records(generate_configuration(composed.values, composed.words))
    records = [dict(row.sound()) for row in file_rows(target.records)]
    return Generated(records=records, path=target.records, statement=target.statement)


def account(overrides: Sequence[str] = (), **settings: Any) -> Figures:
    """Return epsilon from noise, noise from epsilon, or the cost of runs, as ``dpft account`` does.

    Examples:
        >>> account(
        ...     num_examples=1000, expected_batch_size=10, steps=100, noise_multiplier=1.0
        ... ).steps
        100
        >>> account(
        ...     ["num_examples=1000", "expected_batch_size=10", "steps=100", "noise_multiplier=1"]
        ... ).steps
        100

    Args:
        overrides: ``key=value``, as in ``train``.
        settings: The same keys as arguments, which take precedence over ``overrides``.

    Returns:
        The keys of ``dpft account output=json``, also available as attributes: ``.epsilon``.

    Raises:
        InputError: A key is unknown, too little is given, or the budget is out of reach.
        StateError: The ledger of a run is damaged.
    """
    if isinstance(overrides, str | os.PathLike):
        raise InputError(
            f"overrides must be a list of KEY=VALUE arguments, got {os.fspath(overrides)!r}.",
            key="overrides",
            value=overrides,
            hint='dpft.account(["run=RUN"]) or dpft.account(run=RUN)',
        )
    given = {key: as_text(value) for key, value in settings.items()}
    chosen = given.pop("mechanism") if isinstance(given.get("mechanism"), str) else None
    words = checked_words(overrides, None)
    words += [] if chosen is None else [f"mechanism={chosen}"]
    if words:
        composed = ACCOUNT_COMMAND.compose(words).values
        given = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=True)) | given
    return Figures(as_json(answer(from_values(given, AccountConfig)).record))


@_named_by_keys()
def _carried_out(
    command: Command,
    run: Callable[..., None],
    overrides: Sequence[str],
    folder: Folder | None,
    *,
    rows: Any,
    model: object,
    tokenizer: object,
) -> Run:
    """Run train or tune with overrides and objects, and return the finished run."""
    given = checked_words(overrides, rows)
    resumed = given_text(given, "resume")
    check_restarts(
        resumes=resumed is not None, advice="give folder=FOLDER, and 'resume=auto' to train"
    )
    if resumed == AUTO:
        if folder is None:
            raise InputError(
                "resume=auto needs a folder that stays the same at each start.",
                key="folder",
                hint='folder="outputs/mine"',
            )
        resumed = None
    place = command.place(given, folder, resumed)
    chosen = model_words(model, tokenizer, given, place)
    words = [*chosen, *given, *memory_words(rows, resumed)]
    composed = command.compose(checked_overrides(words), place)
    quiet_transformers()
    configuration = command.load(composed.values, composed.words)
    announce(configuration)
    # With resume=auto, the resumed run has kept its own copy of the model.
    resumes = given_text(given, "resume") == AUTO and has_begun(place)
    kept = kept_model(None if resumes else model, tokenizer, place)
    with rows_in_memory(rows), kept:
        run(configuration, place, composed=composed)
    return open_run(place)
