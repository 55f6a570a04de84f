"""The entry point ``dpft SUBCOMMAND …``: it imports nothing heavy."""

import difflib
import os
import sys
from collections.abc import Sequence

from dpft import __version__
from dpft.cli import SHELL_COMPLETION
from dpft.commands.exit_codes import BAD_INPUT, ExitStatus, command_outcome
from dpft.errors import InputError
from dpft.parallel.rank_environment import silent_except_rank_0

SUBCOMMANDS = {
    "train": "fine-tune a model under differential privacy, then evaluate and report",
    "tokenizer": "make a private vocabulary of words, with an epsilon that composes with training",
    "tune": "search for the best settings within one epsilon",
    "eval": "generate from a trained model and score it, or score a file of outputs",
    "generate": "write synthetic records with a trained model, at no further epsilon",
    "synthesize": "make a synthetic table of a private one, and say what it is worth",
    "account": "compute epsilon from noise, noise from epsilon, or what runs have spent",
    "export": "write a run's model to a folder or upload it to the Hugging Face Hub",
    "plan": "say what a training run would cost, without training",
    "audit": "attack a run's model, and set what was found beside what its report promises",
    "report": "make tables and plots of many runs",
    "list": "list tasks, models, methods, recipes or metrics, a line each",
    "doctor": "check whether dpft can train on this machine",
}
"""Name to purpose; ``dpft.cli.commands`` has what each does."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: Arguments after the program's name; None means the process's own.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    outcome = ExitStatus()
    with silent_except_rank_0():
        if not arguments:
            print(usage(), file=sys.stderr)
            return BAD_INPUT
        with command_outcome(outcome):
            outcome.exit_code = dispatch(arguments)
    return outcome.exit_code


def dispatch(arguments: list[str]) -> int:
    """Do what one or more words ask for, and return the exit code."""
    if arguments[0] in ("--help", "-h", "help"):
        print(usage())
        return 0
    if arguments[0] in ("--version", "-V"):
        print(f"dpft {__version__}")
        return 0
    if arguments[0] in SHELL_COMPLETION:
        return complete(arguments)
    return run_subcommand(arguments[0], arguments[1:])


def complete(arguments: Sequence[str]) -> int:
    """Answer a shell that completes a command line, or print what makes it ask.

    Hydra's script asks the program itself, ``dpft``; the subcommand is then a word of the line.

    Args:
        arguments: ``--shell-completion`` and what Hydra knows there, such as ``install=bash``.
    """
    line = os.environ.get("COMP_LINE", "")
    program, *words = line.split(" ")
    if len(words) == 1:
        print("\t".join(f"{name} " for name in SUBCOMMANDS if name.startswith(words[0])))
        return 0
    name = words[0] if words else "train"
    os.environ["COMP_LINE"] = " ".join([program, *words[1:]])
    return run_subcommand(name, arguments)


def usage() -> str:
    """Return the text of ``dpft --help``."""
    width = max(map(len, SUBCOMMANDS))
    commands = [f"  {name:<{width}}  {purpose}" for name, purpose in SUBCOMMANDS.items()]
    return "\n".join(
        [
            "usage: dpft SUBCOMMAND [GROUP=OPTION ...] [KEY=VALUE ...]",
            "",
            "Fine-tune language models under (epsilon, delta)-differential privacy.",
            "",
            *commands,
            "",
            "dpft SUBCOMMAND --help lists its configuration; dpft --version prints the version.",
            "",
            "examples:",
            "  dpft train task=e2e model=gpt2 privacy.eps=3",
            "  dpft eval run=outputs/2026-01-31/12-00-00",
            "  dpft generate run=outputs/2026-01-31/12-00-00 prompts=prompts.jsonl",
            "  dpft account num_examples=42061 expected_batch_size=1024 epochs=10 eps=3",
        ]
    )


def run_subcommand(name: str, arguments: Sequence[str]) -> int:
    """Run a subcommand under Hydra and return its exit code.

    Raises:
        InputError: There is no such subcommand, or it is for one process and there are several.
    """
    if name not in SUBCOMMANDS:
        near = difflib.get_close_matches(name, SUBCOMMANDS, n=1)
        raise InputError(
            f"Unknown subcommand {name!r}. Choose one of {', '.join(SUBCOMMANDS)}.",
            key=None,
            value=name,
            hint=f"dpft {near[0]}" if near else None,
        )
    from dpft.cli.hydra_app import run_hydra
    from dpft.parallel.parallel_config import refuse_several

    refuse_several(name)
    return run_hydra(name, arguments)
