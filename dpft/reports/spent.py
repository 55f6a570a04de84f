"""What a run spent, read from its folder: the ledger's steps and the public numbers beside them.

The steps and their noise come from ledger.jsonl alone, which a run that broke off has too. Delta
and the number of units come from privacy.json, or, where the run did not get that far, from its
last checkpoint or from config.yaml; the number of units is also batch size over sample rate.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dpft.errors import InputError, StateError
from dpft.files import read_json
from dpft.privacy.ledger import GENESIS, LEDGER, LedgerRecord, read_ledger
from dpft.privacy.plan import NEIGHBORING_RELATION, Calibration, default_delta, planned_steps
from dpft.privacy.spending import Noise, steps_taken
from dpft.reports.records import CONFIGURATION, PRIVACY, read_privacy

NO_STEPS = LedgerRecord(steps=0, mechanisms=(), closed=False, lines=0, head=GENESIS)


@dataclass(frozen=True, kw_only=True)
class SpentRun:
    """A run's noisy steps and what their epsilon means."""

    folder: str
    ledger: LedgerRecord
    taken: Mapping[Noise, int]
    """How many steps were taken under each noise."""
    delta: float
    num_examples: int
    expected_batch_size: float
    planned_steps: int
    unit: str
    unit_definition: str | None
    """None where only the configuration is there to say it."""
    neighboring_relation: str
    accountant: str
    """The one that was to lead."""
    calibration: Calibration | None
    """Of exactly the planned steps under one noise."""
    reproducible: bool

    @property
    def steps(self) -> int:
        """Noisy steps to account for."""
        return sum(self.taken.values())


def read_spent(folder: str) -> SpentRun:
    """Returns what a run has spent, finished or not.

    Raises:
        InputError: The folder holds no private run, a search's, or too little to know delta.
        StateError: The ledger or privacy.json is damaged, or one is not the other's.
    """
    path = Path(folder)
    config = _configuration(path)
    ledger = read_ledger(path / LEDGER) if (path / LEDGER).exists() else NO_STEPS
    known, lodged = _known(path)
    if "selection" in known or (path / "private" / "tuning").exists():
        raise InputError(
            f"{folder} is of dpft tune: its ledger holds one of a secret number of runs, so no"
            f" epsilon follows from it; the whole search's stands in {PRIVACY}."
        )
    _check_lodged(path / LEDGER, ledger, lodged, whole=(path / PRIVACY).exists())
    taken = steps_taken(ledger, path / LEDGER, planned=_planned_noise(known))
    try:
        return _spent(folder, config, known, ledger, taken)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"run must be the folder of a dpft run, got {folder!r}, whose {CONFIGURATION} or"
            f" {PRIVACY} lacks what is needed or holds another type ({error}); put it back."
        ) from error


def check_ended_ledger(folder: Path) -> None:
    """Holds a finished run's ledger against what its privacy.json says of it, where both are there.

    Raises:
        InputError: privacy.json is of another schema version.
        StateError: The ledger is damaged, or was cut, added to or replaced.
    """
    if not ((folder / PRIVACY).exists() and (folder / LEDGER).exists()):
        return
    lodged = read_privacy(folder / PRIVACY).get("ledger")
    _check_lodged(folder / LEDGER, read_ledger(folder / LEDGER), lodged, whole=True)


def run_folders(given: str) -> tuple[str, ...]:
    """Returns the folder itself where it is a run's, else those of the runs of a sweep in it.

    Runs of a sweep that took no noisy step, as one that failed early, spent nothing and are left
    out.

    Raises:
        InputError: It is neither, or a run of the sweep was not private.
    """
    path = Path(given)
    if (path / CONFIGURATION).is_file():
        return (given,)
    found = [config.parent for config in path.glob(f"[!.]*/{CONFIGURATION}") if config.is_file()]
    if not found:
        raise InputError(
            f"runs must be folders of dpft runs, or of a sweep of them, got {given!r}, which has no"
            f" {CONFIGURATION} and no run in it; give the folders that `dpft train` named."
        )
    return tuple(str(child) for child in sorted(found, key=_natural) if _has_steps(child))


def _has_steps(folder: Path) -> bool:
    _configuration(folder)  # One without privacy has no ledger, and must not be left out.
    return (folder / LEDGER).exists()


def _natural(path: Path) -> tuple[int, str]:
    return (int(path.name) if path.name.isdecimal() else -1, path.name)


