"""Pages, figures and notebooks that are made from the code and from files outside docs/."""

import re
from pathlib import Path

from docs.tools import reference
from docs.tools.notebooks import NOTEBOOKS, notebook
from docs.tools.results_figures import figures

ROOT = Path(__file__).resolve().parents[2]
_RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)[^)]+\)")


def files() -> dict[str, str]:
    """Return every page, figure and notebook by its path below docs/."""
    notebooks = {to: notebook((ROOT / "docs" / of).read_text()) for to, of in NOTEBOOKS.items()}
    # Links to other files of the repository become their names.
    changelog = _RELATIVE_LINK.sub(r"\1", (ROOT / "CHANGELOG.md").read_text())
    return {"changelog.md": changelog} | notebooks | figures() | reference.pages()
