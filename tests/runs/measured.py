"""Runs whose first updates were measured."""

import json
from pathlib import Path

from dpft.records.configuration import SIGNAL_STEPS


def measure(run: Path, ratio: float, *, steps: int = SIGNAL_STEPS) -> Path:
    """Writes the ratios of a run's updates, of the mean ``ratio``, the first above the others."""
    (run / "private").mkdir(mode=0o700, exist_ok=True)
    lines = [
        {"step": step, "signal_to_noise": ratio * (1 + 0.01 * (steps - 1 if step == 1 else -1))}
        for step in range(1, steps + 1)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "private/diagnostics.jsonl").write_text(text)
    return run
