"""Draws the end of `make demo` as a terminal would show it: docs/assets/demo.svg.

Run: python -m docs.tools.terminal. The lines are those of a real run, which this program starts.
"""

import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from docs.tools.examples import environment

PICTURE = Path(__file__).resolve().parents[1] / "assets" / "demo.svg"
COMMAND = ("train", "experiment=demo")
SHOWN = 9
WIDTH = 118


def demo_lines() -> list[str]:
    """Return what `make demo` prints at its end."""
    with tempfile.TemporaryDirectory(prefix="dpft-demo-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "dpft", *COMMAND],
            cwd=folder, env=environment(), capture_output=True, text=True, check=True,
        )  # fmt: skip
    return (done.stderr + done.stdout).strip().splitlines()[-SHOWN:]


def draw(lines: Sequence[str]) -> str:
    """Return the lines below their command as an SVG of a terminal, wrapped at its width."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    console.print(Text("$ make demo", style="bold"))
    console.print(Text("…", style="dim"))
    for line in lines:
        style = "green" if "epsilon =" in line else ""
        console.print(Text(line, style=style))
    drawn = console.export_svg(title="dpft", unique_id="demo")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # they would be fetched


if __name__ == "__main__":
    PICTURE.write_text(draw(demo_lines()))
