"""The control of the planted faults: ordinary use of dpft, which a silent fault does not disturb.

``python -m tests.planted --without-detectors`` runs this file once per fault. It checks nothing
that a fault may change. Without a fault it is an ordinary test.
"""

import importlib
import json
import os
import pkgutil
from pathlib import Path

import pytest

import dpft
from tests.planted.__main__ import STOPPED
from tests.stories.tiny import STEPS, TRAINING, make_workspace

QUIET = ("eval.enabled=false", "train.num_threads=1")


def test_every_module_can_be_imported() -> None:
    for module in pkgutil.walk_packages(dpft.__path__, "dpft."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


@pytest.mark.slow
def test_the_commands_still_work(tmp_path: Path) -> None:
    run = make_workspace(tmp_path).run
    account = run(
        "account", "num_examples=1000", "expected_batch_size=100", "steps=10", "delta=1e-5",
        "noise_multiplier=1", "accountant=rdp", "output=json",
    )  # fmt: skip
    assert account.code == 0, account.err
    assert json.loads(account.out)["epsilon"] > 0
    ordinary = run(
        "train", *TRAINING[:-1], STEPS, *QUIET, "privacy=none", "hydra.run.dir=ordinary"
    )  # fmt: skip
    assert ordinary.code == 0, ordinary.err
    private = run(
        "train", *TRAINING, STEPS, *QUIET, "privacy.noise_multiplier=1", "hydra.run.dir=private"
    )  # fmt: skip
    if os.environ.get(STOPPED):
        assert private.code != 0
        assert "Traceback" not in private.err
        return
    assert private.code == 0, private.err
    lines = (tmp_path / "private" / "ledger.jsonl").read_text().splitlines()
    assert len(lines) == 5, "the plan, three steps and the closing line"
    spent = run("account", "run=private")
    assert spent.code == 0, spent.err
