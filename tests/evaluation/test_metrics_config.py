import pytest

from dpft.errors import InputError
from dpft.evaluation.metrics_config import MetricsConfig


def test_no_model_is_the_default():
    assert MetricsConfig() == MetricsConfig(bertscore_model=None, bleurt_model=None)


def test_no_layers_are_refused():
    with pytest.raises(InputError, match="metrics.bertscore_layers must be at least 1.*got 0"):
        MetricsConfig(bertscore_layers=0)
