"""The pages that are made from the code and from files outside docs/, when the site is built."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIES = {
    "benchmarks/results.md": "results/measurements.md",
    "benchmarks/scaling.md": "results/scaling.md",
    "CHANGELOG.md": "changelog.md",
}


def pages() -> dict[str, str]:
    """Returns every page by its path below docs/."""
    return {to: _copied(ROOT / source) for source, to in COPIES.items()}


def _copied(path: Path) -> str:
    """Returns a file of the repository; links to others of its files become their names."""
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)[^)]+\)", r"\1", path.read_text())
