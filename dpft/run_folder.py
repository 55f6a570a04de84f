"""The folder of a run: names of its files, atomic writes, locks, rejection of symbolic links.

``folder / LEDGER`` is the ledger of a run. Files in ``private/`` must never be released, and only
their owner can read them. All other files may be shared. docs/dev/design.md, the run's folder,
describes the content of each file.

A run's folder may come from another person. With a symbolic link in the folder, a command could
write, delete or expose files elsewhere. For example, ``model/x`` may point to the user's own key,
and ``private/lock`` to a file that does not exist yet. dpft creates no links. A command that reads
or writes in a run's folder therefore rejects links first.
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

# Public: results of a run.
CONFIGURATION = "config.yaml"
REPORT, PAGE = "report.md", "report.html"
PRIVACY = "privacy.json"
METRICS = "metrics.json"
LEDGER = "ledger.jsonl"
MODEL = "model"
"""Folder of the trained model and its tokenizer, in the format of ``save_pretrained``."""
HISTOGRAM = "histogram.tsv"
"""Words that reached the threshold of a private histogram, each with its noisy count."""
TOKENIZER = "tokenizer"
"""Folder of the tokenizer that was trained on the histogram."""
TOKENIZER_CONFIG = "tokenizer_config.json"
"""Configuration of a tokenizer, in the tokenizer's folder."""
PROGRESS = "progress.jsonl"
"""Public progress of the training: the step, the duration of ten or more steps, and scores of a
public split."""
TRACKING = "tracking"
"""Folder of the files that trackers write on this machine."""
HYDRA = ".hydra"
"""Folder that records the composition of the command: ``config.yaml``, ``hydra.yaml``,
``overrides.yaml``."""
OVERRIDES = f"{HYDRA}/overrides.yaml"

# Public, or in private/ if the evaluation split is private, with the same names.
PREDICTIONS, SAMPLES = "predictions.jsonl", "samples.md"
WRONG_IMAGES = "wrong_images.png"
"""Some misclassified images of a public split; not written for a private split."""
TEXTS_OF_EVALUATIONS = ("predictions*.jsonl", "samples*.md", "wrong_images*.png")
"""Patterns of the three files above. If a split has several parts, each part has its own files."""

# Public: results of later commands.
GENERATED, EXPORT = "generated", "export"
AUDIT = "audit"
"""Folder of audit results that may be released."""
SYNTHETIC_AUDIT = f"{AUDIT}/synthetic.html"
RELEASED = (GENERATED, EXPORT, AUDIT)
"""Public folders that other commands create from a run's model."""

# Private: only for the owner.
PRIVATE = "private"
LOCK = f"{PRIVATE}/lock"
JOURNAL = f"{PRIVATE}/steps.jsonl"
DIAGNOSTICS = f"{PRIVATE}/diagnostics.jsonl"
BEGUN = f"{PRIVATE}/begun.json"
"""The day on which a run began, and the versions that it began with."""
PRIVATE_PROGRESS = f"{PRIVATE}/{PROGRESS}"
"""Lines of the progress record that become public at the next boundary. They are private until
then, because the moment at which a line appears reveals a duration."""
PRIVATE_METRICS, PRIVATE_REPORT = f"{PRIVATE}/{METRICS}", f"{PRIVATE}/{REPORT}"
"""The scores of private splits, and the number of scored inputs."""
DATA_SUMMARY = f"{PRIVATE}/data_summary.md"
"""Numbers of records that were read, skipped, truncated, held out and trained on."""
EXACT_HISTOGRAM = f"{PRIVATE}/{HISTOGRAM}"
"""Exact counts of the words of a vocabulary without privacy."""
FINGERPRINT = f"{PRIVATE}/fingerprint"
HELD_OUT_KEY = f"{PRIVATE}/held_out.key"
UNIT_KEY = f"{PRIVATE}/unit_key"
AUDIT_KEY = f"{PRIVATE}/audit_key"
"""Key from which canaries and their coins are generated."""
WHITE_BOX = f"{PRIVATE}/white_box.jsonl"
"""Inner products of each step's noisy gradient with the gradient of every canary."""
REFERENCES = f"{PRIVATE}/references.safetensors"
"""Log-probabilities of preference pairs under the reference model."""
TRACEBACK = f"{PRIVATE}/traceback.txt"
PRIVATE_AUDIT = f"{PRIVATE}/audit"
"""Folder of audit results, and of data about the run that audits need."""
MEMORIZATION = f"{PRIVATE_AUDIT}/memorization.json"
PRIVATE_SYNTHETIC_AUDIT = f"{PRIVATE_AUDIT}/synthetic.html"
CANARIES = f"{PRIVATE_AUDIT}/canaries.json"
"""The canaries of the run, and which of them were trained on."""
BASE_MODEL = f"{PRIVATE}/base_model"
"""Folder of a model that a program passed as an object, and of its tokenizer."""
CHECKPOINTS = f"{PRIVATE}/checkpoints"
CHECKPOINT = "step-" + 8 * "[0-9]"
"""Pattern of a complete checkpoint's folder: ``step-`` and the step in eight digits."""
PARTIAL_CHECKPOINT = ".step-*.partial"
"""Pattern of the folders of checkpoints that are being written."""
WEIGHTS, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
"""Files in each checkpoint; for a sharded model, one file per shard (``shard_name``)."""
STATE, KEYS = "state.json", "generators.json"
"""Files in each checkpoint: the values that must be unchanged when the run resumes, and the secret
keys, until these are deleted."""
HISTORY = "noise.safetensors"
"""File in each checkpoint of a mechanism with correlated noise, one per rank (``shard_name``). The
file is as secret as the keys, and is deleted with them."""
CHECKPOINT_STATES = f"{CHECKPOINTS}/{CHECKPOINT}/{STATE}"

