"""What the site has from the code and from files outside docs/, made when it is built."""

import re
from pathlib import Path

from docs.tools import reference
from docs.tools.notebooks import NOTEBOOKS, notebook
from docs.tools.results_figures import figures

MEASUREMENTS = "results/measurements.md"
ROOT = Path(__file__).resolve().parents[2]
COPIES = {
    "benchmarks/results.md": MEASUREMENTS,
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}


def files() -> dict[str, str]:
    """Returns every page and figure by its path below docs/."""
    copies = {to: _copied(ROOT / source) for source, to in COPIES.items()}
    measured = copies[MEASUREMENTS]
    notebooks = {to: notebook((ROOT / "docs" / of).read_text()) for to, of in NOTEBOOKS.items()}
    return (
        copies
        | notebooks
        | {MEASUREMENTS: with_contents("Every measured table", measured)}
        | figures()
        | reference.pages()
    )


def with_contents(title: str, text: str) -> str:
    """Returns a page of several tables under one title, with a list of links to them above."""
    headings = re.findall(r"(?m)^# (.+)$", text)
    links = "\n".join(f"- [{heading}](#{anchor(heading)})" for heading in headings)
    # A heading below a table's own becomes one lower, too: a page has one title.
    lower = re.sub(r"(?m)^#(#* .+)$", r"##\1", text)
    named = re.sub(r"(?m)^## (.+)$", lambda found: f"{found[0]} {{: #{anchor(found[1])} }}", lower)
    return f"# {title}\n\n{links}\n\n{named}"


def anchor(heading: str) -> str:
    """Returns a heading as an address within its page: words in lower case, joined by hyphens."""
    return "-".join(re.findall(r"\w+", heading.lower()))


def _copied(path: Path) -> str:
    """Returns a file of the repository; links to others of its files become their names."""
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)[^)]+\)", r"\1", path.read_text())
