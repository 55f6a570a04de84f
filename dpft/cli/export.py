"""``dpft export``: writes a run's model as a folder to hand on."""

from dpft.config.schema import ExportConfig

CONFIG = ExportConfig
READS_RECORDS = False

__all__ = ["CONFIG", "READS_RECORDS", "run"]


def run(config: ExportConfig) -> None:
    """Writes the folder."""
    from dpft.runs.opened_run import export

    export(config)
