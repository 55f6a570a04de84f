"""Scores of a model: before, while and after training, or later of a saved run or a file.

One path for every command: a model on its device, how it reads records, the records to score, and
then metrics.json and the texts, in public or, for a private split, in private/.

``eval.every_steps`` and ``eval.every_epochs`` give the points that figures of score against epochs
are drawn of (Bu et al. 2022, Figures 1, 3, 4 and 5; Li et al. 2022, Figure 4). The model is scored
between two steps, in eval mode and with torch's random state put back, so that training goes on as
without it. Each point has the upper bound of epsilon that the steps so far had spent.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import torch
from transformers import PreTrainedModel

from dpft.commands.exit_codes import crash_kept
from dpft.commands.guarantee import privacy_of, read_finished_run
from dpft.commands.ledger_account import saved_run
from dpft.commands.new_run import WriteRequest
from dpft.commands.rank_agreement import check_alike, check_same_model
from dpft.commands.run_cost import cut, loading_device
from dpft.commands.splits import HELD_OUT, NOT_EVALUATED, is_unscored, records_to_score
from dpft.commands.task_model import TrainedModel, trained_model_of_run, written_tokens
from dpft.commands.tracking import batch_progress
from dpft.config.schema import EvaluateConfig, TrainConfig
from dpft.data.encoding import Encoding
from dpft.data.sources import load_examples
from dpft.errors import InputError
from dpft.evaluation.eval_config import eval_split_is_public, reads_training_split
from dpft.evaluation.evaluate import Evaluation, evaluate_parts, inputs_of, score_predictions
from dpft.evaluation.metrics.base import metric_specs
from dpft.evaluation.outputs import ModelOutputs
from dpft.evaluation.predictions import read_predictions, write_predictions, write_samples
from dpft.evaluation.scores import PRIVATE_SPLIT, STAGES, SplitScores, Stage
from dpft.models.architecture import read_architecture
from dpft.parallel.processes import own_device, started
from dpft.parallel.rank_environment import without_logging
from dpft.parallel.ranks import ALONE, Ranks
from dpft.privacy.accounting.curve import SpentEpsilon
from dpft.reports.report import write_report
from dpft.reports.run_record import read_evaluations, read_own_evaluations, write_metrics
from dpft.run_folder import (
    CONFIGURATION,
    PREDICTIONS,
    PRIVACY,
    PRIVATE,
    PROGRESS,
    SAMPLES,
    WRONG_IMAGES,
    hold_run,
    private_folder,
    refuse_links,
    write_bytes,
)
from dpft.tasks.base import Record
from dpft.training.listeners import StepWindows
from dpft.training.progress import ProgressRecord, remove_scores
from dpft.training.progress_record import WINDOW

logger = logging.getLogger(__name__)


def evaluate(
    config: TrainConfig | EvaluateConfig,
    model: PreTrainedModel,
    encoding: Encoding,
    scored: Mapping[str, Sequence[Record]],
    *,
    stage: Stage = "after",
    extra_positions: int = 0,
    ranks: Ranks = ALONE,
    shown: bool = True,
) -> list[Evaluation]:
    """Returns the scores on each part of the evaluation split, with a bar or lines as it goes.

    torch's random state is left as it was: evaluation must not move what training draws.
    """
    scored = {part: _known_to_read(encoding, part, some) for part, some in scored.items()}
    outputs = ModelOutputs(
        model=model,
        encoding=encoding,
        batch_size=config.eval.batch_size,
        extra_positions=extra_positions,
        ranks=ranks,
    )
    public = eval_split_is_public(config.task, config.eval)
    progress = batch_progress("evaluating", counts=public, shown=shown and ranks.is_first)
    with torch.random.fork_rng(), progress as on_progress:
        return evaluate_parts(
            outputs,
            config.task,
            scored,
            config=config.eval,
            decode=config.decode,
            metrics=config.metrics,
            stage=stage,
            on_progress=on_progress,
        )


def _known_to_read(encoding: Encoding, part: str, records: Sequence[Record]) -> Sequence[Record]:
    """Returns the records to score: of those held out, as of those trained on, the readable."""
    if part != HELD_OUT:
        return records
    readable = encoding.readable(records)
    if not readable:
        raise InputError("eval.held_out holds out records of which none can be read; mend them.")
    return readable


def score_and_write(
    config: EvaluateConfig, folder: Path, *, write_request: WriteRequest | None = None
) -> list[Evaluation]:
    """Scores, and writes scores and texts and, for a run, its report anew.

    Args:
        config: What is scored: a run's model, any other model, or a file of outputs.
        folder: The run's, or a new one for any other model.
        write_request: Writes into a new folder how the scores were asked for.

    Returns:
        The scores of each part of the split; without values on all processes but the first.

    Raises:
        InputError: Anything does not fit, or another process writes to the run's folder.
        StateError: A file of the run is damaged.
    """
    with started(config.parallel) as ranks, ExitStack() as held:
        if not ranks.is_first:
            held.enter_context(without_logging())
        check_alike(config, ranks)
        ranks.first(_open_folder, config, folder, held)
        evaluations = evaluate_saved(config, ranks)
        if ranks.is_first:  # The others have ended: nothing here waits for them.
            if config.run is None:
                folder.mkdir(parents=True, exist_ok=True)
                if write_request is not None:
                    write_request(folder)
            fresh = {(one.task, one.split, one.stage) for one in evaluations}
            known = [(e.task, e.split, e.stage) for e in read_evaluations(folder)]
            for split in sorted({key[1] for key in known if key in fresh}):
                logger.warning(
                    "the run's scores and texts of split %s, and its report, are replaced;"
                    " scores of other records, or made with other settings of eval or decode, are"
                    " not comparable with those before training",
                    split,
                )
            alarm = None if config.run is None else saved_run(config.run).privacy.alarm
            if alarm is not None:
                logger.warning("%s", alarm)
            write_scores(config, folder, evaluations)
            if (folder / PRIVACY).exists() and (folder / CONFIGURATION).exists():
                write_report(folder, privacy_of(folder))
            public = eval_split_is_public(config.task, config.eval)
            logger.info("scores and predictions: %s", folder if public else folder / PRIVATE)
    return evaluations


def _open_folder(config: EvaluateConfig, folder: Path, held: ExitStack) -> None:
    """Holds a run's folder, or sees that another model's scores do not go into one.

    Raises:
        InputError: They would, or another process writes to the run's, or a link is in it.
        StateError: A file of the run is damaged.
    """
    refuse_links(folder)
    held.enter_context(crash_kept(folder))
    if config.run is not None:
        held.enter_context(hold_run(folder))
        # Files that could not be written anew are refused before anything is scored.
        read_own_evaluations(folder)
        if (folder / PRIVACY).exists():
            read_finished_run(folder)
    elif (folder / CONFIGURATION).exists():
        raise InputError(
            f"{folder} is a run's folder, whose scores another model's would replace; choose"
            " another folder, or score the run's own model with run=RUN."
        )


def evaluate_saved(config: EvaluateConfig, ranks: Ranks = ALONE) -> list[Evaluation]:
    """Returns the scores of a file of outputs, or of a model, for each part of the split."""
    if config.predictions is not None:
        metric_specs(config.task.metrics)
        parts = config.task.parts(config.eval.split)
        return [score_file(config, config.predictions, parts)]
    with ranks.settled():
        metric_specs(config.task.metrics)
        trained_model = trained_model_of(config)
        written = written_tokens(config.task, config.decode)
        encoding = trained_model.encoding(config.task, max_new_tokens=written)
        if trained_model.has_random_head(config.task):
            logger.warning(
                "the checkpoint has no trained classification head: a random one is scored"
            )
        scored = records_to_score(config, encoding.check)
        device = own_device(config.train.prepare(), ranks)
        model = trained_model.on_device(config.task, loading_device(config.parallel, device))
    check_same_model(model, scored, ranks)
    cut(model, config.parallel, device, ranks)
    extra = trained_model.extra_positions
    return evaluate(config, model, encoding, scored, extra_positions=extra, ranks=ranks)


def score_file(config: EvaluateConfig, predictions: str, parts: Sequence[str]) -> Evaluation:
    """Returns the scores of a file of outputs.

    Raises:
        InputError: The split has several parts, and a file holds the outputs for one.
    """
    if len(parts) > 1:
        raise InputError(
            f"predictions are scored on one part of a split, got eval.split={config.eval.split},"
            f" which has {' and '.join(parts)}; set task.split_parts.{config.eval.split}=[PART]."
        )
    if config.eval.held_out is not None:
        raise InputError(
            "predictions are scored on a split that is stored as one, got eval.held_out, which"
            " holds records out of another; give their file by task.data_dir and eval.split."
        )
    examples = load_examples(config.task, parts[0])
    texts = read_predictions(
        Path(predictions),
        inputs_of(config.task, examples),
        repair=config.task.repair,
        limit=config.eval.limit,
    )
    return score_predictions(
        config.task, examples, texts, config=config.eval, metrics=config.metrics, split=parts[0]
    )


def trained_model_of(config: EvaluateConfig) -> TrainedModel:
    """Returns the model to score."""
    if config.run is None:
        architecture = read_architecture(config.model)
        return TrainedModel(architecture=architecture, tokens=config.task.special_tokens)
    return trained_model_of_run(Path(config.run), saved_run(config.run))


def not_evaluated(config: TrainConfig) -> list[Evaluation]:
    """Returns an entry for metrics.json that says why nothing was scored; none where it was."""
    if not is_unscored(config):
        return []
    why = dict.fromkeys(config.task.metrics, NOT_EVALUATED)
    return [
        Evaluation(
            task=config.task.name,
            split=config.eval.split,
            examples=0,
            stage="after",
            metrics={},
            not_computed=why,
            predictions=(),
        )
    ]


def write_scores(
    config: TrainConfig | EvaluateConfig, folder: Path, evaluations: Sequence[Evaluation]
) -> None:
    """Writes the scores of one stage, and their texts."""
    if not evaluations:
        return
    write_evaluations(
        folder,
        evaluations,
        public=eval_split_is_public(config.task, config.eval),
        publish=config.eval.publish_private_scores,
        training=reads_training_split(config.task, config.eval),
    )


def write_evaluations(
    folder: Path,
    evaluations: Sequence[Evaluation],
    *,
    public: bool,
    publish: bool = False,
    training: bool = False,
) -> None:
    """Writes the scores, and the texts of the last stage, files for each part scored.

    Texts go to predictions.jsonl and, some of them to be read, to samples.md. What stands in public
    from when the same split was said to be public is removed once it no longer is.

    Args:
        folder: A run's folder; it exists.
        evaluations: At least one.
        public: Whether the split may be shown; if not, scores and texts go to private/.
        publish: Whether scores of a private split are shown, rounded.
        training: Whether records were trained on; of those there are no samples.
    """
    shown = folder if public else private_folder(folder)
    last = [each for each in evaluations if each.stage == evaluations[-1].stage]
    for evaluation in last:
        part = "" if len(last) == 1 else evaluation.split
        split = (evaluation.task, evaluation.split)
        if not public and any(
            e.split_is_public for e in read_evaluations(folder) if (e.task, e.split) == split
        ):
            # It may have been scored with other parts then, or alone.
            remove_scores(folder)
            for name in (PREDICTIONS, SAMPLES, WRONG_IMAGES):
                for part_then in ("", evaluation.split):
                    (folder / named(name, part_then)).unlink(missing_ok=True)
        if not evaluation.predictions:
            continue
        write_predictions(
            shown / named(PREDICTIONS, part), evaluation.predictions, private=not public
        )
        if public and evaluation.picture is not None:
            write_bytes(folder / named(WRONG_IMAGES, part), evaluation.picture)
        if not training:
            write_samples(
                shown / named(SAMPLES, part),
                evaluation.predictions,
                heading=f"Samples of {evaluation.task}, split {evaluation.split}",
                note="" if public else f"Not to be released: {PRIVATE_SPLIT}.",
                private=not public,
            )
    entries = [evaluation.record(public=public) for evaluation in evaluations]
    write_metrics(folder, entries, public=public, publish=publish)


def named(file: str, part: str) -> str:
    """Returns the name of the file for a part of a split; the file itself without one."""
    return file if not part else f"_{part}.".join(file.split("."))


class ScheduledScores:
    """Scores a model at every multiple of ``every`` steps but the last; a ``StepEvaluation``."""

    def __init__(
        self,
        config: TrainConfig,
        model: PreTrainedModel,
        encoding: Encoding,
        scored: Mapping[str, Sequence[Record]],
        progress: ProgressRecord | None,
        *,
        every: int,
        ranks: Ranks,
    ) -> None:
        """Score ``model`` on some records; see ``of_run``."""
        self._config, self._model, self._encoding, self._scored = config, model, encoding, scored
        self._progress, self._every, self._ranks = progress, every, ranks
        self._due = StepWindows(0, 0, every)

    @classmethod
    def of_run(
        cls,
        config: TrainConfig,
        num_examples: int,
        model: PreTrainedModel,
        encoding: Encoding,
        scored: Mapping[str, Sequence[Record]],
        progress: ProgressRecord | None,
        ranks: Ranks = ALONE,
    ) -> Self | None:
        """Return what scores a run's model between its steps, or None if no schedule is set.

        Args:
            config: The run's.
            num_examples: Its public number of examples.
            model: On its device.
            encoding: How records become rows.
            scored: The records to score, by part of the split.
            progress: Where the scores go; None on all processes but the first.
            ranks: The processes of the run.
        """
        batch = config.train.batch_size(num_examples)
        every = config.eval.steps_between(num_examples, batch)
        if every is None or not scored:
            return None
        whole_windows = -(-every // WINDOW) * WINDOW
        return cls(config, model, encoding, scored, progress, every=whole_windows, ranks=ranks)

    def begin(self, step: int, last_step: int, epsilon: SpentEpsilon | None) -> None:
        """See ``StepEvaluation``."""
        self._due = StepWindows(0, last_step, self._every)
        if self._ranks.first_to_all(self._is_missing, step, last_step):
            # The run was interrupted between the step's checkpoint and its score.
            self._score(step, epsilon)

    def _is_missing(self, step: int, last_step: int) -> bool:
        """Return whether the score of ``step`` is due and missing; on the first process."""
        logger.info(
            "scores of the public split %s every %d steps, in %s",
            self._config.eval.split, self._every, PROGRESS,
        )  # fmt: skip
        if last_step < 2 * self._every:
            logger.warning(
                "%s=%g scores nothing while training: %d steps have no %d before the last %d",
                *self._asked(), last_step, self._every, self._every,
            )  # fmt: skip
        assert self._progress is not None
        return self._is_due(step) and not self._progress.has_scores(step)

    def after_step(self, step: int, epsilon: SpentEpsilon | None) -> None:
        """Scores the model if it is due."""
        if self._is_due(step):
            self._score(step, epsilon)

    def _asked(self) -> tuple[str, float]:
        config = self._config.eval
        given = config.every_steps if config.every_epochs is None else config.every_epochs
        return str(config.schedule_key), float(given or 0)

    def _is_due(self, step: int) -> bool:
        return step < self._due.last_step and self._due.shows(step)

    def _score(self, step: int, epsilon: SpentEpsilon | None) -> None:
        began = time.monotonic()
        # A bar of the steps may stand there, and lines would tell times.
        scores = score(
            *(self._config, self._model, self._encoding, self._scored, "after", self._ranks),
            shown=False,
        )
        if self._progress is None:
            return
        shown = set(SplitScores.model_fields)
        found = [SplitScores(**each.model_dump(include=shown)) for each in scores]
        self._progress.add_scores(step, found, epsilon, seconds=time.monotonic() - began)


def score(
    config: TrainConfig,
    model: PreTrainedModel,
    encoding: Encoding,
    scored: Mapping[str, Sequence[Record]],
    stage: Stage,
    ranks: Ranks = ALONE,
    *,
    shown: bool = True,
) -> list[Evaluation]:
    """Return the scores of a run's model before or after training; none if nothing is scored.

    Each of the processes reads a share of the records.
    """
    if scored and shown:
        logger.info("evaluating %s", STAGES[stage])
    return evaluate(
        config,
        model,
        encoding,
        scored,
        stage=stage,
        extra_positions=config.method.extra_positions,
        ranks=ranks,
        shown=shown,
    )
