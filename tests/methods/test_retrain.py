import pytest
from hydra import compose, initialize_config_dir

from dpft.config.load import config_directory
from dpft.methods.full import Full
from dpft.methods.retrain import Retrain
from tests.methods.shapes import fresh, recipe


def test_it_is_full_fine_tuning_that_needs_a_random_start() -> None:
    assert issubclass(Retrain, Full)
    assert Retrain.required_init == "random" and Full.required_init is None
    assert all(p.requires_grad for p in recipe("retrain").prepare(fresh("gpt2")).parameters())


@pytest.mark.slow
def test_choosing_it_chooses_a_random_initialization() -> None:
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        config = compose("train", overrides=["task=e2e", "method=retrain", "model=gpt2"])
    assert (config.method.name, config.model.init) == ("retrain", "random")
