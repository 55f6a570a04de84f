"""Scores of a run's model: before and after training, and of a public split while it trains.

``eval.every_steps`` and ``eval.every_epochs`` give the points that figures of score against epochs
are drawn of (Bu et al. 2022, Figures 1, 3, 4 and 5; Li et al. 2022, Figure 4). The model is scored
between two steps, in eval mode and with torch's random state put back, so that training goes on as
without it. Each point has the upper bound of epsilon that the steps so far had spent; scores of a
public split cost nothing.

A point that appears tells how long the steps before it took, so that points are made at multiples
of ten steps and appear at boundaries of ``StepWindows`` alone (docs/design.md, rule 7). Until then
they wait in private/, where a run that goes on finds them.
"""

import logging
from pathlib import Path

from dpft.evaluation.evaluate import Evaluation
from dpft.parallel.ranks import ALONE, Ranks
from dpft.privacy.accounting.curve import SpentEpsilon
from dpft.records.form import read_record, write_record
from dpft.records.scores import STAGES, ScoresByStep, Stage, StepPoint, StepScores
from dpft.run_folder import PRIVATE_SCORES_BY_STEP, SCORES_BY_STEP, private_path
from dpft.runs.evaluation import evaluate
from dpft.runs.prepared_run import Prepared
from dpft.training.averaging import WeightAverage
from dpft.training.listeners import WINDOW, StepWindows

logger = logging.getLogger(__name__)


def scheduled_scores(
    prepared: Prepared, folder: Path, ranks: Ranks = ALONE
) -> "ScheduledScores | None":
    """Returns what scores a run's model between its steps; None where nothing asks for it.

    Args:
        prepared: The run.
        folder: Of the run; the first process writes there.
        ranks: The run's processes, each of which reads a share of the records.
    """
    config, size = prepared.config, prepared.plan.size.num_examples
    every = config.eval.steps_between(size, config.train.batch_size(size))
    if every is None or not prepared.division.scored:
        return None
    return ScheduledScores(prepared, folder, every=-(-every // WINDOW) * WINDOW, ranks=ranks)


class ScheduledScores:
    """Scores a model at every multiple of ``every`` steps but the last; a ``StepEvaluation``."""

    def __init__(self, prepared: Prepared, folder: Path, *, every: int, ranks: Ranks) -> None:
        """Scores ``prepared``'s model; see ``scheduled_scores``."""
        self._prepared, self._folder, self._every, self._ranks = prepared, folder, every, ranks
        known = ranks.first(_read, folder / PRIVATE_SCORES_BY_STEP) or ()
        self._points = {point.step: point for point in known}
        """Those of the first process; no other has any."""
        self._windows = StepWindows(0, 0, every)
        self._due = self._windows

    def begin(self, step: int, last_step: int, epsilon: SpentEpsilon | None) -> None:
        """Goes on after ``step`` steps; scores of later ones are of weights that are gone."""
        self._windows = StepWindows(step, last_step, self._every)
        self._due = StepWindows(0, last_step, self._every)
        is_missing = self._ranks.first_to_all(self._go_back, step, last_step)
        if is_missing:  # It broke off between the step's checkpoint and its score.
            self._score(step, epsilon)

    def _go_back(self, step: int, last_step: int) -> bool:
        """Drops scores of later steps, and returns whether that of ``step`` is due and missing."""
        logger.info(
            "scores of the public split %s every %d steps, in %s",
            self._prepared.config.eval.split, self._every, SCORES_BY_STEP,
        )  # fmt: skip
        if last_step < 2 * self._every:
            logger.warning(
                "%s=%g scores nothing while training: %d steps have no %d before the last %d",
                *self._asked(), last_step, self._every, self._every,
            )  # fmt: skip
        self._points = {known: self._points[known] for known in self._points if known <= step}
        path = self._folder / SCORES_BY_STEP
        if any(point.step > step for point in _read(path)):
            path.unlink()
            self.publish()
        return self._is_due(step) and step not in self._points

    def after_step(self, step: int, epsilon: SpentEpsilon | None) -> None:
        """Scores the model if it is due, and shows what may be shown."""
        if self._is_due(step):
            self._score(step, epsilon)
        if self._windows.shows(step):
            self.publish()

    def publish(self) -> None:
        """Writes all points into the public file; on the first process, at a time that may show."""
        if not self._points:
            return
        path = self._folder / SCORES_BY_STEP
        known = {point.step for point in _read(path)}
        self._write(path)
        for step in sorted(self._points.keys() - known):
            logger.info("step %d: %s", step, _in_words(self._points[step]))

    def _write(self, path: Path, *, mode: int = 0o644) -> None:
        points = tuple(self._points[step] for step in sorted(self._points))
        write_record(path, ScoresByStep(every=self._every, points=points), mode=mode)

    def _asked(self) -> tuple[str, float]:
        config = self._prepared.config.eval
        given = config.every_steps if config.every_epochs is None else config.every_epochs
        return str(config.schedule_key), float(given or 0)

    def _is_due(self, step: int) -> bool:
        return step < self._due.last_step and self._due.shows(step)

    def _score(self, step: int, epsilon: SpentEpsilon | None) -> None:
        prepared = self._prepared
        scores = evaluate(
            prepared.config,
            prepared.model,
            prepared.encoding,
            prepared.division.scored,
            extra_positions=prepared.config.method.extra_positions,
            ranks=self._ranks,
            shown=False,  # A bar of the steps may stand there, and its lines would tell times.
        )
        if not self._ranks.is_first:
            return
        self._points[step] = _point(step, epsilon, scores)
        self._write(private_path(self._folder, PRIVATE_SCORES_BY_STEP), mode=0o600)


def _point(step: int, epsilon: SpentEpsilon | None, scores: list[Evaluation]) -> StepPoint:
    return StepPoint(
        step=step,
        epsilon=None if epsilon is None else epsilon.epsilon,
        accountant=None if epsilon is None else epsilon.accountant,
        evaluations=tuple(
            StepScores(
                task=each.task, split=each.split, examples=each.examples, metrics=each.metrics
            )
            for each in scores
        ),
    )


def _in_words(point: StepPoint) -> str:
    return "; ".join(
        f"{scores.split} {', '.join(f'{k} {v:.4g}' for k, v in scores.metrics.items())}"
        for scores in point.evaluations
    )


def _read(path: Path) -> tuple[StepPoint, ...]:
    return read_record(path, ScoresByStep).points if path.exists() else ()


def score_with(
    average: WeightAverage | None, prepared: Prepared, ranks: Ranks = ALONE
) -> list[Evaluation]:
    """Returns the scores of the released weights, after those of the others where there are two.

    Args:
        average: Of the run's weights: it has those that are not released.
        prepared: The run; its model has the released weights, and keeps them.
        ranks: As for ``score``.
    """
    beside = []
    if average is not None and prepared.division.scored:
        average.swap()
        beside = score(prepared, average.averaging.stage, ranks)
        average.swap()
    return [*beside, *score(prepared, "after", ranks)]


def score(prepared: Prepared, stage: Stage, ranks: Ranks = ALONE) -> list[Evaluation]:
    """Returns the scores of a run's model before or after training; none where nothing is scored.

    Args:
        prepared: The run.
        stage: Of ``STAGES``.
        ranks: The run's processes, each of which reads a share of the records.
    """
    scored = prepared.division.scored
    if scored:
        logger.info("evaluating %s", STAGES[stage])
    return evaluate(
        prepared.config,
        prepared.model,
        prepared.encoding,
        scored,
        stage=stage,
        extra_positions=prepared.config.method.extra_positions,
        ranks=ranks,
    )
