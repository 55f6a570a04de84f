"""A run on one file, prepared once for all tests of what is done with it."""

import pytest

from dpft.commands.modality import modality_of
from dpft.commands.task_model import encoding_of, fitted_to, training_head
from dpft.config.schema import TrainCommand, TrainConfig
from dpft.data.encoding import Encoding
from dpft.models.architecture import read_architecture
from tests.config.test_conf import loaded
from tests.stories.tiny import make_workspace


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> TrainCommand:
    """A run on one file whose unit is its owner, half of which is held out."""
    root = tmp_path_factory.mktemp("run")
    make_workspace(root)
    rows = "".join(f"Where is {n}?,In town {n}.,owner {n % 20}\n" for n in range(40))
    (root / "one.csv").write_text("question,answer,owner\n" + rows)
    given = loaded(
        "train",
        [
            "task=custom", f"task.data_dir={root / 'one.csv'}", 'task.prompt="{question}"',
            'task.target="{answer}"', "task.max_length=32", "model=tiny",
            f"model.path={root / 'model'}", "eval.held_out=0.5", "privacy.noise_multiplier=1",
            "privacy.unit=owner", "privacy.records_per_unit=2", 
            "privacy.accountant=rdp", "train.expected_batch_size=2", "train.steps=3",
        ],
    )  # fmt: skip
    assert isinstance(given, TrainCommand)
    return given


@pytest.fixture(scope="session")
def config(command: TrainCommand) -> TrainConfig:
    return command.settings()


@pytest.fixture(scope="session")
def encoding(config: TrainConfig) -> Encoding:
    """How the run's records become rows of its model."""
    architecture = read_architecture(config.model)
    fitted = fitted_to(config, architecture)
    head = training_head(fitted, architecture)
    tokens = fitted.task.special_tokens
    processor = modality_of(fitted.task).processor(fitted.task, architecture, head, tokens=tokens)
    return encoding_of(fitted.task, architecture, head, processor)


@pytest.fixture(scope="module", autouse=True)
def _shared(shared_accounting: None) -> None:
    """Every command shares running accountants."""
