"""The command line: the subcommands and their connection to Hydra."""

SHELL_COMPLETION = ("--shell-completion", "-sc")
"""Hydra's flags with which a shell requests completions. They may replace the subcommand."""
