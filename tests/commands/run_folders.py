"""Folders of runs as ``dpft train`` leaves them, with no model and by no training."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dpft.methods.base import ParameterCounts
from dpft.privacy.ledger import Ledger, LedgerHead, read_ledger
from dpft.privacy.mechanisms.base import GaussianStep
from dpft.privacy.plan import Phase, PrivacyPlan
from dpft.reports.privacy_json import PrivateRun
from dpft.strict_model import as_json
from tests.reports.plain import ORIGIN, whole_config
from tests.reports.test_report import CONFIG

SIZE, BATCH = 40, 8
NOISE = 1.5


def mechanism(**changes: Any) -> GaussianStep:
    """Return a step of ``make_plan``, as the ledger contains it."""
    return make_plan().entry_at(0).replace(**changes)


def make_plan(steps: int = 5, **changes: Any) -> PrivacyPlan:
    """Return a plan of some steps."""
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
    *mechanisms: GaussianStep,
    planned: int = 5,
    ended: bool = True,
    known: dict[str, Any] | None = None,
    plan: PrivacyPlan | None = None,
    **privacy: Any,
) -> Path:
    """Return a run's folder with a ledger of these steps; five of ``NOISE`` by default.

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
    with Ledger(folder / "ledger.jsonl", plan=plan) as ledger:
        for step, entry in enumerate(steps, start=1):
            ledger.append(step, entry)
        if ended:
            ledger.close(released="f" * 64)
    train = {"expected_batch_size": BATCH, "steps": planned, "epochs": 10.0}
    if section["name"] == "none":
        section = {"name": "none"}
    task = {**CONFIG["task"], "num_train_examples": SIZE}
    asked = {**CONFIG, "task": task, "privacy": section, "train": {**CONFIG["train"], **train}}
    (folder / "config.yaml").write_text(yaml.safe_dump(whole_config(asked)))
    if ended:
        write_privacy(folder, plan, **(known or {}))
    return folder


def write_privacy(folder: Path, plan: PrivacyPlan, **changes: Any) -> None:
    """Write privacy.json of a closed ledger and its plan."""
    record = read_ledger(folder / "ledger.jsonl")
    calibration = plan.calibration
    epsilon = 1.0 if calibration is None else calibration.epsilon
    name = "rdp" if calibration is None else calibration.accountant
    made = PrivateRun(
        **ORIGIN,
        plan=plan,
        private=not plan.reproducible,
        epsilon=epsilon,
        delta=plan.delta,
        accountant=name,
        epsilons={name: epsilon},
        steps_taken=record.steps,
        rounding_headroom=1e-4,
        parameters=ParameterCounts(trainable=3, new=0, total=4),
        noise_source="ChaCha20",
        dropout_source="ChaCha20",
        num_examples_source="given",
        ledger=LedgerHead(lines=record.lines, head=record.head),
    )
    (folder / "privacy.json").write_text(json.dumps(as_json(made) | as_json(changes)))


def edit(folder: Path, **changes: Any) -> None:
    """Edits privacy.json, as whoever owns the folder can; of a group of keys, those given."""
    path = folder / "privacy.json"
    found = json.loads(path.read_text())
    for name, value in changes.items():
        found[name] = {**found.get(name, {}), **value} if isinstance(value, Mapping) else value
    path.write_text(json.dumps(found))


def tear(folder: Path) -> None:
    """Add the beginning of a line, as a kill in the middle of a write does."""
    with (folder / "ledger.jsonl").open("a") as file:
        file.write('{"mechanism": {"name": "poisson_sam')
