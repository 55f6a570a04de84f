"""A run on one file, prepared once for all tests of what is done with it."""

import pytest

from dpft.config.schema import TrainCommand, TrainConfig
from dpft.runs.folder import fresh_secrets
from dpft.runs.prepared_run import Prepared, prepare
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
def prepared(config: TrainConfig) -> Prepared:
    return prepare(config, fresh_secrets(config), None)


@pytest.fixture(scope="module", autouse=True)
def _shared(shared_accounting: None) -> None:
    """Every command shares running accountants."""
