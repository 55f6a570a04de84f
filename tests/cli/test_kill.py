"""Murder: kill -9 at random moments, resume until done, and nothing shows that it happened."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.tiny import TRAINING, Workspace, make_workspace

KILLS, STEPS = 30, 240
RUN = (
    *TRAINING, f"train.steps={STEPS}", "train.checkpoint_every=3", "train.num_threads=1",
    "privacy.noise_multiplier=1", "privacy.noise_seed=3", "privacy.self_check=false",
    "eval.enabled=false",
)  # fmt: skip
SECONDS = 120


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with a finished run ``whole``."""
    made = make_workspace(tmp_path_factory.mktemp("kill"))
    assert start(made, *RUN, "hydra.run.dir=whole").wait(SECONDS) == 0
    return made


def start(workspace: Workspace, *arguments: str) -> subprocess.Popen[bytes]:
    """Starts ``dpft train`` in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(
        [sys.executable, "-m", "dpft", "train", *arguments],
        cwd=workspace.root,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def lines(ledger: Path) -> int:
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def kill_after_a_step(process: subprocess.Popen[bytes], ledger: Path, wait: float) -> bool:
    """Kills a run a moment after its ledger has grown; returns whether it was still alive."""
    before, end = lines(ledger), time.monotonic() + SECONDS
    while lines(ledger) == before and process.poll() is None:
        assert time.monotonic() < end, "the run takes no step"
        time.sleep(0.001)
    time.sleep(wait)
    alive = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait(SECONDS)
    return alive


@pytest.mark.slow
def test_trust_rule_9_a_run_survives_thirty_murders_bit_by_bit(workspace: Workspace) -> None:
    moments, folder = random.Random(7), workspace.root / "killed"
    process = start(workspace, *RUN, "hydra.run.dir=killed")
    killed = 0
    while killed < KILLS:
        if not kill_after_a_step(process, folder / "ledger.jsonl", moments.uniform(0, 0.06)):
            break
        killed += 1
        process = start(workspace, "resume=killed")
    assert process.wait(SECONDS) == 0
    assert killed == KILLS, "every kill must find the run at work"
    for name in ("ledger.jsonl", "privacy.json", "model/model.safetensors"):
        assert (folder / name).read_bytes() == (workspace.root / "whole" / name).read_bytes()
    assert not [path for path in folder.rglob("*") if "partial" in path.name]


@pytest.mark.slow
def test_sigterm_finishes_the_step_and_says_how_to_go_on(workspace: Workspace) -> None:
    folder = workspace.root / "terminated"
    process = subprocess.Popen(
        [sys.executable, "-m", "dpft", "train", *RUN, "hydra.run.dir=terminated"],
        cwd=workspace.root,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    while lines(folder / "ledger.jsonl") < 2 and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=SECONDS)[1].decode()
    assert process.returncode == 143, said
    assert "to go on: dpft train resume=terminated" in said
    assert start(workspace, "resume=terminated").wait(SECONDS) == 0
    whole = (workspace.root / "whole" / "ledger.jsonl").read_bytes()
    assert (folder / "ledger.jsonl").read_bytes() == whole
