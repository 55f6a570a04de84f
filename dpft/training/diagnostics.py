"""The log ``private/diagnostics.jsonl`` with losses, gradient norms and batch sizes of each step.

Only the owner of the data may read the file, because epsilon covers none of its values
(docs/dev/design.md, rule 7).
"""

import json
import logging
import os
from pathlib import Path
from typing import Any

import torch

from dpft.run_folder import DIAGNOSTICS, private_path
from dpft.training.loop import StepStatistics, TrainingSet

logger = logging.getLogger(__name__)


class Diagnostics:
    """Writer of private/diagnostics.jsonl, with one line per step."""

    def __init__(
        self,
        run: Path,
        *,
        max_grad_norm: float | None,
        resumes: bool = False,
        shows_losses: bool = False,
    ) -> None:
        """Open the file with mode 0600; append to the file if the run is resumed.

        Args:
            run: Folder of the run.
            max_grad_norm: A gradient with a larger norm counts as clipped; None if the clipping
                style has no such norm.
            resumes: Whether the run is resumed.
            shows_losses: Whether to log the mean loss of each step, which epsilon does not cover.
        """
        self._shows_losses = shows_losses
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if resumes else os.O_TRUNC)
        descriptor = os.open(private_path(run, DIAGNOSTICS), flags, 0o600)
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")
        self._max_grad_norm = max_grad_norm

    def write_size(self, training_set: TrainingSet, *, num_examples: int) -> None:
        """Write the true numbers of records and units next to the public number of examples."""
        size = {
            "num_records": training_set.num_records,
            "num_units": training_set.num_units,
            "excluded_records": training_set.excluded,
            "public_num_examples": num_examples,
        }
        self._file.write(json.dumps(size, sort_keys=True) + "\n")

    def write(self, statistics: StepStatistics, *, non_finite: int) -> None:
        """Write losses, norms, clipped fraction, batch size and signal-to-noise ratio of a step."""
        line = {**self._summary(statistics), "non_finite_examples_so_far": non_finite}
        self._file.write(json.dumps(line, sort_keys=True) + "\n")
        self._file.flush()
        if self._shows_losses and statistics.losses:
            loss = float(torch.cat(statistics.losses).mean())
            logger.info("step %d: mean training loss %.4f (not private)", statistics.step, loss)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _summary(self, statistics: StepStatistics) -> dict[str, Any]:
        summary: dict[str, Any] = {"step": statistics.step, "batch_size": statistics.batch_size}
        if statistics.losses:
            summary["mean_loss"] = float(torch.cat(statistics.losses).mean())
        if statistics.norms:
            norms = torch.cat(statistics.norms)
            summary["median_gradient_norm"] = float(norms.median())
            if self._max_grad_norm is not None:
                summary["clipped_fraction"] = float((norms > self._max_grad_norm).float().mean())
        measured = statistics.signal_and_noise
        if measured is not None:
            summary["signal_norm"], summary["noise_norm"] = measured.signal, measured.noise
            summary["signal_to_noise"] = measured.ratio
        return summary
