"""What the public files of a run's folder say, for reports of one run and of many."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpft.errors import InputError, StateError
from dpft.files import read_json, read_yaml
from dpft.records.scores import ScoreEntry
from dpft.reports.run.metrics_files import read_evaluations, read_own_evaluations, shown
from dpft.run_folder import CONFIGURATION, OVERRIDES, PRIVACY, runs_in

NEEDED: dict[str, type | tuple[type, ...]] = {
    **{"private": bool, "num_examples": int, "steps": int, "warnings": list},
}
"""What every run's privacy.json has, and of what type."""
TRAINED: dict[str, type | tuple[type, ...]] = {
    **{"trainable_parameters": int, "new_parameters": int, "total_parameters": int},
}
"""What it has besides where a model was trained."""
PROMISED: dict[str, type | tuple[type, ...]] = {
    **{"epsilon": (int, float), "delta": (int, float), "accountant": str, "steps_taken": int},
    **{"noise_multiplier": (int, float), "sample_rate": (int, float), "ledger": dict},
}
"""What it has besides where noise was added."""
LINEAR_NOISE = "float32 pseudo-random"
"""How the noise source of earlier versions begins, without their ``privacy.secure_noise``."""
COMPUTABLE = (
    "this run's noise came from a linear generator, whose state can be computed from the released"
    " weights: its guarantee does not hold; treat the model as trained without it (SECURITY.md)"
)


def is_promised(privacy: Mapping[str, Any]) -> bool:
    """Returns whether the epsilon of a privacy.json, read by ``read_privacy``, is one to rely on.

    Not without privacy, nor of a test's seed, nor where the noise can be computed.
    """
    return bool(privacy["private"]) and COMPUTABLE not in privacy["warnings"]


def guarantee(privacy: Mapping[str, Any]) -> tuple[float, float]:
    """Returns the epsilon and delta of all that a model's release tells.

    Where the records made its tokenizer, too, they are those of both: epsilon of the training alone
    is no guarantee of the model.

    Args:
        privacy: Content of a privacy.json with an epsilon.
    """
    if "epsilon_with_tokenizer" in privacy:
        return float(privacy["epsilon_with_tokenizer"]), float(privacy["delta_with_tokenizer"])
    return float(privacy["epsilon"]), float(privacy["delta"])


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run's public files, read."""

    folder: Path
    config: dict[str, Any]
    """Content of config.yaml."""
    privacy: dict[str, Any]
    """Content of privacy.json."""
    evaluations: list[ScoreEntry]
    """Entries of metrics.json, which of private splits say no more than may be shown; none where
    nothing was scored."""
    overrides: tuple[str, ...] | None
    """What the user wrote after ``dpft train``; None where that is not recorded."""

    def after(self) -> list[ScoreEntry]:
        """Returns the scores of the trained model, an entry for each task and split."""
        return self._of_stage("after")

    def before(self) -> list[ScoreEntry]:
        """Returns the scores before training, an entry for each task and split."""
        return self._of_stage("before")

    def _of_stage(self, stage: str) -> list[ScoreEntry]:
        return [entry for entry in self.evaluations if entry.stage == stage]


def read_record(folder: Path) -> RunRecord:
    """Returns what a run's public files say.

    Raises:
        InputError: One of them is missing or of another schema version.
        StateError: A JSON file is damaged.
    """
    try:
        privacy = read_privacy(folder / PRIVACY)
        if _is_of_tokenizer(privacy):
            raise InputError(
                f"{folder} is of dpft tokenizer, which trains no model; its own report says all of"
                " it."
            )
        return RunRecord(
            folder=folder,
            config=dict(read_yaml(folder / CONFIGURATION)),
            privacy=privacy,
            evaluations=read_evaluations(folder),
            overrides=read_overrides(folder),
        )
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"cannot read the run in {folder}: {reason}.") from error


def with_own_scores(record: RunRecord, *, rounded: bool = False) -> RunRecord:
    """Returns a run's record with the scores of private splits that its owner has in private/.

    Args:
        record: As ``read_record`` gives it.
        rounded: Whether they are rounded to the digits that may be shown.

    Raises:
        InputError: A file of scores is of another schema version.
        StateError: One is damaged.
    """
    own = read_own_evaluations(record.folder)
    return replace(
        record, evaluations=[shown(one, rounded=True) for one in own] if rounded else own
    )


def read_overrides(folder: Path) -> tuple[str, ...] | None:
    """Returns what the user wrote after ``dpft train``; None where that is not recorded."""
    path = folder / OVERRIDES
    if not path.exists():
        return None
    return tuple(map(str, read_yaml(path) or ()))


def read_privacy(path: Path) -> dict[str, Any]:
    """Returns the content of privacy.json; a run of an earlier version's noise gets a warning.

    Raises:
        InputError: It is of another schema version.
        StateError: It is damaged.
    """
    content = read_json(path)
    needed = NEEDED | ({} if _is_of_tokenizer(content) else TRAINED)
    needed |= PROMISED if "epsilon" in content else {}
    wrong = sorted(name for name, kind in needed.items() if not isinstance(content.get(name), kind))
    if not wrong and "epsilon" in content:
        ledger = content["ledger"]
        wrong = [] if isinstance(ledger.get("lines"), int) and "head" in ledger else ["ledger"]
    if wrong:
        raise StateError(
            f"{path} is damaged: it has no {', '.join(wrong)}, or one of another type; put it back."
        )
    if str(content.get("noise_source", "")).startswith(LINEAR_NOISE):
        content["warnings"] = [COMPUTABLE, *content["warnings"]]
    return content


def _is_of_tokenizer(content: Mapping[str, Any]) -> bool:
    """Returns whether no model was trained; a key that is added to a training's changes nothing."""
    return "mechanism" in content and not TRAINED.keys() & content.keys()


def find_runs(named: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Returns the folders of finished runs, and those of runs that have no report yet.

    Args:
        named: Folders of runs, or of sweeps, whose runs are taken in the order of their numbers.

    Raises:
        InputError: One of them is neither.
    """
    found = [run for folder in named for run in runs_in(folder)]
    distinct = list({run.resolve(): run for run in found}.values())
    finished = [run for run in distinct if (run / PRIVACY).exists()]
    return finished, [run for run in distinct if run not in finished]
