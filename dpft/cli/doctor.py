"""``dpft doctor``: what is there, what is missing, and what the missing costs.

Exits with 0 where dpft can train, and with 1 where something essential is missing:
``dpft.reports.doctor`` says what is.
"""

from dataclasses import asdict

from dpft.config.account import DoctorConfig
from dpft.errors import RunError
from dpft.records.form import json_text
from dpft.records.plans import Check
from dpft.reports.doctor import (
    can_train,
    compiler_check,
    device_check,
    disk_checks,
    doctor_parts,
    doctor_record,
    embedded_model_check,
    hub_check,
    memory_check,
    metric_checks,
    outputs_check,
    package_checks,
    tracker_checks,
)
from dpft.reports.terminal import show

CONFIG = DoctorConfig
READS_RECORDS = False


def run(config: DoctorConfig) -> None:
    """Prints every check, as a table or as one JSON object.

    Raises:
        RunError: Something essential is missing.
    """
    checks = examine(config)
    if config.output == "json":
        print(json_text(doctor_record(checks)))
    else:
        show(doctor_parts(checks))
    if not can_train(checks):
        raise RunError("dpft cannot train here; what is missing stands above.")


def examine(config: DoctorConfig) -> list[Check]:
    """Returns all checks, what is essential first."""
    models = {f"metrics.{name}": folder for name, folder in asdict(config.metrics).items()}
    return [
        *package_checks(),
        device_check(),
        compiler_check(),
        outputs_check(),
        memory_check(),
        *disk_checks(),
        embedded_model_check(),
        hub_check(),
        *metric_checks(models),
        *tracker_checks(),
    ]
