"""What the site has from the code and from files outside docs/, made when it is built."""

import re
from pathlib import Path

from docs.tools import reference
from docs.tools.results_figures import figures

ROOT = Path(__file__).resolve().parents[2]
COPIES = {
    "benchmarks/results.md": "results/measurements.md",
    "benchmarks/scaling.md": "results/scaling.md",
    "CHANGELOG.md": "changelog.md",
}


def files() -> dict[str, str]:
    """Returns every page and figure by its path below docs/."""
    return (
        {to: _copied(ROOT / source) for source, to in COPIES.items()}
        | figures()
        | reference.pages()
    )


def _copied(path: Path) -> str:
    """Returns a file of the repository; links to others of its files become their names."""
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)[^)]+\)", r"\1", path.read_text())