# Private, for a search: its trials are runs with their own folders.
TUNING = f"{PRIVATE}/tuning"
TUNE_CONFIGURATION = f"{TUNING}/tune.yaml"
TRIALS = f"{TUNING}/trials.json"
TRIAL_SCORE, TRIAL_LOG = "outcome.json", "log"
"""Files in the folder of each trial."""

# In the folder of a sweep, which contains the folders of its runs.
SWEEP_RECORD = "multirun.yaml"
SYNTHESIS, TRAINING = "synthesis.yaml", "training"
"""In the folder of a synthesis: its configuration, and its training, which is a separate run."""
PRIVATE_PAGE = f"{PRIVATE}/{PAGE}"
"""Page of a synthesis that compares its rows with real rows."""
EXIT_CODES = f"{PRIVATE}/exit_codes"
"""Folder that records how each job ended, ``NUMBER.json``."""


def refuse_links(folder: Path) -> None:
    """Reject a run's folder with a symbolic link in it, before dpft reads or writes there.

    The path of the folder itself may contain links, for example to another disk.

    Raises:
        InputError: The folder contains a link, or a folder cannot be listed.
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
    """Write ``text`` under a temporary name, sync the file to disk and rename it into place."""
    write_bytes(path, text.encode(), mode=mode)


def write_bytes(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write ``content`` like ``write_text``."""
    temporary = path.with_name(f".{path.name}.partial")
    temporary.unlink(missing_ok=True)  # A file left by a crash would keep its mode.
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
    """Wait until the names in ``folder`` are on disk, so that new files survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Wait until all files in ``folder``, which a library wrote, are on disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    for path in (*(path for path in folder.rglob("*") if path.is_dir()), folder, folder.parent):
        sync_folder(path)


def apply_umask(folder: Path) -> None:
    """Give the files in ``folder`` the mode of a new file.

    A library that writes through temporary files makes them readable only by their owner. The
    targets of symbolic links are not changed.
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
    """Return the content that ``write_json`` wrote, including the schema version."""
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
    """Return the content of a file; a folder in its place means that the run is corrupted.

    Raises:
        FileNotFoundError: The file does not exist.
        StateError: The path is a folder.
    """
    try:
        return path.read_bytes()
    except IsADirectoryError as error:
        raise StateError(
            f"{path} must be a file, got a folder. Restore the file from a backup."
        ) from error


def read_yaml(path: Path) -> Any:
    """Return the plain values of a YAML file that dpft wrote, such as a run's config.yaml.

    Interpolations of OmegaConf (``${...}``) are not resolved and remain in the texts.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    # PyYAML does not convert errors of its constructors, for example for an invalid date.
    except (
        *(OSError, ValueError, LookupError, AttributeError, RecursionError),
        yaml.YAMLError,
    ) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"cannot read {path}: {reason}. Restore it from a backup.", key=str(path)
        ) from error


def check_version(version: object, path: Path) -> None:
    """Reject a file with a schema version that this version of dpft does not support."""
    if version is True or version != SCHEMA_VERSION:
        raise InputError(
            f"{path} must have schema_version {SCHEMA_VERSION}, got {version!r}. Use the version"
            " of dpft that wrote it, or restore the file if it was edited.",
            key=str(path),
            value=version,
        )


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]], *, mode: int = 0o644) -> None:
    """Write one JSON object per line with sorted keys."""
    lines = (json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n" for row in rows)
    write_text(path, "".join(lines), mode=mode)


def check_writable(folder: Path) -> None:
    """Reject a folder that cannot be created or written to, before work is spent on it.

    Raises:
        OSError: The folder is not writable; the error states the reason.
    """
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    with tempfile.TemporaryFile(dir=above):
        return


def private_folder(run: Path) -> Path:
    """Return the run's ``private`` folder, created if necessary, mode 0700; never release it."""
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
    """Return the path of a private file or folder; create ``private/`` if necessary.

    Args:
        run: Folder of the run, which exists.
        name: A name from above that begins with ``private/``.
    """
    private_folder(run)
    return run / name


def write_private(run: Path, texts: Mapping[str, str | None]) -> None:
    """Write files in a run's private/, readable only by the owner.

    Args:
        run: Folder of the run, which exists.
        texts: Content of each file, by a name from above that begins with ``private/``; None
            removes the file.
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
    """Return the path of an audit's private file; create its folder if necessary, mode 0700.

    Args:
        run: Folder of the run, which exists.
        name: A name from above that begins with ``private/audit/``.
    """
    _make_folder(private_path(run, PRIVATE_AUDIT), 0o700)
    return run / name


def audit_path(run: Path, name: str) -> Path:
    """Return the path of an audit result that may be released; create its folder if necessary."""
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
    """Lock a run's folder inside the block, so that two processes never write to it at once."""
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
    """Return whether a path is the folder in which a run stores a model passed as an object."""
    return Path(path).parts[-2:] == Path(BASE_MODEL).parts


def trial_folder(run: Path, number: int) -> Path:
    """Return the private folder of a trial of a search, counted from 0."""
    return run / TUNING / f"trial-{number}"


def shard_name(name: str, shard: int, shards: int) -> str:
    """Return the file name of one shard, counted from 0, of a file.

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
    """Return the reason why a folder has no ``wanted`` file, as the end of an error message."""
    if folder.is_dir():
        return f"has no {wanted}"
    return "is not a folder" if folder.exists() else "does not exist"


def runs_in(folder: Path) -> list[Path]:
    """Return the folder if it is a run, or else the runs of the sweep in it, sorted by number."""
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
    return sorted(  # 2 comes before 10. Names that are not numbers come first.
        runs, key=lambda run: (int(run.name) if run.name.isdecimal() else -1, run.name)
    )
