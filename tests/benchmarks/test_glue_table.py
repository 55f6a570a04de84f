import argparse
from pathlib import Path

import pytest

from benchmarks import glue_table
from tests.config.test_conf import loaded

OPTIONS = argparse.Namespace(model="M", data="D", runs=Path("R"))


@pytest.mark.slow
@pytest.mark.parametrize("method", glue_table.LEARNING_RATES)
@pytest.mark.parametrize("privacy", glue_table.PRIVACY)
def test_every_run_composes_with_its_own_learning_rate(method: str, privacy: str) -> None:
    config = loaded("train", glue_table.overrides(method, privacy, OPTIONS))
    assert config.method.name == method
    assert config.train.learning_rate == float(glue_table.LEARNING_RATES[method])
    assert (config.task.objective, config.model.pooling) == ("cls", "mean")
    assert config.privacy.num_examples == 67349
