"""A run's folder: every name and path in it, each relative to the folder, and who may read it.

``folder / LEDGER`` is a run's ledger. What stands under ``private/`` is never to be released; the
rest may be handed on. docs/design.md, the run's folder, says what each file holds.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpft.errors import InputError
from dpft.files import hold_lock

# Public: what a run leaves for its reader.
CONFIGURATION = "config.yaml"
REPORT, PAGE = "report.md", "report.html"
PRIVACY = "privacy.json"
METRICS = "metrics.json"
LEDGER = "ledger.jsonl"
HANDED_HEADS = "witness.json"
"""Which heads of the ledger were handed to a witness."""
MODEL = "model"
"""Folder of the trained model and its tokenizer, as ``save_pretrained`` writes them."""
HISTOGRAM = "histogram.tsv"
"""Words that reached a private histogram's threshold, each with its noisy count."""
TOKENIZER = "tokenizer"
"""Folder of the tokenizer that was made of it."""
TOKENIZER_CONFIG = "tokenizer_config.json"
"""In such a folder: what the tokenizer says of itself."""
TRACKING = "tracking"
"""Folder of what trackers write on this machine."""
HYDRA = ".hydra"
"""Folder of how the command was composed: ``config.yaml``, ``hydra.yaml``, ``overrides.yaml``."""
OVERRIDES = f"{HYDRA}/overrides.yaml"

# Public, or in private/ where the evaluation split is: the same names in either place.
PREDICTIONS, SAMPLES = "predictions.jsonl", "samples.md"
SCORES_BY_STEP = "scores_by_step.json"
"""Scores of a public split while the run trained."""
WRONG_IMAGES = "wrong_images.png"
"""Some images of a public split that were classed wrongly; of a private one there is none."""
TEXTS_OF_EVALUATIONS = ("predictions*.jsonl", "samples*.md", "wrong_images*.png")
"""Patterns of the files with an evaluation's texts: one each, or one for each part of a split."""
SHEET, SHEET_KEY = "human_eval.csv", "human_eval_key.json"

# Public: what later commands make of the model.
GENERATED, EXPORT = "generated", "export"
AUDIT = "audit"
"""Folder of what an audit found that may be released."""
SYNTHETIC_AUDIT = f"{AUDIT}/synthetic.html"
RELEASED = (GENERATED, EXPORT, SHEET, AUDIT)
"""What other commands made in public of a run's model."""

# Private: the owner's alone.
PRIVATE = "private"
LOCK = f"{PRIVATE}/lock"
JOURNAL = f"{PRIVATE}/steps.jsonl"
DIAGNOSTICS = f"{PRIVATE}/diagnostics.jsonl"
COMPILED = f"{PRIVATE}/compiled"
BEGUN = f"{PRIVATE}/begun.json"
"""The day on which a run was begun, and with which versions."""
PRIVATE_SCORES_BY_STEP = f"{PRIVATE}/{SCORES_BY_STEP}"
"""The same until it may appear, since when it does tells a time."""
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
TUNING_BILL = "tuning_bill.json"
SWEEP_RECORD = "multirun.yaml"
SYNTHESIS = "synthesis.yaml"
"""In a synthesis's folder, whose training is a run in it: how it was asked for."""
PRIVATE_PAGE = f"{PRIVATE}/{PAGE}"
"""Of a synthesis: its rows against real ones."""
EXIT_CODES = f"{PRIVATE}/exit_codes"
"""Folder of how each job ended, ``NUMBER.json``."""

# In the folder of a report of many runs.
SIGNAL_TO_NOISE = f"{PRIVATE}/signal_to_noise.html"
"""Scores over signal-to-noise ratios, which are of the records."""


def private_folder(run: Path) -> Path:
    """Returns the run's ``private`` folder, made if need be; mode 0700, never to be released.

    Raises:
        InputError: Something of this name is there that is no folder.
    """
    folder = run / PRIVATE
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError as error:
        raise InputError(
            f"{folder} must be a folder, which holds what is not to be released, got something"
            " else; move it away, or put it back as it was."
        ) from error
    folder.chmod(0o700)
    return folder


def private_path(run: Path, name: str) -> Path:
    """Returns the path of a private file or folder, ``private/`` made if need be.

    Args:
        run: The run's folder; it exists.
        name: One of the names above that begin with ``private/``.

    Raises:
        InputError: As ``private_folder``.
    """
    private_folder(run)
    return run / name


def private_audit_path(run: Path, name: str) -> Path:
    """Returns the path of an audit's private file, its folder made if need be, mode 0700.

    Args:
        run: The run's folder; it exists.
        name: One of the names above that begin with ``private/audit/``.

    Raises:
        InputError: As ``private_folder``.
    """
    _make_folder(private_path(run, PRIVATE_AUDIT), 0o700)
    return run / name


def audit_path(run: Path, name: str) -> Path:
    """Returns the path of what of an audit may be released, its folder made if need be.

    Args:
        run: The run's folder; it exists.
        name: One of the names above that begin with ``audit/``.

    Raises:
        InputError: Something of the folder's name is there that is none.
    """
    _make_folder(run / AUDIT, 0o777)
    return run / name


def _make_folder(folder: Path, mode: int) -> None:
    try:
        folder.mkdir(mode=mode, exist_ok=True)
    except FileExistsError as error:
        raise InputError(
            f"{folder} must be a folder, for what an audit finds, got something else; move it away."
        ) from error


@contextmanager
def hold_run(run: Path) -> Iterator[None]:
    """Holds a run's folder inside the block, so that two processes never write to it.

    Raises:
        InputError: Another process holds it.
    """
    with hold_lock(private_path(run, LOCK)):
        yield


def is_base_model(path: str | Path) -> bool:
    """Returns whether a model's folder is the one in which a run keeps the object it was given."""
    return Path(path).parts[-2:] == Path(BASE_MODEL).parts


def trial_folder(run: Path, number: int) -> Path:
    """Returns the folder of a search's trial, counted from 0; private."""
    return run / TUNING / f"trial-{number}"


def shard_name(name: str, shard: int, shards: int) -> str:
    """Returns the name of the file with one shard, counted from 0, of what a file would hold.

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
    """Returns the name of the folder of the checkpoint after ``step`` steps."""
    return f"step-{step:08d}"


def has_ledger_or_trials(run: Path) -> bool:
    """Returns whether a folder shows, by names alone, that privacy was spent in it."""
    return (run / LEDGER).exists() or (run / TUNING).exists()


def runs_in(folder: Path) -> list[Path]:
    """Returns the folder itself where it is a run's, else the runs of the sweep in it, by number.

    Raises:
        InputError: It is neither.
    """
    if (folder / CONFIGURATION).is_file():
        return [folder]
    found = [path.parent for path in folder.glob(f"[!.]*/{CONFIGURATION}") if path.is_file()]
    if not found:
        lacks = f"has no {CONFIGURATION} and no run in it" if folder.is_dir() else "does not exist"
        raise InputError(
            f"runs must be folders of runs, or of sweeps of them, got {str(folder)!r}, which"
            f" {lacks}; give what `dpft train` named, such as outputs/DATE/TIME."
        )
    return sorted(found, key=_by_number)


def _by_number(run: Path) -> tuple[int, str]:
    """Returns what orders the runs of a sweep: 2 comes before 10, and words before both."""
    return (int(run.name) if run.name.isdecimal() else -1, run.name)
