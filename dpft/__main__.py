"""Run dpft from the shell: ``python -m dpft`` and the ``dpft`` script."""

import sys

from dpft.cli.main import main


def run() -> None:
    """Run the command line and leave the process with its exit code."""
    sys.exit(main())


if __name__ == "__main__":
    run()
