import subprocess
import sys

import pytest

from dpft.config.doctor import DoctorConfig, MetricModels
from dpft.config.load import from_values
from dpft.errors import InputError


def test_nothing_need_be_given() -> None:
    assert from_values({}, DoctorConfig) == DoctorConfig(metrics=MetricModels(), output="table")


def test_the_folders_of_the_metrics_models_are_keys_of_their_own() -> None:
    config = from_values({"metrics": {"bleurt_model": "models/bleurt"}}, DoctorConfig)
    assert (config.metrics.bertscore_model, config.metrics.bleurt_model) == (None, "models/bleurt")


def test_an_output_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="output must be one of table, json, got 'xml'"):
        DoctorConfig(output="xml")


def test_the_doctor_is_configured_without_torch() -> None:
    """It examines the machines where torch is what does not work."""
    program = "import sys, dpft.config.doctor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
