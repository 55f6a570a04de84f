"""Trains the runs of the gallery and keeps their report pages.

Run: python -m docs.tools.gallery [NAME…]. What is kept is the page as the run wrote it.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from docs.tools.examples import environment

GALLERY = Path(__file__).resolve().parents[1] / "gallery"
EMBEDDED = ("task=e2e", "task.source=embedded", "model=tiny")
RUNS = {
    "demo": ("experiment=demo",),
    "digits": ("task=digits", "model=vit-tiny", "privacy.eps=8"),
    "not-private": (*EMBEDDED, "train.steps=20", "train.expected_batch_size=64", "privacy=none"),
    "audited": (
        *EMBEDDED, "train.steps=20", "train.expected_batch_size=64", "privacy.eps=8",
        "eval.limit=20", "decode=greedy", "audit.canaries=300", "audit.white_box=true",
    ),
}  # fmt: skip
AFTER = {"audited": ("audit", "audit=one_run")}


def keep(name: str) -> None:
    """Train a run of the gallery and copy its page."""
    with tempfile.TemporaryDirectory(prefix="dpft-gallery-") as folder:
        run = f"outputs/{name}"
        _dpft(folder, "train", *RUNS[name], f"hydra.run.dir={run}")
        if name in AFTER:
            command, *words = AFTER[name]
            _dpft(folder, command, f"run={run}", *words)
        shutil.copy(Path(folder, run, "report.html"), GALLERY / f"{name}.html")


def _dpft(folder: str, *words: str) -> None:
    command = [sys.executable, "-m", "dpft", *words]
    subprocess.run(command, cwd=folder, env=environment(), check=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or RUNS:
        keep(name)
