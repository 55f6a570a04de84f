"""The tuning bill: what all the runs of a ``--multirun`` sweep cost together.

Each run's report has its own epsilon, and whoever picks one of them by looking at them has spent
that of all. Runs that broke off have spent, too: their steps are read from their ledgers.
"""

import json
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dpft.cli.fresh_folder import TUNING
from dpft.cli.search import read_search
from dpft.errors import DpftError
from dpft.files import write_json
from dpft.privacy.accounting.composition import RunCost, compose_runs
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.accounting.summary import round_up
from dpft.privacy.ledger import LedgerRecord, read_ledger
from dpft.reports.run import CONFIGURATION, PRIVACY
from dpft.training.resume import LEDGER, find_stopped

BILL = "tuning_bill.json"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SweptRun:
    """One run of a sweep."""

    name: str
    """Of its folder."""
    records: str
    """Which records it trained on, in words: runs of one wording share them."""
    accountant: str
    cost: RunCost


def write_tuning_bill(sweep: Path, folders: Sequence[Path]) -> str:
    """Writes the bill of a sweep into its folder and returns it in words.

    Args:
        sweep: The sweep's folder.
        folders: Of its runs, those without a ledger among them.

    Returns:
        Lines of text; none where no run has spent anything.
    """
    runs, unread = [], []
    for folder in folders:
        try:
            runs += _swept(folder)
        except (DpftError, OSError, ValueError, KeyError) as error:
            logger.warning("the tuning bill lacks %s, which cannot be read: %s", folder.name, error)
            unread.append(folder.name)
    by_records = defaultdict(list)
    for run in runs:
        by_records[run.records].append(run)
    bills = [_bill(records, shared) for records, shared in by_records.items()]
    if not bills and not unread:
        return ""
    write_json(sweep / BILL, {"bills": bills, "not_counted": unread})
    lines = [_words(bill) for bill in bills]
    lines += [f"not counted: {', '.join(unread)}"] if unread else []
    return "\n".join(lines)


def _swept(folder: Path) -> list[SweptRun]:
    """Returns the private run in a folder, or none."""
    if (folder / TUNING).exists():
        return _search(folder)
    if not (folder / LEDGER).exists():
        return []
    ledger = read_ledger(folder / LEDGER)
    mechanisms = ledger.mechanisms
    if not ledger.counted_steps:
        return []
    config = yaml.safe_load((folder / CONFIGURATION).read_text(encoding="utf-8"))
    name, records = folder.name, _records(config)
    if (folder / PRIVACY).exists():
        record = json.loads((folder / PRIVACY).read_text(encoding="utf-8"))
        steps = _steps(mechanisms, ledger, record["delta"])
        cost = RunCost(epsilon=record["epsilon"], delta=record["delta"], mechanisms=steps)
        return [SweptRun(name=name, records=records, accountant=record["accountant"], cost=cost)]
    plan = find_stopped(folder).plan()
    steps = _steps(mechanisms or (plan.mechanism_at(0),), ledger, plan.delta)
    alone = compose_runs([RunCost(epsilon=math.inf, delta=plan.delta, mechanisms=steps)])
    cost = RunCost(epsilon=alone.epsilon, delta=plan.delta, mechanisms=steps)
    return [SweptRun(name=name, records=records, accountant=alone.accountant, cost=cost)]


def _search(folder: Path) -> list[SweptRun]:
    """Returns a ``dpft tune``, whose bound holds whether it has ended or not."""
    search = read_search(folder)
    if search is None:
        return []
    config = yaml.safe_load((folder / TUNING / "tune.yaml").read_text(encoding="utf-8"))
    cost = RunCost(epsilon=search.calibration.epsilon, delta=search.delta)
    return [
        SweptRun(
            name=folder.name,
            records=_records(config),
            accountant=search.calibration.accountant,
            cost=cost,
        )
    ]


def _steps(
    mechanisms: Sequence[Any], ledger: LedgerRecord, delta: float
) -> tuple[SampledGaussian, ...]:
    """Returns the steps of a ledger, equal ones together; a torn line is one more of the last."""
    counts = Counter((one["noise_multiplier"], one["sample_rate"]) for one in ledger.mechanisms)
    last = mechanisms[-1]
    counts[last["noise_multiplier"], last["sample_rate"]] += ledger.torn_step
    return tuple(
        SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps, delta=delta)
        for (noise, rate), steps in counts.items()
    )


def _records(config: dict[str, Any]) -> str:
    task, privacy = config["task"], config["privacy"]
    where = task["data_dir"] or task["source"]
    return f"task {task['name']} from {where}, unit {privacy['unit']}"


def _bill(records: str, runs: Sequence[SweptRun]) -> dict[str, Any]:
    composed = compose_runs([run.cost for run in runs])
    return {
        "records": records,
        "composed": vars(composed),
        "runs": [
            {
                "run": run.name,
                "epsilon": run.cost.epsilon,
                "delta": run.cost.delta,
                "accountant": run.accountant,
            }
            for run in runs
        ],
    }


def _words(bill: dict[str, Any]) -> str:
    composed = bill["composed"]
    number = len(bill["runs"])
    own = ", ".join(f"{run['run']}: {round_up(run['epsilon'], 4):.4f}" for run in bill["runs"])
    return (
        f"tuning bill of {number} run{'s' * (number > 1)} on {bill['records']}:"
        f" epsilon = {round_up(composed['epsilon'], 4):.4f} at delta ="
        f" {composed['delta']:.4g} for all of them (upper bound by {composed['accountant']});"
        f" each alone {own}"
    )
