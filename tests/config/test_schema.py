import subprocess
import sys

import pytest

from dpft.config.account import AccountConfig, check_exactly_one, check_output, check_positive
from dpft.config.keys import known_keys
from dpft.config.schema import EvaluateConfig, PlanConfig, TrainConfig
from dpft.errors import InputError
from dpft.evaluation.eval_config import EvalConfig

MECHANISM = {"num_examples": 9, "expected_batch_size": 1, "epochs": 1.0}


@pytest.mark.parametrize("given", [{}, {"eps": 1.0, "noise_multiplier": 1.0}])
def test_account_takes_exactly_one_of_epsilon_and_noise(given: dict[str, float]) -> None:
    with pytest.raises(InputError, match="exactly one of eps and noise_multiplier"):
        AccountConfig(**MECHANISM, **given)


@pytest.mark.parametrize("name", [*MECHANISM, "eps"])
@pytest.mark.parametrize("value", [0, -1])
def test_account_takes_positive_numbers_only(name: str, value: int) -> None:
    with pytest.raises(InputError, match=f"{name} must be above 0, got {value}"):
        AccountConfig(**{**MECHANISM, "eps": 3.0, name: value})


def test_no_guarantee_rests_on_gdp() -> None:
    with pytest.raises(InputError, match="accountant must be one of prv, pld, rdp, got 'gdp'"):
        AccountConfig(**MECHANISM, eps=3.0, accountant="gdp")


def test_a_run_and_a_file_of_predictions_are_not_scored_at_once() -> None:
    with pytest.raises(InputError, match="at most one of run and predictions"):
        EvaluateConfig(
            task=None, model=None, eval=EvalConfig(), decode=None, run="a", predictions="b"
        )


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


def test_the_checks_pass_what_is_allowed() -> None:
    check_exactly_one(a=None, b=1)
    check_positive(a=None, b=0.1)
    check_output("json")
