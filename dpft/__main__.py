"""The command line of dpft: ``python -m dpft`` and the ``dpft`` script."""

import logging
import os
import sys

from dpft.cli.main import main


def run() -> None:
    """Run the command line and exit the process with its exit code.

    If there are several processes, skip the teardown of the interpreter. Threads of torch's process
    groups may still release tensors, which requires the interpreter. They abort the process if the
    interpreter is gone, and the exit code would be 134 instead of the true one.
    """
    code = main()
    if "WORLD_SIZE" not in os.environ:
        sys.exit(code)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
