"""What training shows of its records, written where only the owner of the data looks.

None of this is covered by epsilon (docs/design.md, rule 7): ``Diagnostics`` writes it and
``read_signal_to_noise`` reads a part of it, for the owner again.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

import torch

from dpft.files import DIAGNOSTICS, private_path, read_file
from dpft.privacy.noise import SIGNAL_STEPS
from dpft.records.configuration import StepMeasured
from dpft.records.form import parse
from dpft.training.loop import StepStatistics, TrainingSet

RATIO = "signal_to_noise"
"""Key of a step's signal-to-noise ratio, in the lines of the first ``SIGNAL_STEPS``."""


class Diagnostics:
    """Appends one line a step to private/diagnostics.jsonl."""

    def __init__(self, run: Path, *, max_grad_norm: float | None, goes_on: bool = False) -> None:
        """Opens the file, mode 0600.

        Args:
            run: The run's folder.
            max_grad_norm: Norm above which a gradient counts as clipped; None where the style
                has no such norm.
            goes_on: Whether what is in the file stays.
        """
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if goes_on else os.O_TRUNC)
        descriptor = os.open(private_path(run, DIAGNOSTICS), flags, 0o600)
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")
        self._max_grad_norm = max_grad_norm

    def write_size(self, training_set: TrainingSet, *, num_examples: int) -> None:
        """Writes how many records and units there really are beside the public number."""
        size = {
            "num_records": training_set.num_records,
            "num_units": training_set.num_units,
            "excluded_records": training_set.excluded,
            "public_num_examples": num_examples,
        }
        self._file.write(json.dumps(size, sort_keys=True) + "\n")

    def write(self, statistics: StepStatistics, *, non_finite: int) -> None:
        """Writes one step's losses, norms, clip fraction, batch size, and signal to noise."""
        line = {**self._summary(statistics), "non_finite_examples_so_far": non_finite}
        self._file.write(json.dumps(line, sort_keys=True) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
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
            summary[RATIO] = measured.ratio
        return summary


def read_signal_to_noise(run: Path) -> list[float]:
    """Returns the signal-to-noise ratios of a run's first updates, as far as ``SIGNAL_STEPS``.

    Of an update that was taken again the last ratio counts, and what followed its first time does
    not: the weights never had it. A line that a crash tore is passed over; its step came again.

    Args:
        run: The run's folder.

    Returns:
        Private. Empty where one of these updates was not measured, as without privacy.
    """
    path = run / DIAGNOSTICS
    ratios: list[object] = []
    for line in read_file(path).split(b"\n") if path.exists() else []:
        step, ratio = _measured(line)
        if 1 <= step <= SIGNAL_STEPS:
            ratios = [*ratios[: step - 1], ratio]
            if len(ratios) < step:  # a line before it is gone
                return []
    known = [ratio for ratio in ratios if isinstance(ratio, float) and 0 <= ratio < math.inf]
    return known if len(known) == len(ratios) else []


def _measured(line: bytes) -> tuple[int, object]:
    """Returns a line's step and its ratio; step 0 where it is no step's, or is torn."""
    try:
        measured = parse(json.loads(line), StepMeasured)
    except (ValueError, RecursionError):
        return 0, None
    return measured.step, measured.signal_to_noise
