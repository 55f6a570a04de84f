"""Tutorials in Python as Jupyter notebooks: made from their pages, and run as Jupyter runs them.

Run: python -m docs.tools.notebooks [NOTEBOOK…]. Each is made and run in a new folder, cell by cell
in one Python, with nothing of the network; the outputs of its cells must match what its page
checks. Of Jupyter the runner knows what these notebooks have: Python, ``%%writefile`` and
``%%bash``.
"""

import ast
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs.tools.examples import LONGEST, SMOLLM2, Failed, environment
from docs.tools.pages import DOCS, Example, File, parts_of, site_prose

NOTEBOOKS = {
    "notebooks/first-model.ipynb": "start/first-model.md",
    "notebooks/clipper-library.ipynb": "how-to/clipper-library.md",
    "notebooks/chat.ipynb": "tutorials/chat.md",
}
"""Notebooks, and the pages that they are made of."""
OF_SMOLLM2 = {"notebooks/chat.ipynb"}
"""Notebooks that train build/smollm2; they are not run."""
CHECKS = "checks"
"""What a cell's metadata call the patterns that its output must match."""
WRITE, BASH = "%%writefile ", "%%bash"
END_OF_CELL = "\x00 end of cell {}\n"
_ABOUT_ITSELF = re.compile(r"(?m)^.*\]\(\.\./notebooks/.*\n\n?")


def notebook(page: str) -> str:
    """Return a page as a Jupyter notebook: files and commands as cells, and its prose between.

    A script that the page runs at once and no other imports is a cell of Python; a cell of
    commands is what the page's copy button takes, for ``%%bash``.
    """
    cells: list[dict[str, Any]] = []
    parts = parts_of(page, having=[SMOLLM2])
    end, script = 0, ""
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        prose = site_prose(_ABOUT_ITSELF.sub("", page[end : part.span[0]]))
        end = part.span[1]
        cells += [_cell("markdown", prose)] if prose else []
        if isinstance(part, Example):
            code = script or "\n".join([BASH, *part.commands])
            cells.append(_cell("code", code, {CHECKS: list(part.checks)} if part.checks else {}))
            script = ""
        elif _runs(following, part) and not _is_imported(part, parts):
            script = part.content
        else:
            cells.append(_cell("code", f"{WRITE}{part.name}\n{part.content}"))
    cells.append(_cell("markdown", site_prose(page[end:])))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def check(made: str, name: str) -> int:
    """Run a notebook's cells in a new folder; return how many patterns their outputs matched.

    Raises:
        Failed: A cell failed or did not print what its page says, or nothing was compared.
    """
    cells = [cell for cell in json.loads(made)["cells"] if cell["cell_type"] == "code"]
    with tempfile.TemporaryDirectory(prefix="dpft-notebook-") as folder:
        Path(folder, "cells.json").write_text(json.dumps(["".join(c["source"]) for c in cells]))
        done = subprocess.run(
            [sys.executable, "-m", "docs.tools.notebooks", "--cells"],
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST,
        )
    rest, compared = done.stdout, 0
    for number, cell in enumerate(cells, start=1):
        printed, ended, rest = rest.partition(END_OF_CELL.format(number))
        if not ended:
            raise Failed(f"{name}: cell {number} of {len(cells)} failed:\n{printed}")
        for pattern in cell["metadata"].get(CHECKS, ()):
            if not re.search(pattern, printed):
                raise Failed(f"{name}: nothing matches {pattern!r} in cell {number}'s\n{printed}")
            compared += 1
    if not compared:
        raise Failed(f"{name}: no cell has a pattern that its output must match.")
    return compared


def run_cells(sources: list[str]) -> None:
    """Run cells in one namespace and print a line after each that ended well."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, source in enumerate(sources, start=1):
        first, _, rest = source.partition("\n")
        if first.startswith(WRITE):
            Path(first.removeprefix(WRITE)).write_text(rest)
        elif first == BASH:
            subprocess.run(["bash"], input=rest, text=True, check=True)
        else:
            _run_python(source, names)
        print(END_OF_CELL.format(number), end="", flush=True)


def _run_python(source: str, names: dict[str, Any]) -> None:
    """Run a cell of Python, and print the value of its last line as Jupyter does."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        if value is not None:
            print(repr(value))


def _runs(part: File | Example | None, script: File) -> bool:
    return isinstance(part, Example) and part.commands == (f"python {script.name}",)


def _is_imported(file: File, parts: list[File | Example]) -> bool:
    imports = re.compile(rf"(?m)^\s*(?:from|import) {re.escape(Path(file.name).stem)}\b")
    return any(isinstance(part, File) and imports.search(part.content) for part in parts)


def _cell(kind: str, source: str, metadata: Mapping[str, Any] | None = None) -> dict[str, Any]:
    name = hashlib.sha256(source.encode()).hexdigest()[:12]
    of_code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    lines = source.strip("\n").splitlines(keepends=True)
    return {"cell_type": kind, "id": name, "metadata": metadata or {}, "source": lines} | of_code


def main(words: list[str]) -> int:
    """Check notebooks, or runs the cells of the one in this folder; return the exit code."""
    if words == ["--cells"]:
        sys.path.insert(0, "")
        run_cells(json.loads(Path("cells.json").read_text()))
        return 0
    failed = 0
    for name in words or [name for name in NOTEBOOKS if name not in OF_SMOLLM2]:
        try:
            compared = check(notebook((DOCS / NOTEBOOKS[name]).read_text()), name)
            print(f"{name}: its cells ran, and {compared} patterns were found")
        except Failed as error:
            print(error, file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
