"""What the site has from the code and from files outside docs/, made when it is built."""

import hashlib
import json
import re
from pathlib import Path

from docs.tools import reference
from docs.tools.pages import File, parts_of, site_prose
from docs.tools.results_figures import figures

NOTEBOOKS = {"tutorials/python.md": "notebooks/python.ipynb"}
"""Tutorials in Python, and the notebooks made of them."""
MEASUREMENTS = "results/measurements.md"
ROOT = Path(__file__).resolve().parents[2]
COPIES = {
    "benchmarks/results.md": MEASUREMENTS,
    "benchmarks/scaling.md": "results/scaling.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}


def files() -> dict[str, str]:
    """Returns every page and figure by its path below docs/."""
    copies = {to: _copied(ROOT / source) for source, to in COPIES.items()}
    measured = copies[MEASUREMENTS]
    notebooks = {to: notebook((ROOT / "docs" / of).read_text()) for of, to in NOTEBOOKS.items()}
    return (
        copies
        | notebooks
        | {MEASUREMENTS: with_contents("Every measured table", measured)}
        | figures()
        | reference.pages()
    )


def notebook(page: str) -> str:
    """Returns a page as a Jupyter notebook: files and commands as cells, and its prose between.

    A cell of commands is what the page's copy button takes, for ``%%bash``.
    """
    cells: list[dict[str, object]] = []
    end = 0
    for part in parts_of(page):
        prose = site_prose(page[end : part.span[0]])
        cells += [_cell("markdown", prose)] if prose else []
        if isinstance(part, File):
            cells.append(_cell("code", f"%%writefile {part.name}\n{part.content}"))
        else:
            cells.append(_cell("code", "\n".join(["%%bash", *part.commands])))
        end = part.span[1]
    cells.append(_cell("markdown", site_prose(page[end:])))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def _cell(kind: str, source: str) -> dict[str, object]:
    name = hashlib.sha256(source.encode()).hexdigest()[:12]
    cell: dict[str, object] = {"cell_type": kind, "id": name, "metadata": {}}
    of_code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return cell | {"source": source.strip("\n").splitlines(keepends=True)} | of_code


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
