"""What train.compile does not go with."""

from types import SimpleNamespace

import pytest

from dpft.config.schema import check_compile
from dpft.errors import InputError
from dpft.models.source import ModelConfig
from dpft.training.training_config import TrainingConfig

COMPILED = TrainingConfig(compile=True)


def privacy(engine: str) -> SimpleNamespace:
    return SimpleNamespace(guarantee=SimpleNamespace(engine=engine))


def test_compiling_goes_with_no_loop_and_no_gradient_checkpoints() -> None:
    plain = ModelConfig(name="tiny", embedded=True)
    check_compile(privacy("auto"), plain, COMPILED)
    check_compile(SimpleNamespace(guarantee=None), plain, COMPILED)
    check_compile(privacy("loop"), plain, TrainingConfig())
    with pytest.raises(InputError, match="another engine than privacy.engine=loop"):
        check_compile(privacy("loop"), plain, COMPILED)
    checkpointed = ModelConfig(name="tiny", embedded=True, gradient_checkpointing=True)
    with pytest.raises(InputError, match="needs model.gradient_checkpointing=false, got true"):
        check_compile(privacy("auto"), checkpointed, COMPILED)
