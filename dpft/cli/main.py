"""Entry point ``dpft SUBCOMMAND …``, which imports nothing slow."""

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
    "tokenizer": "learn a vocabulary privately, with an epsilon that composes with training",
    "tune": "search for the best hyperparameters within one epsilon",
    "eval": "score a trained model, or a file of outputs",
    "generate": "write synthetic records with a trained model, at no additional privacy cost",
    "synthesize": "make a synthetic copy of a private table, and measure its quality",
    "account": "compute epsilon from noise, noise from epsilon, or what runs have spent",
    "export": "write a run's model to a folder, or upload it to the Hugging Face Hub",
    "plan": "estimate noise, time and memory of a training run, without training",
    "audit": "attack a trained model, and compare the result with the reported epsilon",
    "report": "compare runs in tables and plots",
    "list": "list tasks, models, methods, recipes or metrics",
    "doctor": "check whether dpft can train on this machine",
}
"""Name and purpose of each subcommand; ``dpft.cli.commands`` defines the work of each
subcommand."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: The arguments after the name of the program; None uses the arguments of the process.
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
    """Run the subcommand or the flag in the first argument, and return the exit code."""
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
    """Print completions for a command line, or the script that enables them in a shell.

    Hydra's script calls ``dpft`` itself, so the subcommand is an argument in the line to complete.

    Args:
        arguments: ``--shell-completion`` and a Hydra command for it, such as ``install=bash``.
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
        InputError: The subcommand does not exist, or was started in several processes but supports
            only one.
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
