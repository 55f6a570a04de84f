"""``dpft synthesize``: a private table in, a synthetic table out, and what it is worth."""

from pathlib import Path

from dpft.cli.subcommand import run_folder
from dpft.config.synthesize import POLYMORPHIC, SynthesizeConfig, configuration, expand

CONFIG = SynthesizeConfig

__all__ = ["CONFIG", "POLYMORPHIC", "configuration", "expand", "run"]


def run(config: SynthesizeConfig) -> None:
    """Makes the table in the folder that Hydra made, or goes on in the one ``resume`` names."""
    from dpft.records.form import json_text
    from dpft.reports.terminal import show
    from dpft.synthesis.command import synthesize

    found = synthesize(config, run_folder() if config.resume is None else Path(config.resume))
    if found is None:
        return
    if config.output == "json":
        print(json_text(found.record))
    else:
        show(found.parts)
