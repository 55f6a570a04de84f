"""``dpft tokenizer``: a vocabulary of a task's training records, and what it costs."""

from pathlib import Path

from dpft.cli.subcommand import run_folder, write_hydra_record
from dpft.config.schema import TASK, TokenizerCommand
from dpft.runs.configuring import tokenizer_configuration as configuration

CONFIG = TokenizerCommand
POLYMORPHIC = TASK

__all__ = ["CONFIG", "POLYMORPHIC", "configuration", "expand", "run"]
WITHOUT = "privacy=none"


def expand(overrides: list[str]) -> list[str]:
    """Returns the words with ``privacy=none``, as other commands have it, as a key of this one."""
    return ["privacy.name=none" if word == WITHOUT else word for word in overrides]


def run(command: TokenizerCommand) -> None:
    """Makes the vocabulary in the folder that Hydra made, or in the one that ``resume`` names."""
    from dpft.reports.terminal import show_answer
    from dpft.runs.tokenizing import make_tokenizer

    folder = run_folder() if command.resume is None else Path(command.resume)
    show_answer(make_tokenizer(command, folder, write_request=write_hydra_record), command.output)
