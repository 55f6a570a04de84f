"""Folders of runs as ``dpft train`` leaves them, with no model and by no training."""

import json
from pathlib import Path
from typing import Any

import yaml

from dpft.privacy.ledger import Ledger, read_ledger

SIZE, BATCH = 40, 8
NOISE = 1.5


def mechanism(noise_multiplier: float = NOISE, sample_rate: float = BATCH / SIZE) -> dict[str, Any]:
    """Returns what the ledger says of a step."""
    return {
        "name": "poisson_sampled_gaussian",
        "noise_multiplier": noise_multiplier,
        "sample_rate": sample_rate,
        "sensitivity": 0.1,
    }


def make_run(
    folder: Path,
    *mechanisms: dict[str, Any],
    planned: int = 5,
    ended: bool = True,
    known: dict[str, Any] | None = None,
    **privacy: Any,
) -> Path:
    """Returns a run's folder with a ledger of these steps; five of ``NOISE`` by default.

    Args:
        folder: To be made.
        mechanisms: Of each step.
        planned: Steps planned.
        ended: Whether the ledger is closed and privacy.json there.
        known: Changes to privacy.json.
        privacy: Changes to the configuration's privacy section.
    """
    folder.mkdir(parents=True)
    steps = mechanisms or (mechanism(),) * planned
    with Ledger(folder / "ledger.jsonl") as ledger:
        for step, entry in enumerate(steps, start=1):
            ledger.append(step, entry)
        if ended:
            ledger.close()
    section = {
        "name": "dp", "unit": "example", "delta": None, "num_examples": None,
        "noise_seed": None, "accountant": "rdp",
    }  # fmt: skip
    section |= privacy
    train = {"expected_batch_size": BATCH, "steps": planned, "epochs": 10.0}
    (folder / "config.yaml").write_text(yaml.safe_dump({"privacy": section, "train": train}))
    if ended:
        record = read_ledger(folder / "ledger.jsonl")
        content = {
            "schema_version": 1, "delta": 1 / (2 * SIZE), "num_examples": SIZE, "steps": planned,
            "noise_multiplier": NOISE, "sample_rate": BATCH / SIZE, "unit_definition": "one pair",
            "neighboring_relation": "add_or_remove_one",
            "ledger": {"lines": record.lines, "head": record.head},
            "private": "noise_seed" not in privacy, "epsilon": 1.0, "accountant": "rdp",
            "epsilons": {"rdp": 1.0}, "steps_taken": record.steps, "unit": section["unit"],
            "expected_batch_size": BATCH,
            "warnings": [], "trainable_parameters": 3, "new_parameters": 0, "total_parameters": 4,
        }  # fmt: skip
        (folder / "privacy.json").write_text(json.dumps(content | (known or {})))
    return folder


def edit(folder: Path, **changes: Any) -> None:
    """Edits privacy.json, as whoever owns the folder can; None takes a key away."""
    path = folder / "privacy.json"
    edited = json.loads(path.read_text()) | changes
    kept = {key: value for key, value in edited.items() if value is not None}
    path.write_text(json.dumps(kept))


def tear(folder: Path) -> None:
    """Adds the beginning of a line, as a kill in the middle of a write does."""
    with (folder / "ledger.jsonl").open("a") as file:
        file.write('{"mechanism": {"name": "poisson_sam')
