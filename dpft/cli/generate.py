"""``dpft generate``: writes synthetic records with a run's model, and what they cost."""

from dpft.config.schema import TASK, GenerateConfig
from dpft.runs.configuring import generate_configuration as configuration
from dpft.runs.configuring import with_task_of_run as expand

CONFIG = GenerateConfig
POLYMORPHIC = TASK

__all__ = ["CONFIG", "POLYMORPHIC", "configuration", "expand", "run"]


def run(config: GenerateConfig) -> None:
    """Writes the records, and beside them the statement of what they cost."""
    from dpft.runs.generation import generate

    generate(config)
