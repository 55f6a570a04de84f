"""Scores of the model between training steps, on the schedule of ``eval.every_steps``.

``eval.every_steps`` and ``eval.every_epochs`` give the points of figures that show scores over
epochs (Bu et al. 2022, Figures 1, 3, 4 and 5; Li et al. 2022, Figure 4). The model is scored
between two steps in eval mode. Torch's random state is then restored, so that training continues as
if nothing had been scored. Each point also has the upper bound of epsilon for the steps so far.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Self

from transformers import PreTrainedModel

from dpft.commands.scoring import score_stage
from dpft.config.schema import TrainConfig
from dpft.data.encoding import Encoding
from dpft.evaluation.scores import SplitScores
from dpft.parallel.ranks import ALONE, Ranks
from dpft.privacy.accounting.curve import SpentEpsilon
from dpft.run_folder import PROGRESS
from dpft.tasks.base import Record
from dpft.training.listeners import StepWindows
from dpft.training.progress import ProgressRecord
from dpft.training.progress_record import WINDOW

logger = logging.getLogger(__name__)


class ScheduledScores:
    """``StepEvaluation`` that scores a model every ``every`` steps, but not after the last step."""

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
        """Prepare to score ``model`` on some records; see ``of_run``."""
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
        """Return the scheduled scores of a run, or None if no schedule is set.

        Args:
            config: The configuration of the run.
            num_examples: The public number of examples.
            model: The model, on its device.
            encoding: Converts records to rows.
            scored: The records to score, by part of the split.
            progress: Receives the scores; None on all processes except rank 0.
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
        if self._ranks.broadcast_from_rank_0(self._is_missing, step, last_step):
            # The run was interrupted between the step's checkpoint and its score.
            self._score(step, epsilon)

    def _is_missing(self, step: int, last_step: int) -> bool:
        """Return whether the score of ``step`` is due and missing; called on rank 0."""
        logger.info(
            "scores of the public split %s every %d steps, in %s",
            self._config.eval.split, self._every, PROGRESS,
        )  # fmt: skip
        if last_step < 2 * self._every:
            logger.warning(
                "%s=%g has no effect: none of the %d steps is a multiple of %d that is at least %d"
                " steps before the end",
                *self._asked(), last_step, self._every, self._every,
            )  # fmt: skip
        assert self._progress is not None
        return self._is_due(step) and not self._progress.has_scores(step)

    def after_step(self, step: int, epsilon: SpentEpsilon | None) -> None:
        """Score the model if the schedule includes this step."""
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
        # The scores are not shown, because a progress bar may be on the terminal and log lines
        # would reveal times.
        scores = score_stage(
            *(self._config, self._model, self._encoding, self._scored, "after", self._ranks),
            shown=False,
        )
        if self._progress is None:
            return
        shown = set(SplitScores.model_fields)
        public = [SplitScores(**entry.model_dump(include=shown)) for entry in scores]
        self._progress.add_scores(step, public, epsilon, seconds=time.monotonic() - began)
