"""The command line: the subcommands and their connection to Hydra."""

SHELL_COMPLETION = ("--shell-completion", "-sc")
"""Hydra's flags by which a shell asks for completions; they may stand where a subcommand would."""
