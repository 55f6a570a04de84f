"""The command line: a thin file for each subcommand, and Hydra's adapter."""

SHELL_COMPLETION = ("--shell-completion", "-sc")
"""Hydra's flags by which a shell asks for completions; they may stand where a subcommand would."""
