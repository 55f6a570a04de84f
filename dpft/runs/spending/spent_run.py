"""What a run spent, read from its folder: the ledger's steps and the public numbers beside them.

The steps and their noise come from ledger.jsonl alone, which a run that broke off has too. Delta
and the number of units come from privacy.json, or, where the run did not get that far, from its
last checkpoint or from config.yaml; the number of units is also batch size over sample rate. The
ledger's chain of hashes covers none of these, so each is kept with the file that it is from.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.errors import InputError, StateError
from dpft.files import read_json, read_yaml
from dpft.kinds import PUBLISHED
from dpft.privacy.completeness import NO_STEPS, check_lodged, knows_the_end, read_run_ledger
from dpft.privacy.ledger import LedgerRecord
from dpft.privacy.plan import (
    GIVEN,
    NEIGHBORING_RELATION,
    NO_SAMPLING,
    SAMPLER,
    default_delta,
    planned_steps,
)
from dpft.privacy.spending import Noise, steps_taken
from dpft.reports.run.run_record import read_privacy
from dpft.run_folder import (
    CHECKPOINT_STATES,
    CHECKPOINTS,
    CONFIGURATION,
    LEDGER,
    PRIVACY,
    TUNING,
    runs_in,
)
from dpft.runs.spending.stated import check_stated

_OF_CONFIGURATION = ("unit", "expected_batch_size", "private")
"""Public facts that config.yaml has of every run, ``private`` whether its noise was secret."""
_PLANNED = ("delta", "num_examples", "steps")
"""Those that it has where nothing else does."""
_WORDS = ("unit_definition", "neighboring_relation")
"""Those that it has not."""
CLOSING_LINE = "closing line"
"""What shows the end of a finished run's ledger where private/ is not there."""


@dataclass(frozen=True, kw_only=True)
class SpentRun:
    """A run's noisy steps and what their epsilon means."""

    folder: str
    ledger: LedgerRecord
    taken: Mapping[Noise, int]
    """How many steps were taken under each noise."""
    delta: float
    delta_source: str
    """``GIVEN``, or the rule that made delta of the number of units."""
    num_examples: int
    expected_batch_size: float
    planned_steps: int
    unit: str
    unit_definition: str | None
    """None where only the configuration is there to say it."""
    neighboring_relation: str
    accountant: str
    """The one that was to lead."""
    stated: tuple[float, str] | None = None
    """The epsilon of the ledger's steps at ``delta`` and its accountant, as privacy.json has them:
    its word alone."""
    reproducible: bool
    not_covered: Mapping[str, str]
    """What the ledger's chain of hashes does not cover, by its key in privacy.json, and the file
    that it is from."""
    tokenizer: str | None = None
    """``model.tokenizer``, unless said to be public: a cost that the ledger does not hold."""
    end: str | None
    """What shows that no line is missing at the ledger's end; None where nothing does."""

    @property
    def sampler(self) -> str:
        """How units were drawn: all of them for a histogram."""
        histogram = bool(self.taken) and all(noise.threshold_delta for noise in self.taken)
        return NO_SAMPLING if histogram else SAMPLER

    @property
    def steps(self) -> int:
        """Noisy steps to account for."""
        return sum(self.taken.values())


def read_spent(folder: str) -> SpentRun:
    """Returns what a run has spent, finished or not.

    Raises:
        InputError: The folder holds no private run, a search's, or too little to know delta.
        StateError: The ledger, privacy.json or what ``private/`` knows of the steps is damaged, or
            they do not agree.
    """
    path = Path(folder)
    config = _configuration(path)
    known = _known(path)
    if "selection" in known or (path / TUNING).exists():
        raise InputError(
            f"{folder} is of dpft tune: its ledger holds one of a secret number of runs, so no"
            f" epsilon follows from it; the whole search's stands in {PRIVACY}."
        )
    ledger = read_ended_ledger(path) or NO_STEPS
    if ledger.torn_at == 0 and not knows_the_end(path):
        raise StateError(
            f"{path / LEDGER}, line 1: the first line is torn, and without private/ nothing shows"
            " whether others followed. Put the ledger back as it was."
        )
    taken = steps_taken(ledger, path / LEDGER, planned=_planned_noise(known))
    try:
        run = _spent(folder, config, known, ledger, taken)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"run must be the folder of a dpft run, got {folder!r}, whose {CONFIGURATION} or"
            f" {PRIVACY} lacks what is needed or holds another type ({error}); put it back."
        ) from error
    if ledger.closed and run.steps < run.planned_steps:
        raise StateError(
            f"{path / LEDGER} is closed and must hold the {run.planned_steps} planned steps at"
            f" least, got {run.steps}: lines were cut, and a closing line was written after them."
            " Put it back as it was."
        )
    return run


def read_ended_ledger(folder: Path) -> LedgerRecord | None:
    """Returns a run's ledger, held against ``private/`` and privacy.json where they are there.

    Returns:
        What it says; None where there is none and nothing knows of one.

    Raises:
        InputError: A file is of another schema version.
        StateError: The ledger is damaged, or was cut, added to or replaced; or privacy.json
            contradicts it, or what it was written of.
    """
    path = folder / PRIVACY
    privacy = read_privacy(path) if path.exists() else {}
    ledger = read_run_ledger(folder)
    if "ledger" in privacy:
        check_lodged(folder / LEDGER, ledger, privacy["ledger"], by=str(path), whole=True)
    if privacy and ledger is not None:
        check_stated(folder, privacy, ledger)
    return ledger


