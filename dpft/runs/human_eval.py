"""``dpft eval run=RUN human_eval=N``: the rating sheet of one run or several, and its key.

Every run reads its own form of the same inputs: the task of each is loaded as that run knows it,
and what the raters see must be the same for all. ``dpft.evaluation.ratings`` describes the sheet.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from dpft.config.schema import EvaluateConfig
from dpft.data.rows import Check
from dpft.errors import InputError
from dpft.evaluation.eval_config import eval_split_is_public, reads_training_split
from dpft.evaluation.evaluate import Group, group_examples
from dpft.evaluation.ratings import (
    REFERENCE,
    Item,
    choose_inputs,
    sheet_key,
    sheet_rows,
    sheet_text,
)
from dpft.files import PRIVATE, SCHEMA_VERSION, SHEET, SHEET_KEY, hold_run, write_text
from dpft.generation.decoding import STRATEGIES, DecodeConfig
from dpft.records.form import write_record
from dpft.records.scores import SheetDecoding
from dpft.runs.held_out import HELD_OUT, records_to_score
from dpft.runs.saved_run import saved_run
from dpft.runs.task_model import TrainedModel, trained_model_of_run
from dpft.tasks.base import TextTask, are_texts

logger = logging.getLogger(__name__)


def rated_runs(config: EvaluateConfig) -> list[str]:
    """Returns the folders of the runs on the sheet.

    Raises:
        InputError: One is no finished run, or is of another task than the first.
    """
    folders = [str(config.run), *config.human_eval_runs]
    names = [saved_run(folder).task.name for folder in folders]
    for folder, name in zip(folders, names, strict=True):
        if name != names[0]:
            raise InputError(
                f"human_eval_runs must be runs of task={names[0]}, as {folders[0]}, got {folder} of"
                f" task={name}."
            )
    return folders


def write_sheet(runs: Sequence[EvaluateConfig]) -> None:
    """Writes the sheet and its key for the first run's folder, and prints where they are.

    They go to its private/ unless the split is public for every run. The runs are of one task; the
    first says how texts are written.
    """
    first = runs[0]
    systems = [*(str(config.run) for config in runs), REFERENCE]
    public = all(eval_split_is_public(config.task, config.eval) for config in runs)
    folder = Path(systems[0])
    place = folder if public else folder / PRIVATE
    _check_runs(runs, systems, place)
    decode = replace(first.decode, strategy=first.human_eval_strategy)
    trained_models, checks = [], []
    for config in runs:
        trained = trained_model_of_run(Path(str(config.run)), saved_run(str(config.run)))
        encoding = trained.encoding(config.task, max_new_tokens=decode.max_new_tokens)
        checks.append(encoding.check)
        trained_models.append(trained)
    groups = _chosen_groups(runs, checks)
    with hold_run(folder):
        answers = [
            _responses(config, trained_model, chosen, decode)
            for config, trained_model, chosen in zip(runs, trained_models, groups, strict=True)
        ]
        # Of the references the first that is not blank.
        answers.append([next(filter(str.strip, each.references), "") for each in groups[0]])
        items = [
            Item(context=group.input, responses=dict(zip(systems, texts, strict=True)))
            for group, texts in zip(groups[0], zip(*answers, strict=True), strict=True)
        ]
        rows = sheet_rows(items, seed=first.human_eval_seed)
        key = sheet_key(
            rows,
            systems,
            task=first.task.name,
            split=first.eval.split if first.eval.held_out is None else HELD_OUT,
            split_is_public=public,
            seed=first.human_eval_seed,
            decode=SheetDecoding(**asdict(decode)),
        )
        mode = 0o644 if public else 0o600
        write_record(place / SHEET_KEY, key, mode=mode)
        write_text(place / SHEET, sheet_text(rows), mode=mode)
    _show(first, place, items=len(items), rows=len(rows))


def _check_runs(runs: Sequence[EvaluateConfig], systems: Sequence[str], place: Path) -> None:
    """Refuses runs that do not belong on one sheet, and to write over a sheet."""
    task, split = runs[0].task, runs[0].eval.split
    if not isinstance(task, TextTask) or not task.prompt_columns:
        raise InputError(
            "human_eval needs a task that answers inputs with texts, got a run of"
            f" task={task.name}; score it without human_eval."
        )
    if runs[0].human_eval_strategy not in STRATEGIES:
        raise InputError(
            f"human_eval_strategy must be one of {', '.join(STRATEGIES)},"
            f" got {runs[0].human_eval_strategy!r}."
        )
    if any(reads_training_split(config.task, config.eval) for config in runs):
        raise InputError(
            f"human_eval must not show training records to people, got eval.split={split}; choose"
            " validation or test."
        )
    folders = [Path(system).resolve() for system in systems]
    if len(set(folders)) < len(folders):
        raise InputError(
            "run and human_eval_runs must be different folders, none of them called"
            f" {REFERENCE}, got {', '.join(systems[:-1])}."
        )
    for config in runs[1:]:
        if config.eval.split != split:
            raise InputError(
                f"human_eval_runs must be runs with eval.split={split}, as {runs[0].run}, got"
                f" {config.run} with eval.split={config.eval.split}; eval.split={split} on the"
                " command line is for all."
            )
    for name in (SHEET, SHEET_KEY):
        if (place / name).exists():
            raise InputError(
                f"{place / name} exists, and the sheet may hold ratings; move sheet and key to"
                " another folder, together."
            )


def _chosen_groups(runs: Sequence[EvaluateConfig], checks: Sequence[Check]) -> list[list[Group]]:
    """Returns the inputs of the sheet as each run knows them; each run's model has a check."""
    first = runs[0]
    splits = [
        _groups(config, check, limit=first.eval.limit)
        for config, check in zip(runs, checks, strict=True)
    ]
    names = [group.input for group in splits[0]]
    for config, groups in zip(runs, splits, strict=True):
        if [group.input for group in groups] != names:
            raise InputError(
                f"human_eval_runs must be runs with the same evaluation records as {first.run}, got"
                f" {config.run}, whose {config.eval.split} split has other inputs."
            )
    assert first.human_eval is not None
    chosen = choose_inputs(len(names), first.human_eval, seed=first.human_eval_seed)
    return [[groups[index] for index in chosen] for groups in splits]


def _groups(config: EvaluateConfig, check: Check, *, limit: int | None) -> list[Group]:
    records = [record for part in records_to_score(config, check).values() for record in part]
    assert are_texts(records)
    return group_examples(records, limit=limit)


def _responses(
    config: EvaluateConfig,
    trained_model: TrainedModel,
    groups: Sequence[Group],
    decode: DecodeConfig,
) -> list[str]:
    """Returns what a run's model answers to each input."""
    outputs = trained_model.outputs(
        config.task,
        config.train.prepare(),
        batch_size=config.eval.batch_size,
        max_new_tokens=decode.max_new_tokens,
    )
    logger.info("responses of %s", config.run)
    return outputs.texts([group.examples[0] for group in groups], decode, lambda _: None)


def _show(config: EvaluateConfig, place: Path, *, items: int, rows: int) -> None:
    sheet, key = str(place / SHEET), str(place / SHEET_KEY)
    if config.output == "json":
        record = {"sheet": sheet, "key": key, "items": items, "rows": rows}
        content = {"schema_version": SCHEMA_VERSION, **record}
        print(json.dumps(content, indent=2, sort_keys=True))
        return
    print(f"rating sheet: {sheet}, {items} items, {rows} responses to rate from 1 to 5")
    print(f"key, not for raters: {key}")
    print(f"when it is filled: dpft report ratings={sheet}")
