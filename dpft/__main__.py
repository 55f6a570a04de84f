"""Run dpft from the shell: ``python -m dpft`` and the ``dpft`` script."""

import logging
import os
import sys

from dpft.cli.main import main


def run() -> None:
    """Run the command line and leave the process with its exit code.

    One of several processes leaves without the interpreter's own teardown: threads of torch's
    process groups may still release tensors, for which they need the interpreter, and abort the
    process if it is gone. Its exit code would then be 134 in place of the true one.
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
