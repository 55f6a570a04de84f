"""A subcommand of the tests' own, ``dpft fake``, with configurations of its own."""

import json
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import pytest
from pydantic import Field

from dpft.cli import commands, hydra_app, main
from dpft.cli.commands import composed_job, run_folder
from dpft.config import hydra_compose as composing
from dpft.config.load import config_directory
from dpft.config.section import ChosenBy, Section, by_name
from dpft.errors import StateError
from dpft.run_folder import LEDGER

PRIMARY = """
defaults:
  - method: full
  - hydra: {hydra}
  - _self_
privacy:
  eps: ???
  delta: null
steps: 2
outcome: done
"""


class Method(Section):
    name: str


class LoRA(Method):
    rank: int


class Privacy(Section):
    eps: Annotated[float, Field(gt=0, examples=[3.0])]
    delta: float | None = None


def method_class(name: str) -> type[Method]:
    return {"full": Method, "lora": LoRA, "mine": Method}[name]


class Fake(Section):
    method: Annotated[Method, ChosenBy(by_name(method_class))]
    privacy: Privacy
    steps: int
    outcome: str = "done"


def run_fake(config: Fake) -> None:
    outcomes: dict[str, Callable[[], None]] = {
        "done": lambda: print(json.dumps({"eps": config.privacy.eps, "name": config.method.name})),
        "crash": lambda: 1 / 0,
        "corrupt": lambda: _raise(StateError("the ledger is broken.")),
        "interrupt": lambda: _raise(KeyboardInterrupt()),
        "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM) or time.sleep(5),
        "log": lambda: logging.getLogger("dpft.fake").info("a public line"),
        "leave": lambda: os._exit(1),
        "spend": lambda: (run_folder() / LEDGER).touch(),
        "record": lambda: composed_job().write_record(run_folder()),
    }
    outcomes[config.outcome]()


def _raise(error: BaseException) -> None:
    raise error


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """A subcommand ``fake`` with configurations of its own, in an empty working directory."""
    conf = tmp_path / "conf"
    (conf / "method").mkdir(parents=True)
    shutil.copytree(config_directory() / "hydra", conf / "hydra")
    (conf / "fake.yaml").write_text(PRIMARY.format(hydra="run_folder"))
    (conf / "method" / "full.yaml").write_text("name: full\n")
    (conf / "method" / "lora.yaml").write_text("name: lora\nrank: 4\n")
    own = SimpleNamespace(config=Fake, run=run_fake)
    monkeypatch.setitem(commands._SUBCOMMANDS, "fake", lambda: commands.Subcommand(**vars(own)))
    monkeypatch.setitem(main.SUBCOMMANDS, "fake", "stand in for a subcommand")
    for user in (hydra_app, commands, composing):
        monkeypatch.setattr(user, "config_directory", lambda: conf)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return own


@pytest.fixture(scope="module", autouse=True)
def _shared(shared_accounting: None) -> None:
    """Every command shares running accountants."""


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    """Keep the handlers that Hydra's logging configuration installs out of other tests."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = before, level
