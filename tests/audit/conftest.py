"""Finished runs of seconds, which the audits of texts read."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import sharing
from tests.stories.tiny import Workspace, make_workspace

RECORDS = 60
TRAINED = ("model=tiny", "model.path=model", "train.expected_batch_size=8", "train.steps=3")
PRIVATE = ("privacy.noise_multiplier=1", "privacy.accountant=rdp")


def moods() -> list[dict[str, str]]:
    """Rows of a mood, its sentence and an owner, whose words go with the mood."""
    order = random.Random(0)
    words = {"good": "great warm bright kind".split(), "bad": "dull cold grim mean".split()}  # noqa: SIM905
    rows = []
    for number in range(RECORDS):
        mood = order.choice([*words])
        text = " ".join(order.choice(words[mood]) for _ in range(6))
        rows.append({"mood": mood, "text": f"day {number} {text}", "owner": f"o{number % 20}"})
    return rows


def train(workspace: Workspace, to: str, *words: str) -> None:
    workspace.finished(*TRAINED, "eval.enabled=false", *words, f"hydra.run.dir={to}")


@pytest.fixture(scope="session")
def trained_texts(
    tmp_path_factory: pytest.TempPathFactory, lasting_answers: dict[Any, Any]
) -> Workspace:
    """Run ``pairs`` (splits of their own), ``held`` (one file) and ``owners`` (by unit)."""
    workspace = make_workspace(tmp_path_factory.mktemp("texts"))
    lines = "".join(json.dumps(row) + "\n" for row in moods())
    (workspace.root / "moods.jsonl").write_text(lines)
    with sharing(lasting_answers):
        _train_all(workspace)
    return workspace


def _train_all(workspace: Workspace) -> None:
    train(workspace, "pairs", "task=e2e", "task.data_dir=data", *PRIVATE)
    custom = ("task=custom", "task.data_dir=moods.jsonl", 'task.prompt="{mood}: "',
              'task.target="{text}"', "task.learn_prompt=true", "task.max_length=48")  # fmt: skip
    train(workspace, "held", *custom, "eval.held_out=0.3", *PRIVATE)
    train(
        workspace, "owners", *custom, "eval.held_out=0.3", *PRIVATE,
        "privacy.unit=owner", "privacy.records_per_unit=2",
    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _shared(shared_accounting: None) -> None:
    """Every command shares running accountants."""


@pytest.fixture
def texts_runs(
    trained_texts: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Workspace:
    """A copy of the runs and their data, the working folder."""
    root = tmp_path / "workspace"
    shutil.copytree(trained_texts.root, root)
    monkeypatch.chdir(root)
    return Workspace(root)
