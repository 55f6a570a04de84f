"""A run's folder: names of its files, atomic writes, locks, rejection of symbolic links.

``folder / LEDGER`` is a run's ledger. What stands under ``private/`` is never to be released, and
only its owner can read it; the rest may be handed on. docs/dev/design.md, the run's folder, says
what each file holds.

A run's folder may have been received from somebody. Through a link in it a command would write to,
delete or open to others what lies elsewhere: ``model/x`` may stand for the owner's own key, and
``private/lock`` for a file that is not there yet. dpft makes no links, so a command that reads or
writes in a run's folder first refuses them.
"""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from dpft.errors import InputError, StateError

SCHEMA_VERSION = 2

# Public: what a run leaves for its reader.
CONFIGURATION = "config.yaml"
REPORT, PAGE = "report.md", "report.html"
PRIVACY = "privacy.json"
METRICS = "metrics.json"
LEDGER = "ledger.jsonl"
MODEL = "model"
"""Folder of the trained model and its tokenizer, as ``save_pretrained`` writes them."""
HISTOGRAM = "histogram.tsv"
"""Words that reached a private histogram's threshold, each with its noisy count."""
TOKENIZER = "tokenizer"
"""Folder of the tokenizer that was made of it."""
TOKENIZER_CONFIG = "tokenizer_config.json"
"""In such a folder: what the tokenizer says of itself."""
PROGRESS = "progress.jsonl"
"""Steps, durations of ten steps or more, and scores of a public split while the run trained."""
TRACKING = "tracking"
"""Folder of what trackers write on this machine."""
HYDRA = ".hydra"
"""Folder of how the command was composed: ``config.yaml``, ``hydra.yaml``, ``overrides.yaml``."""
OVERRIDES = f"{HYDRA}/overrides.yaml"

# Public, or in private/ where the evaluation split is: the same names in either place.
PREDICTIONS, SAMPLES = "predictions.jsonl", "samples.md"
WRONG_IMAGES = "wrong_images.png"
"""Some images of a public split that were classed wrongly; of a private one there is none."""
TEXTS_OF_EVALUATIONS = ("predictions*.jsonl", "samples*.md", "wrong_images*.png")
"""Patterns of the files with an evaluation's texts: one each, or one for each part of a split."""

# Public: what later commands make of the model.
GENERATED, EXPORT = "generated", "export"
AUDIT = "audit"
"""Folder of what an audit found that may be released."""
SYNTHETIC_AUDIT = f"{AUDIT}/synthetic.html"
RELEASED = (GENERATED, EXPORT, AUDIT)
"""What other commands made in public of a run's model."""

# Private: the owner's alone.
PRIVATE = "private"
LOCK = f"{PRIVATE}/lock"
JOURNAL = f"{PRIVATE}/steps.jsonl"
DIAGNOSTICS = f"{PRIVATE}/diagnostics.jsonl"
BEGUN = f"{PRIVATE}/begun.json"
"""The day on which a run was begun, and with which versions."""
PRIVATE_PROGRESS = f"{PRIVATE}/{PROGRESS}"
"""Its lines until the next boundary, since the moment at which a line appears reveals a time."""
PRIVATE_METRICS, PRIVATE_REPORT = f"{PRIVATE}/{METRICS}", f"{PRIVATE}/{REPORT}"
"""The scores of private splits, and how many inputs were scored."""
DATA_SUMMARY = f"{PRIVATE}/data_summary.md"
"""How many records were read, left out, cut, held out and trained on."""
EXACT_HISTOGRAM = f"{PRIVATE}/{HISTOGRAM}"
"""The words of a vocabulary without privacy, as they were counted."""
FINGERPRINT = f"{PRIVATE}/fingerprint"
HELD_OUT_KEY = f"{PRIVATE}/held_out.key"
UNIT_KEY = f"{PRIVATE}/unit_key"
AUDIT_KEY = f"{PRIVATE}/audit_key"
"""Of which canaries and their coins were made."""
WHITE_BOX = f"{PRIVATE}/white_box.jsonl"
"""What each step's noisy gradient has of every canary's own."""
REFERENCES = f"{PRIVATE}/references.safetensors"
"""Log-probabilities of preference pairs under the reference model."""
TRACEBACK = f"{PRIVATE}/traceback.txt"
PRIVATE_AUDIT = f"{PRIVATE}/audit"
"""Folder of what audits found, and of what they must know of the run."""
MEMORIZATION = f"{PRIVATE_AUDIT}/memorization.json"
PRIVATE_SYNTHETIC_AUDIT = f"{PRIVATE_AUDIT}/synthetic.html"
CANARIES = f"{PRIVATE_AUDIT}/canaries.json"
"""The run's canaries, and which of them were trained on."""
BASE_MODEL = f"{PRIVATE}/base_model"
"""Folder of the model that a program gave as an object, and of its tokenizer."""
CHECKPOINTS = f"{PRIVATE}/checkpoints"
CHECKPOINT = "step-" + 8 * "[0-9]"
"""Pattern of a complete checkpoint's folder, ``step-`` and the step in eight digits."""
PARTIAL_CHECKPOINT = ".step-*.partial"
"""Pattern of the folders of checkpoints that are being written."""
WEIGHTS, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
"""In each checkpoint; of a model in shards each shard's own, ``shard_name``."""
STATE, KEYS = "state.json", "generators.json"
HISTORY = "noise.safetensors"
"""In each checkpoint of a mechanism whose noise hangs together: each rank's own, ``shard_name``. As
secret as the keys, and deleted with them."""
"""In each checkpoint: what the run is bound to, and its secret keys while it has any."""
CHECKPOINT_STATES = f"{CHECKPOINTS}/{CHECKPOINT}/{STATE}"