def run_folders(given: str) -> tuple[str, ...]:
    """Returns the folder itself where it is a run's, else those of the runs of a sweep in it.

    Runs of a sweep that took no noisy step, as one that failed early, spent nothing and are left
    out; one that lost its ledger is not.

    Raises:
        InputError: It is neither, or a run of the sweep was not private.
    """
    path = Path(given)
    runs = runs_in(path)
    return (given,) if runs == [path] else tuple(str(run) for run in runs if _has_steps(run))


def _has_steps(folder: Path) -> bool:
    _configuration(folder)  # One without privacy has no ledger, and must not be left out.
    return any((folder / name).exists() for name in (LEDGER, PRIVACY)) or knows_the_end(folder)


def _configuration(folder: Path) -> dict[str, Any]:
    path = folder / CONFIGURATION
    if not path.is_file():
        missing = f"has no {CONFIGURATION}" if folder.is_dir() else "does not exist"
        raise InputError(
            f"run must be the folder of a dpft run, got {str(folder)!r}, which {missing}; give the "
            "folder that `dpft train` named, such as outputs/DATE/TIME."
        )
    config = read_yaml(path)
    try:
        name = config["privacy"]["name"]
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path} must be a dpft run's configuration, got something else; put it back as it was."
        ) from error
    if name == "none":
        raise InputError(
            f"run must be a private one, got {str(folder)!r}, which was trained with privacy=none:"
            " it protects nobody, alone or with others, and no epsilon bounds it."
        )
    return dict(config)


def _known(folder: Path) -> dict[str, Any]:
    """Returns what the run was bound to; empty where only its configuration says it."""
    states = sorted(folder.glob(CHECKPOINT_STATES))
    if (folder / PRIVACY).exists():
        return read_privacy(folder / PRIVACY)
    if states:
        run = read_json(states[-1]).get("run") or {}
        return {**(run.get("plan") or {}), **(run.get("promises") or {})}
    return {}


def _file_of_known(folder: Path) -> str:
    """Returns the file that ``_known`` reads."""
    return PRIVACY if (folder / PRIVACY).exists() else CHECKPOINTS


def _end(folder: Path, ledger: LedgerRecord) -> str | None:
    if knows_the_end(folder):
        return "private/"
    return CLOSING_LINE if ledger.closed else None


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
    if "tokenizer" in config:
        return _spent_by_tokenizer(folder, config, known, ledger, taken)
    privacy, train = config["privacy"], config["train"]
    batch = train["expected_batch_size"]
    size = int(known.get("num_examples") or _num_examples(config, batch, taken, folder))
    steps = train["steps"] or planned_steps(
        epochs=train["epochs"], num_examples=size, expected_batch_size=batch
    )
    steps = int(known.get("steps", steps))
    delta, source = known.get("delta", privacy["delta"]), _delta_source(config)
    file = _file_of_known(Path(folder))
    return SpentRun(
        folder=folder,
        ledger=ledger,
        taken=taken,
        delta=default_delta(size, source) if delta is None else float(delta),
        delta_source=source,
        num_examples=size,
        expected_batch_size=float(batch),
        planned_steps=steps,
        unit=str(privacy["unit"]),
        unit_definition=known.get("unit_definition"),
        neighboring_relation=str(known.get("neighboring_relation", NEIGHBORING_RELATION)),
        accountant=str(privacy["accountant"]),
        stated=(float(known["epsilon"]), str(known["accountant"])) if "epsilon" in known else None,
        reproducible=privacy["noise_seed"] is not None or known.get("reproducible") is True,
        not_covered=dict.fromkeys((*_OF_CONFIGURATION, *_PLANNED), CONFIGURATION)
        | {name: file for name in (*_PLANNED, *_WORDS) if name in known},
        tokenizer=_private_tokenizer(config),
        end=_end(Path(folder), ledger),
    )


def _delta_source(config: Mapping[str, Any]) -> str:
    """Returns whether delta was given, or by which rule it follows from the number of units."""
    if config["privacy"]["delta"] is not None:
        return GIVEN
    return str((config.get("task") or {}).get("default_delta", PUBLISHED))


def _private_tokenizer(config: Mapping[str, Any]) -> str | None:
    """Returns the tokenizer that a run was given, unless it was said to be public."""
    model = config.get("model") or {}
    given = model.get("tokenizer")
    return None if given is None or model.get("tokenizer_is_public") else str(given)


def _spent_by_tokenizer(
    folder: str,
    config: Mapping[str, Any],
    known: Mapping[str, Any],
    ledger: LedgerRecord,
    taken: Mapping[Noise, int],
) -> SpentRun:
    """Returns what a private vocabulary spent: one step, of all units."""
    privacy = config["privacy"]
    line = ledger.mechanisms[0] if ledger.mechanisms else known
    file = _file_of_known(Path(folder))
    size = int(line["num_examples"])
    return SpentRun(
        folder=folder,
        ledger=ledger,
        taken=taken,
        delta=float(line["delta"]),
        delta_source=_delta_source(config),
        num_examples=size,
        expected_batch_size=float(size),
        planned_steps=1,
        unit=str(privacy["unit"]),
        unit_definition=known.get("unit_definition"),
        neighboring_relation=str(known.get("neighboring_relation", NEIGHBORING_RELATION)),
        accountant="prv",
        reproducible=privacy["noise_seed"] is not None or known.get("reproducible") is True,
        not_covered=dict.fromkeys(_OF_CONFIGURATION, CONFIGURATION)
        | {name: file for name in _WORDS if name in known},
        end=_end(Path(folder), ledger),
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
