"""When a run was begun, and with what versions: what dates its report.

Written once, in the run's private/, where the run begins, so that one that goes on another day, or
was killed and goes on bit by bit, says the same. A day is enough: what is finer would tell how long
steps took (docs/design.md, rule 7).
"""

import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dpft
from dpft.config.keys import plain
from dpft.config.schema import TrainConfig
from dpft.files import read_json, write_json
from dpft.records.form import parse
from dpft.records.promises import Begun
from dpft.reports.run.origin import data_name, model_name, with_kind
from dpft.run_folder import BEGUN, is_base_model, private_path

LIBRARIES = ("torch", "transformers")
KEYS = ("date", "versions", "commit", "starting_models")
"""What privacy.json has of it."""


def write_begun(
    folder: Path,
    *,
    asked: str | None = None,
    job: str | None = None,
    starting_models: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Writes down that the run in a folder begins today (UTC), and with which versions.

    Args:
        folder: The run's; it exists.
        asked: What tells the configuration that was asked for from any other.
        job: What tells the job of submitit that begins it from any other; None: there is none.
        starting_models: What the model that it starts from has promised already.
    """
    versions = {"dpft": dpft.__version__, **{name: version(name) for name in LIBRARIES}}
    begun: dict[str, Any] = {"date": datetime.now(UTC).date().isoformat(), "versions": versions}
    commit = checked_out_commit(Path(dpft.__file__).parents[1])
    if commit is not None:
        begun["commit"] = commit
    if starting_models:
        begun["starting_models"] = list(starting_models)
    if asked is not None:
        begun["asked"] = asked
    if job is not None:
        begun["job"] = job
    write_json(private_path(folder, BEGUN), begun, mode=0o600)


def asked_for(folder: Path) -> str | None:
    """Returns what tells the configuration that a run was asked for by; None of one that is older.

    Raises:
        InputError: The file is of another schema version.
        StateError: It is damaged.
    """
    return _word_of(folder, "asked")


def job_of(folder: Path) -> str | None:
    """Returns what tells the job of submitit that began a run; None where none did.

    Raises:
        InputError: The file is of another schema version.
        StateError: It is damaged.
    """
    return _word_of(folder, "job")


def _word_of(folder: Path, key: str) -> str | None:
    path = folder / BEGUN
    return read_json(path).get(key) if path.exists() else None


def read_begun(folder: Path) -> dict[str, Any]:
    """Returns ``date``, ``versions`` and what else is known; nothing of a run that is older.

    Raises:
        InputError: The file is of another schema version.
        StateError: It is damaged.
    """
    path = folder / BEGUN
    if not path.exists():
        return {}
    known = read_json(path)
    return {key: known[key] for key in KEYS if key in known}


def begun_keys(folder: Path) -> dict[str, Any]:
    """Returns date, versions and commit of a run as ``dpft.records.promises.Begun`` has them."""
    known = {name: value for name, value in read_begun(folder).items() if name in KEYS[:3]}
    return vars(parse(known, Begun))


def origin(config: TrainConfig, folder: Path) -> dict[str, Any]:
    """Returns what privacy.json says of a run's day, versions, model and data."""
    values = plain(config)
    path = config.model.path
    own = config.model.folder if path and not is_base_model(path) else None
    model = with_kind(model_name(values), own)
    return {"model": model, "data": data_name(values), **read_begun(folder)}


def checked_out_commit(root: Path) -> str | None:
    """Returns the commit of a git checkout, ``-dirty`` behind it where files differ from it.

    Args:
        root: The folder that holds the package; None is returned where it is no checkout's root.
    """
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(
            [*command, "--exclude=*"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