def _configuration(folder: Path) -> dict[str, Any]:
    path = folder / CONFIGURATION
    if not path.is_file():
        missing = f"has no {CONFIGURATION}" if folder.is_dir() else "does not exist"
        raise InputError(
            f"run must be the folder of a dpft run, got {str(folder)!r}, which {missing}; give the "
            "folder that `dpft train` named, such as outputs/DATE/TIME."
        )
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        name = config["privacy"]["name"]
    except (UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} must be a dpft run's configuration, got something else."
        ) from error
    if name == "none":
        raise InputError(
            f"run must be a private one, got {str(folder)!r}, which was trained with privacy=none:"
            " it protects nobody, alone or with others, and no epsilon bounds it."
        )
    return dict(config)


def _known(folder: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Returns what the run was bound to, and the ledger's lines and head as lodged beside it."""
    states = sorted(folder.glob("private/checkpoints/step-*/state.json"))
    if (folder / PRIVACY).exists():
        known = read_privacy(folder / PRIVACY)
        return known, known.get("ledger")
    if states:
        run = read_json(states[-1]).get("run") or {}
        return dict(run.get("plan") or {}), run.get("ledger")
    return {}, None


def _check_lodged(
    path: Path, ledger: LedgerRecord, lodged: Mapping[str, Any] | None, *, whole: bool
) -> None:
    """Refuses a ledger that was cut or replaced after privacy.json or a checkpoint named its head.

    Args:
        path: The ledger.
        ledger: What it says.
        lodged: Its lines and head when that was written.
        whole: Whether it ended there, as it does in privacy.json.
    """
    if lodged is None:
        return
    lines = int(lodged["lines"])
    if ledger.lines < lines or (whole and ledger.lines > lines):
        raise StateError(
            f"{path}, line {min(ledger.lines, lines) + 1}: the ledger must have {lines} lines,"
            f" as was written down beside it, got {ledger.lines}; it was cut or added to."
        )
    if ledger.heads[lines] != lodged["head"]:
        raise StateError(
            f"{path}, line {lines}: the ledger's head must be {lodged['head']}, as was written down"
            f" beside it, got {ledger.heads[lines]}; it was replaced or written anew."
        )


def _planned_noise(known: Mapping[str, Any]) -> Noise | None:
    if "noise_multiplier" not in known:
        return None
    return Noise(
        noise_multiplier=float(known["noise_multiplier"]), sample_rate=float(known["sample_rate"])
    )


def _spent(
    folder: str,
    config: Mapping[str, Any],
    known: Mapping[str, Any],
    ledger: LedgerRecord,
    taken: Mapping[Noise, int],
) -> SpentRun:
    privacy, train = config["privacy"], config["train"]
    batch = train["expected_batch_size"]
    size = int(known.get("num_examples") or _num_examples(config, batch, taken, folder))
    steps = train["steps"] or planned_steps(
        epochs=train["epochs"], num_examples=size, expected_batch_size=batch
    )
    steps = int(known.get("steps", steps))
    delta = known.get("delta", privacy["delta"])
    return SpentRun(
        folder=folder,
        ledger=ledger,
        taken=taken,
        delta=default_delta(size) if delta is None else float(delta),
        num_examples=size,
        expected_batch_size=float(batch),
        planned_steps=steps,
        unit=str(privacy["unit"]),
        unit_definition=known.get("unit_definition"),
        neighboring_relation=str(known.get("neighboring_relation", NEIGHBORING_RELATION)),
        accountant=str(privacy["accountant"]),
        calibration=_calibration(known, taken, steps),
        reproducible=privacy["noise_seed"] is not None,
    )


def _num_examples(
    config: Mapping[str, Any], batch: float, taken: Mapping[Noise, int], folder: str
) -> int:
    """Returns the public number of units: given, or what batch size over sample rate makes it."""
    if config["privacy"]["num_examples"] is not None:
        return int(config["privacy"]["num_examples"])
    rates = {noise.sample_rate for noise in taken}
    if len(rates) != 1:
        raise InputError(
            f"the number of units of {folder} must be known, got no noisy step, no {PRIVACY} and no"
            " privacy.num_examples to tell it; go on with the run by resume=RUN."
        )
    return round(batch / rates.pop())


def _calibration(
    known: Mapping[str, Any], taken: Mapping[Noise, int], steps: int
) -> Calibration | None:
    """Returns what calibrated the noise, if the steps taken are exactly those it was for."""
    calibration, planned = known.get("calibration"), _planned_noise(known)
    if calibration is None or planned is None or dict(taken) != {planned: steps}:
        return None
    return Calibration(**calibration)
