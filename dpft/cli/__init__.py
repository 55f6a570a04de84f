"""The command line: the subcommands and their connection to Hydra."""

SHELL_COMPLETION = ("--shell-completion", "-sc")
"""Flags of Hydra that a shell passes to request completions. They may replace the subcommand."""
