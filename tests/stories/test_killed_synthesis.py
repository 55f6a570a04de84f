"""A synthesis that is killed with SIGKILL between any two writes: its noise is drawn once."""

import hashlib
import os
import signal
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import yaml

import dpft
from dpft.cli.main import main
from dpft.privacy.ledger import read_ledger
from dpft.privacy.mechanisms import histogram
from dpft.privacy.mechanisms.histogram import GaussianCounts
from dpft.synthesis import plan
from tests.stories import murder
from tests.synthesis.tables import SCHEMA, visitors, write_csv

EPS, DELTA = 8.0, 1e-3
BEGIN = (
    "synthesize", "data=notes.csv", "condition=[city]", f"privacy.eps={EPS}", "privacy.share=0.5",
    "model=tiny", "train.steps=2", "train.expected_batch_size=8", "train.num_threads=1",
    "train.checkpoint_every=1", "eval.held_out=0.3", "num=4",
    "hydra.run.dir=run",
)  # fmt: skip
RESUME = ("synthesize", "resume=run")
WRITES = ("fsync", "replace", "rename")
KILLS = (8, 30, 30, 28)
"""Before which write each process of a chain dies: 93 of them come after the histogram's."""
DRAWS = "draws"
"""File with a line for each time that noise of a histogram was drawn."""


def _counting(
    root: Path, arguments: tuple[str, ...], kill_at: int, until: str | None, noise: float
) -> None:
    """Run a command that kills itself before a write, counted from 1; 0: before none.

    Args:
        root: Where it runs.
        arguments: Of the command.
        kill_at: The number of the write.
        until: ``training``: it also dies where the training would begin.
        noise: Of the training, as it is calibrated; each process would find the same again.
    """
    writes = 0

    def armed(name: str) -> None:
        whole = getattr(os, name)

        def write(*args: object, **kwargs: object) -> object:
            nonlocal writes
            writes += 1
            if writes == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(*args, **kwargs)

        setattr(os, name, write)

    drawn = histogram.noisy_counts

    def noisy_counts(*args: object) -> object:
        with (root / DRAWS).open("a") as file:
            file.write("drawn\n")
        return drawn(*args)  # type: ignore[arg-type]

    from dpft.synthesis import command

    command.noisy_counts = noisy_counts  # type: ignore[assignment]
    plan.training_noise = lambda *_, **__: noise  # type: ignore[assignment]
    if until == "training":
        command.train = murder._kill
    os.chdir(root)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    for name in WRITES:
        armed(name)
    raise SystemExit(main(list(arguments)))


@cache
def noise() -> float:
    """Return the noise of the training: what the histogram leaves of epsilon."""
    counts = GaussianCounts(
        noise_std=histogram.noise_std_for_counts(eps=EPS / 2, l2_cap=1, delta=DELTA), l2_cap=1,
        cells=3, delta=DELTA,
    )  # fmt: skip
    return plan.training_noise(counts, eps=EPS, delta=DELTA, sample_rate=8 / 60, steps=2)


def go(
    root: Path, arguments: tuple[str, ...], kill_at: int = 0, until: str | None = None
) -> int | None:
    """Return the exit code of a command; minus nine: it was killed."""
    given = (root, arguments, kill_at, until, noise())
    process = murder.forking().Process(target=_counting, args=given)
    process.start()
    process.join(murder.SECONDS)
    return process.exitcode


def workspace(root: Path) -> Path:
    root.mkdir(exist_ok=True)
    (root / "notes.schema.yaml").write_text(yaml.safe_dump(SCHEMA, sort_keys=False))
    write_csv(root / "notes.csv", visitors())
    return root


def draws(root: Path) -> int:
    path = root / DRAWS
    return len(path.read_text().splitlines()) if path.exists() else 0


def spent(root: Path) -> float:
    """Return the epsilon of a synthesis's folder; 0 where nothing was spent."""
    if not (root / "run/ledger.jsonl").exists():
        return 0.0
    if read_ledger(root / "run/ledger.jsonl").counted_steps == 0:
        return 0.0
    return dpft.account(run=root / "run").epsilon


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_histogram_killed_before_any_of_its_writes_is_drawn_at_most_once(tmp_path: Path) -> None:
    """Once the ledger has its line, noise was drawn or is never drawn; its epsilon is as planned.

    What comes of going on, by the file that a kill left: nothing yet is begun anew, a line without
    counts is refused, counts are kept.
    """
    found = Counter[str]()
    for write in range(7, 40):
        root = workspace(tmp_path / str(write))
        assert go(root, BEGIN, write, "training") == -signal.SIGKILL, (root / "log").read_text()
        ledger, counts = root / "run/ledger.jsonl", root / "run/counts.json"
        lines = read_ledger(ledger).steps if ledger.exists() else 0
        assert draws(root) <= lines, "a line is on disk before its noise is drawn"
        assert spent(root) <= EPS / 2 + 1e-9
        kept = counts.read_bytes() if counts.exists() else None
        begun = (root / "run/synthesis.yaml").exists()
        code = go(root, RESUME if begun else BEGIN, 0, "training")
        said = (root / "log").read_text()
        if lines and kept is None:
            assert code == 3 and "cannot draw its noise again" in said, said
            found["refused"] += 1
        else:
            assert code == -signal.SIGKILL, said
            assert kept is None or counts.read_bytes() == kept
            found["kept" if kept else "anew"] += 1
        assert draws(root) <= 1
        assert spent(root) <= EPS / 2 + 1e-9
        if kept is not None and read_ledger(ledger).closed and "closed" in found:
            break
        if kept is not None and read_ledger(ledger).closed:
            found["closed"] += 1
    assert found["anew"] >= 4 and found["refused"] >= 2 and found["kept"] >= 2, found
    assert found["closed"], "the last kill came after the histogram's last write"


@pytest.mark.slow
def test_a_synthesis_killed_again_and_again_keeps_its_counts_and_its_epsilon(
    tmp_path: Path,
) -> None:
    root, places = workspace(tmp_path / "chain"), Counter[str]()
    assert go(root, BEGIN, 0, "training") == -signal.SIGKILL, (root / "log").read_text()
    counts = hashlib.sha256((root / "run/counts.json").read_bytes()).hexdigest()
    for write in KILLS:
        assert go(root, RESUME, write) == -signal.SIGKILL, (root / "log").read_text()
        left = {"rows": "report.md", "model": "model", "steps": "private/checkpoints"}
        there = [name for name, file in left.items() if (root / "run/training" / file).exists()]
        places[(there or ["before"])[0]] += 1
        assert 0 < spent(root) <= EPS
    assert go(root, RESUME) == 0, (root / "log").read_text()
    assert hashlib.sha256((root / "run/counts.json").read_bytes()).hexdigest() == counts
    assert draws(root) == 1
    assert EPS - 0.02 <= spent(root) <= EPS
    assert not list((root / "run").rglob("*.partial")) and not (root / "run/blocks").exists()
    assert set(places) == {"before", "steps", "model", "rows"}, places