# Private, of a search: its trials are runs with folders of their own.
TUNING = f"{PRIVATE}/tuning"
TUNE_CONFIGURATION = f"{TUNING}/tune.yaml"
TRIALS = f"{TUNING}/trials.json"
TRIAL_SCORE, TRIAL_LOG = "outcome.json", "log"
"""In each trial's folder."""

# In the folder of a sweep, whose runs are folders in it.
SWEEP_RECORD = "multirun.yaml"
SYNTHESIS, TRAINING = "synthesis.yaml", "training"
"""In a synthesis's folder: how it was asked for, and its training, a run of its own."""
PRIVATE_PAGE = f"{PRIVATE}/{PAGE}"
"""Of a synthesis: its rows against real ones."""
EXIT_CODES = f"{PRIVATE}/exit_codes"
"""Folder of how each job ended, ``NUMBER.json``."""


def refuse_links(folder: Path) -> None:
    """Reject the folder of a run with a symbolic link in it, before dpft reads or write there.

    The folder itself may be reached through links, as one on another disk is.

    Raises:
        InputError: There is one, or a folder cannot be listed.
    """

    def unlisted(error: OSError) -> None:
        if isinstance(error, PermissionError):
            raise InputError(
                f"{error.filename} cannot be listed ({error.strerror}), so it may contain symbolic"
                " links. Make it readable, or remove it.",
                key=str(error.filename),
            ) from error

    for place, folders, files in os.walk(folder, onerror=unlisted):
        for path in (Path(place, name) for name in sorted((*folders, *files))):
            if path.is_symlink():
                raise InputError(
                    f"{path} must be a file or a folder, got a symbolic link, which leads commands"
                    " outside the run's folder. Replace it with the file or folder that belongs"
                    " there.",
                    key=str(path),
                )


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write ``text`` under a temporary name, syncs it to disk and renames it into place."""
    write_bytes(path, text.encode(), mode=mode)


def write_bytes(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write ``content`` as ``write_text`` does."""
    temporary = path.with_name(f".{path.name}.partial")
    temporary.unlink(missing_ok=True)  # One left by a crash would keep its own mode.
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in ``folder`` are on disk, so that a new file survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Wait until everything in ``folder``, which a library wrote, is on disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    for path in (*(path for path in folder.rglob("*") if path.is_dir()), folder, folder.parent):
        sync_folder(path)


def apply_umask(folder: Path) -> None:
    """Give the files in ``folder`` the mode that a new file has.

    A library that writes through temporary files leaves them to their owner alone. What a symbolic
    link points to is left as it is.
    """
    mask = os.umask(0)
    os.umask(mask)
    for place, _, files in os.walk(folder):
        for path in (Path(place, name) for name in files):
            if path.is_file() and not path.is_symlink():
                path.chmod(0o666 & ~mask)


def write_json(path: Path, content: Mapping[str, Any], *, mode: int = 0o644) -> None:
    """Write one JSON object with sorted keys and the schema version."""
    versioned = {"schema_version": SCHEMA_VERSION, **content}
    write_text(path, json.dumps(versioned, indent=2, sort_keys=True) + "\n", mode=mode)


def read_json(path: Path) -> dict[str, Any]:
    """Return what ``write_json`` wrote, the schema version included."""
    try:
        content = json.loads(read_file(path))
        version = content["schema_version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateError(
            f"{path} is damaged: it must contain one JSON object with a schema_version. Restore it"
            " from a backup."
        ) from error
    check_version(version, path)
    return dict(content)


def read_file(path: Path) -> bytes:
    """Return the content of a file; a folder in its place is a corrupted run.

    Raises:
        FileNotFoundError: It is not there.
        StateError: It is a folder.
    """
    try:
        return path.read_bytes()
    except IsADirectoryError as error:
        raise StateError(
            f"{path} must be a file, got a folder. Restore the file from a backup."
        ) from error


