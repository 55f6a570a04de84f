import subprocess
import sys

import pytest

from dpft.config.account import AccountConfig
from dpft.config.keys import known_keys
from dpft.config.schema import PlanConfig, TrainConfig

MECHANISM = {"num_examples": 9, "expected_batch_size": 1, "epochs": 1.0}


@pytest.mark.parametrize("name", [*MECHANISM, "eps"])
@pytest.mark.parametrize("value", [0, -1])
def test_account_takes_positive_numbers_only(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        AccountConfig(**{**MECHANISM, "eps": 3.0, name: value})


@pytest.mark.slow
def test_no_section_needs_a_library_that_takes_seconds_to_import() -> None:
    """A table of epsilons does not wait for torch, and the doctor describes a torch that fails."""
    program = """
import sys
from dpft.cli.commands import subcommand
from dpft.config.load import config_directory
from dpft.config.schema import METHODS, TRACKING
from dpft.training.optimizers import OPTIMIZERS
from dpft.tasks.base import TASKS

for name in ("account", "doctor", "eval", "export", "generate", "plan", "train", "tune"):
    subcommand(name)
for group, choose in (
    ("method", METHODS.named), ("optimizer", OPTIMIZERS.named),
    ("task", TASKS.named), ("tracking", TRACKING.named),
):
    for option in (config_directory() / group).glob("*.yaml"):
        choose(option.stem)
heavy = {"torch", "transformers", "datasets", "peft", "scipy", "matplotlib"}
print(*sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


def test_plan_takes_all_that_train_takes() -> None:
    assert set(known_keys(TrainConfig)) < set(known_keys(PlanConfig))
