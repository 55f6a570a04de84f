import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from dpft.config.account import AccountConfig
from dpft.config.keys import known_keys
from dpft.config.schema import PlanConfig, TrainConfig, check_compile
from dpft.data.batches import TextLayout
from dpft.errors import InputError
from dpft.models.source import ModelConfig
from dpft.runs.training_records import training_layout
from dpft.training.training_config import TrainingConfig

MECHANISM = {"num_examples": 9, "expected_batch_size": 1, "epochs": 1.0}


@pytest.mark.parametrize("name", [*MECHANISM, "eps"])
@pytest.mark.parametrize("value", [0, -1])
def test_account_takes_positive_numbers_only(name: str, value: int) -> None:
    with pytest.raises(InputError, match=f"{name} must be above 0, got {value}"):
        AccountConfig(**{**MECHANISM, "eps": 3.0, name: value})


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


COMPILED = TrainingConfig(compile=True)


def privacy(engine: str) -> SimpleNamespace:
    return SimpleNamespace(clips=SimpleNamespace(engine=engine))


def test_compiling_goes_with_no_loop_and_no_gradient_checkpoints() -> None:
    plain = ModelConfig(name="tiny", embedded=True)
    check_compile(privacy("auto"), plain, COMPILED)
    check_compile(SimpleNamespace(clips=None), plain, COMPILED)
    check_compile(privacy("loop"), plain, TrainingConfig())
    with pytest.raises(InputError, match="another engine than privacy.engine=loop"):
        check_compile(privacy("loop"), plain, COMPILED)
    checkpointed = ModelConfig(name="tiny", embedded=True, gradient_checkpointing=True)
    with pytest.raises(InputError, match="needs model.gradient_checkpointing=false, got true"):
        check_compile(privacy("auto"), checkpointed, COMPILED)


def test_a_private_run_compiles_one_public_length() -> None:
    plain = ModelConfig(name="tiny", embedded=True)
    bucketed = TrainingConfig(compile=True, pad_to_multiple_of=8)
    check_compile(SimpleNamespace(clips=None), plain, bucketed)
    with pytest.raises(InputError, match=r"pads every micro-batch.*pad_to_multiple_of=8; leave it"):
        check_compile(privacy("auto"), plain, bucketed)


def test_the_layout_of_a_private_compiled_run_has_one_length() -> None:
    cpu, task = torch.device("cpu"), SimpleNamespace(longest=100)
    for clips, lengths in ((object(), {100}), (None, {8, 56, 100})):
        config = SimpleNamespace(train=COMPILED, task=task, privacy=SimpleNamespace(clips=clips))
        layout = training_layout(config, TextLayout(), cpu)
        assert {layout.padded_length(longest) for longest in (1, 50, 100)} == lengths
