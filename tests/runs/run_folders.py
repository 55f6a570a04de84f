"""Folders of runs as ``dpft train`` leaves them, with no model and by no training."""

import json
from pathlib import Path
from typing import Any

import yaml

from dpft.privacy.ledger import Ledger, read_ledger
from dpft.privacy.plan import Phase, Plan, PrivacyPlan, write_plan
from dpft.records.form import keys_of
from dpft.records.promises import PrivateRun, PrivateVocabulary
from tests.reports.test_report import CONFIG

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


def make_plan(steps: int = 5, **changes: Any) -> PrivacyPlan:
    """Returns the plan of ``mechanism`` over some steps."""
    phase = Phase(method="full", steps=steps, max_grad_norm=0.1, sensitivity=0.1)
    values: dict[str, Any] = {
        "noise_multiplier": NOISE, "sample_rate": BATCH / SIZE, "steps": steps,
        "delta": 1 / (2 * SIZE), "num_examples": SIZE, "expected_batch_size": BATCH,
        "clipping": "flat", "phases": (phase,), "unit_definition": "one pair",
        "delta_source": "published", "accountant": "rdp",
    }  # fmt: skip
    return PrivacyPlan(**{**values, **changes})


def make_run(
    folder: Path,
    *mechanisms: dict[str, Any],
    planned: int = 5,
    ended: bool = True,
    known: dict[str, Any] | None = None,
    plan: Plan | None = None,
    **privacy: Any,
) -> Path:
    """Returns a run's folder with a ledger of these steps; five of ``NOISE`` by default.

    Args:
        folder: To be made.
        mechanisms: Of each step.
        planned: Steps planned.
        ended: Whether the ledger is closed and privacy.json there.
        known: Changes to privacy.json.
        plan: Of the ledger's first line; by default what ``privacy`` says.
        privacy: Changes to the configuration's privacy section.
    """
    folder.mkdir(parents=True)
    steps = mechanisms or (mechanism(),) * planned
    section = {
        "name": "dp", "unit": "example", "delta": None, "num_examples": None,
        "noise_seed": None, "accountant": "rdp",
    }  # fmt: skip
    section |= privacy
    if plan is None:
        given = {} if section["delta"] is None else {"delta": section["delta"]}
        given |= {"delta_source": "given"} if given else {}
        seeded = section["noise_seed"] is not None
        plan = make_plan(planned, unit=section["unit"], reproducible=seeded, **given)
    with Ledger(folder / "ledger.jsonl", plan=write_plan(plan)) as ledger:
        for step, entry in enumerate(steps, start=1):
            ledger.append(step, entry)
        if ended:
            ledger.close(released="f" * 64)
    train = {"expected_batch_size": BATCH, "steps": planned, "epochs": 10.0}
    asked = {**CONFIG, "privacy": section, "train": {**CONFIG["train"], **train}}
    (folder / "config.yaml").write_text(yaml.safe_dump(asked))
    if ended:
        write_privacy(folder, plan, **(known or {}))
    return folder


def write_privacy(folder: Path, plan: Plan, **changes: Any) -> None:
    """Writes privacy.json of a closed ledger and its plan."""
    record = read_ledger(folder / "ledger.jsonl")
    calibration = plan.calibration
    epsilon = 1.0 if calibration is None else calibration.epsilon
    name = "rdp" if calibration is None else calibration.accountant
    content = {
        **write_plan(plan), "data": "e2e", "noise_source": "ChaCha20",
        "schema_version": 1, "ledger": {"lines": record.lines, "head": record.head},
        "private": not plan.reproducible, "epsilon": epsilon, "accountant": name,
        "epsilons": {name: epsilon}, "steps_taken": record.steps, "warnings": [],
    }  # fmt: skip
    kind: Any = PrivateVocabulary
    if isinstance(plan, PrivacyPlan):
        kind, phase = PrivateRun, plan.phases[0]
        content |= {
            "model": "tiny", "dropout_source": "ChaCha20", "num_examples_source": "given",
            "max_grad_norm": phase.max_grad_norm, "sensitivity": phase.sensitivity,
            "rounding_headroom": 1e-4,
            "trainable_parameters": 3, "new_parameters": 0, "total_parameters": 4,
        }  # fmt: skip
    content["reproducible"] = True if plan.reproducible else None
    keys = {key.name for key in keys_of(kind)} - (set() if plan.tokenizer else {"tokenizer"})
    kept = {k: v for k, v in (content | changes).items() if k in keys and v is not None}
    (folder / "privacy.json").write_text(json.dumps(kept))


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
