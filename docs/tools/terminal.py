"""Draw the end of `make demo` as a terminal shows it: docs/assets/demo.svg.

Run: python -m docs.tools.terminal. It trains the demo once.
"""

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

from docs.tools.examples import environment

PICTURE = Path(__file__).resolve().parents[1] / "assets" / "demo.svg"
COMMAND = ("train", "experiment=demo")
WIDTH = 100


def demo_ending() -> str:
    """Run `make demo` on a pseudo-terminal and return its summary, with escape sequences."""
    printed = bytearray()
    with tempfile.TemporaryDirectory(prefix="dpft-demo-") as folder:
        outer, inner = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "dpft", *COMMAND],
            cwd=folder, env=environment() | {"TERM": "xterm-256color", "COLUMNS": str(WIDTH)},
            stdin=subprocess.DEVNULL, stdout=inner, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(inner)
        with suppress(OSError):  # Linux reports the end of a pseudo-terminal as an error.
            while block := os.read(outer, 4096):
                printed += block
        os.close(outer)
        if process.wait() != 0:
            raise RuntimeError("the demo failed")
    return printed.decode().replace("\r\n", "\n").strip()


def draw(ending: str) -> str:
    """Return a summary with escape sequences, below its command, as an SVG of a terminal."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    console.print(Text("$ make demo", style="bold"))
    console.print(Text("…", style="dim"))
    console.print(Text.from_ansi(ending))
    drawn = console.export_svg(title="dpft", unique_id="demo")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # they would be fetched


if __name__ == "__main__":
    PICTURE.write_text(draw(demo_ending()))
