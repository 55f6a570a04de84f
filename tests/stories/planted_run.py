"""The story of one private run on planted records: it crashes, is refused, goes on and is used.

Told in this process in seconds, or in processes with every library's folders their own.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dpft.privacy.accounting import accountants, gdp, rdp
from dpft.privacy.accounting.mechanism import Epsilon
from dpft.training import loop
from tests.stories.observed import open_to_others, quoting_error
from tests.stories.planted import TRAINING, make_planted
from tests.stories.tiny import Workspace, umask_zero

RUN = ("train", *TRAINING, "train.steps=3", "hydra.run.dir=run")
REFUSED = ("resume=run", "train.expected_batch_size=4")
HOMES = (
    "HOME", "HF_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR", "TORCH_HOME",
    "DPFT_CACHE", "TMPDIR",
)  # fmt: skip
"""Environment variables that say where a library may write."""


@dataclass(kw_only=True)
class Story:
    """What became of the run; ``outside`` is where nothing private may be."""

    workspace: Workspace
    outside: Path
    said: dict[str, bytes] = field(default_factory=dict)
    """Standard output and error of each command."""
    codes: dict[str, int] = field(default_factory=dict)
    secrets: str = ""
    """Generator states of the crashed run, before they are deleted."""
    faults: list[str] = field(default_factory=list)
    """What was wrong at any moment with modes, or in the temporary folder."""

    @property
    def root(self) -> Path:
        return self.workspace.root

    @property
    def folder(self) -> Path:
        return self.root / "run"

    def after_crash(self) -> None:
        """Note what is there only while the run is broken."""
        (states,) = self.folder.glob("private/checkpoints/*/generators.json")
        self.secrets = states.read_text()
        self.faults += [f"{path} is {mode}" for path, mode in open_to_others(self.folder).items()]

    def change_records(self) -> str:
        """Swap two rows; return the file as it was."""
        path = self.root / "qa" / "train.csv"
        whole = path.read_text(encoding="utf-8")
        header, first, second, rest = whole.split("\n", 3)
        path.write_text("\n".join([header, second, first, rest]), encoding="utf-8", newline="")
        return whole


def told_here(root: Path) -> Story:
    """Return the short story, in this process."""
    (root / "tmp").mkdir()
    story = Story(workspace=make_planted(root), outside=root / "tmp")
    with umask_zero(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(story.outside))
        patch.setattr(accountants, "_answer", _by_a_formula)

        def run(name: str, *arguments: str) -> None:
            outcome = story.workspace.run(*arguments)
            story.said[name] = (outcome.out + outcome.err).encode()
            story.codes[name] = outcome.code

        with patch.context() as crash:
            crash.setattr(loop, "check_weights", _breaks_after_a_step)
            run("crash", *RUN)
        story.after_crash()
        tell_the_end(story, run)
    return story


def told_in_processes(root: Path) -> Story:
    """Return the whole story, each command in a watched process of its own."""
    story = Story(workspace=make_planted(root), outside=root / "outside")
    environment = {name: str(story.outside / name.lower()) for name in HOMES}
    for place in environment.values():
        Path(place).mkdir(parents=True)
    environment |= {
        name: os.environ[name]
        for name in ("PATH", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
    }
    environment |= {"OMP_NUM_THREADS": "1", "HYDRA_FULL_ERROR": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])

    command = [sys.executable, "-m", "tests.stories.observed"]
    with subprocess.Popen(
        command, cwd=root, env=environment, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as forking:  # fmt: skip
        assert forking.stdin is not None and forking.stdout is not None

        def run(name: str, *arguments: str) -> None:
            print(json.dumps([name, *arguments]), file=forking.stdin, flush=True)
            story.codes[name] = int(forking.stdout.readline())
            story.said[name] = (root / f"{name}.said").read_bytes()
            assert (root / f"{name}.events").exists(), story.said[name]
            story.faults += (root / f"{name}.faults").read_text().splitlines()

        run("crash", "--crash", *RUN)
        story.after_crash()
        tell_the_end(story, run)
        run("eval", "eval", "run=run", "output=json")
        run("generate", "generate", "run=run", "prompts=prompts.jsonl", "decode.max_new_tokens=4")
        run("report", "report", "run", "to=html", "file=compared.html")
        run("account", "account", "run=run")
        run("plan", "plan", *TRAINING, "train.steps=3")
        run("doctor", "doctor")
        forking.stdin.close()
    return story


def tell_the_end(story: Story, run: Any) -> None:
    """A crashed run is refused for its settings and its records, and then goes on."""
    run("refused settings", "train", *REFUSED)
    whole = story.change_records()
    run("refused records", "train", "resume=run")
    (story.root / "qa" / "train.csv").write_text(whole, encoding="utf-8", newline="")
    run("resume", "train", "resume=run")
    run("export", "export", "run=run", "license=mit", "dry_run=true")


def _by_a_formula(name: str, mechanism: Any, _: object) -> Epsilon | str:
    """Answer for rdp and gdp alone: the others take longer than the whole run."""
    if name not in ("rdp", "gdp"):
        return "It is not asked by this test."
    return {"rdp": rdp, "gdp": gdp}[name].epsilon(mechanism)


def _breaks_after_a_step(*_: Any) -> None:
    raise quoting_error()