def read_yaml(path: Path) -> Any:
    """Return the plain values of a YAML file that dpft wrote, such as a run's config.yaml.

    Texts stay as they are: OmegaConf's ``${...}`` is none of YAML's, and nothing resolves it.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    # PyYAML lets pass what its constructors raise of a text that is no number or date after all.
    except (
        *(OSError, ValueError, LookupError, AttributeError, RecursionError),
        yaml.YAMLError,
    ) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"cannot read {path}: {reason}. Restore it from a backup.", key=str(path)
        ) from error


def check_version(version: object, path: Path) -> None:
    """Reject a file that another dpft wrote in a form that this one does not know."""
    if version is True or version != SCHEMA_VERSION:
        raise InputError(
            f"{path} must have schema_version {SCHEMA_VERSION}, got {version!r}. Use the version"
            " of dpft that wrote it, or restore the file if it was edited.",
            key=str(path),
            value=version,
        )


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]], *, mode: int = 0o644) -> None:
    """Write one JSON object a line, keys sorted."""
    lines = (json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n" for row in rows)
    write_text(path, "".join(lines), mode=mode)


def check_writable(folder: Path) -> None:
    """Reject a folder that cannot be written to, or made, before work is put into it.

    Raises:
        OSError: It says why.
    """
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    with tempfile.TemporaryFile(dir=above):
        return


def private_folder(run: Path) -> Path:
    """Return the run's ``private`` folder, made if need be; mode 0700, never to be released."""
    folder = run / PRIVATE
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError as error:
        raise InputError(
            f"{folder} must be a folder, because it stores private files, got something else. Move"
            " it away, or restore the folder.",
            key=str(folder),
        ) from error
    folder.chmod(0o700)
    return folder


def private_path(run: Path, name: str) -> Path:
    """Return the path of a private file or folder, ``private/`` made if need be.

    Args:
        run: The run's folder; it exists.
        name: One of the names above that begin with ``private/``.
    """
    private_folder(run)
    return run / name


def write_private(run: Path, texts: Mapping[str, str | None]) -> None:
    """Write files of a run's private/, for the owner alone.

    Args:
        run: The run's folder; it exists.
        texts: What each holds, by a name above that begins with ``private/``; None: it is removed.
    """
    private_folder(run)
    for name, text in texts.items():
        path = run / name
        if text is None:
            path.unlink(missing_ok=True)
            continue
        if path.parent == run / PRIVATE_AUDIT:
            _make_folder(path.parent, 0o700)
        write_text(path, text, mode=0o600)


def private_audit_path(run: Path, name: str) -> Path:
    """Return the path of an audit's private file, its folder made if need be, mode 0700.

    Args:
        run: The run's folder; it exists.
        name: One of the names above that begin with ``private/audit/``.
    """
    _make_folder(private_path(run, PRIVATE_AUDIT), 0o700)
    return run / name


def audit_path(run: Path, name: str) -> Path:
    """Return the path of what of an audit may be released, its folder made if need be."""
    _make_folder(run / AUDIT, 0o777)
    return run / name


def _make_folder(folder: Path, mode: int) -> None:
    try:
        folder.mkdir(mode=mode, exist_ok=True)
    except FileExistsError as error:
        raise InputError(
            f"{folder} must be a folder, because it stores the results of audits, got something"
            " else. Move it away.",
            key=str(folder),
        ) from error


@contextmanager
def hold_run(run: Path) -> Iterator[None]:
    """Hold a run's folder inside the block, so that two processes never write to it."""
    descriptor = os.open(private_path(run, LOCK), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(
            f"{run} is in use by another dpft process. Wait for it to end, or choose another"
            " folder with hydra.run.dir=DIR.",
            key=str(run),
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


def is_base_model(path: str | Path) -> bool:
    """Return whether a model's folder is the one in which a run keeps the object it was given."""
    return Path(path).parts[-2:] == Path(BASE_MODEL).parts


def trial_folder(run: Path, number: int) -> Path:
    """Return the folder of a search's trial, counted from 0; private."""
    return run / TUNING / f"trial-{number}"


def shard_name(name: str, shard: int, shards: int) -> str:
    """Return the name of the file with one shard, counted from 0, of what a file would hold.

    >>> [shard_name(WEIGHTS, shard, 2) for shard in range(2)]
    ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors']
    >>> shard_name(WEIGHTS, 0, 1)
    'model.safetensors'
    """
    if shards == 1:
        return name
    stem, _, suffix = name.rpartition(".")
    return f"{stem}-{shard + 1:05d}-of-{shards:05d}.{suffix}"


def checkpoint_name(step: int) -> str:
    """Return the name of the folder of the checkpoint after ``step`` steps."""
    return f"step-{step:08d}"


def what_lacks(folder: Path, wanted: str) -> str:
    """Return why a path is not a folder that contains a wanted file, for the end of a message."""
    if folder.is_dir():
        return f"has no {wanted}"
    return "is not a folder" if folder.exists() else "does not exist"


def runs_in(folder: Path) -> list[Path]:
    """Return the folder itself where it is a run's, else the runs of its sweep, by number."""
    if (folder / CONFIGURATION).is_file():
        return [folder]
    runs = [path.parent for path in folder.glob(f"[!.]*/{CONFIGURATION}") if path.is_file()]
    if not runs:
        lacks = what_lacks(folder, f"{CONFIGURATION} and no run in it")
        raise InputError(
            f"runs must be folders of runs or of sweeps, got {str(folder)!r}, which {lacks}.",
            key="runs",
            value=str(folder),
            hint="runs=outputs/DATE/TIME",
        )
    return sorted(  # 2 comes before 10, and words before both
        runs, key=lambda run: (int(run.name) if run.name.isdecimal() else -1, run.name)
    )
