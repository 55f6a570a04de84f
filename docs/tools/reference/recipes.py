"""The page of the recipes of conf/experiment, with the figures that they were published with."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from docs.tools.reference.groups import command_of, comments
from docs.tools.reference.markup import block, code, head, prose, table
from dpft.config.help_text import purpose
from dpft.config.load import config_directory

INTRO = """
A recipe is a whole configuration under a name: `dpft train experiment=NAME`. Those of a paper name
their table or figure, say which values the paper does not give and where they are from, and carry
the published scores, which the run's report sets beside its own. Scores are on the scales of
[metrics.json](metrics.md). A recipe of a sweep runs all its settings with `--multirun`, and is one
run without it.
"""
PAPERS = {
    "li2022": "Li et al. 2022 (arXiv 2110.05679)",
    "bu2022": "Bu et al. 2022 (arXiv 2210.00036)",
    "ponomareva2022": "Ponomareva et al. 2022 (Findings of ACL)",
}
OTHERS = "Recipes of dpft's own"


def recipes_page() -> str:
    """Returns the page of all recipes."""
    by_paper: dict[str, list[Path]] = {}
    for file in sorted((config_directory() / "experiment").glob("*.yaml")):
        by_paper.setdefault(PAPERS.get(file.stem.partition("_")[0], OTHERS), []).append(file)
    parts = [head("Recipes", ["conf/experiment/"], INTRO)]
    for paper in (*PAPERS.values(), OTHERS):
        files = by_paper.get(paper, [])
        parts.append(f"## {paper}\n")
        rows = [(f"[{code(file.stem)}](#{file.stem})", prose(purpose(file))) for file in files]
        parts.append(table(("Recipe", "What it is"), rows))
        parts += [_recipe(file) for file in files]
    return "\n".join(parts)


def _recipe(file: Path) -> str:
    content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    parts = [f"### {file.stem}\n", f"{prose(purpose(file))}\n"]
    parts += [f"{prose(text)}\n" for text in comments(file)]
    command = command_of(file)
    if command:
        parts.append(block(command, "bash"))
    if content.get("reference"):
        parts += ["Published:\n", _rows(content["reference"])]
    parts += [_map(published) for published in content.get("reference_maps", ())]
    return "\n".join(parts)


def _rows(reference: Iterable[Mapping[str, Any]]) -> str:
    """Returns the published rows of a recipe, a column for each metric."""
    reference = list(reference)
    names = list(dict.fromkeys(name for row in reference for name in row["metrics"]))
    rows = [
        (
            prose(row["source"]),
            _what(row),
            "any" if row.get("model") is None else code(str(row["model"])),
            "not private" if row.get("eps") is None else str(row["eps"]),
            *(str(row["metrics"].get(name, "")) for name in names),
        )
        for row in reference
    ]
    return table(("Source", "What", "Model", "ε", *(code(name) for name in names)), rows)


def _what(row: Mapping[str, Any]) -> str:
    """Returns what a row is of, the settings in which it differs among it."""
    settings = ", ".join(code(f"{key}={value}") for key, value in row.get("settings", {}).items())
    return prose(row["what"]) + (f"; {settings}" if settings else "")


def _map(published: Mapping[str, Any]) -> str:
    """Returns a published heat map as a table."""
    rows, columns = published["rows"], published["columns"]
    eps = "not private" if published.get("eps") is None else f"ε = {published['eps']}"
    title = (
        f"Published heat map, {prose(published['source'])}: {code(published['metric'])} of"
        f" {prose(published['what'])}, {eps}, {code(rows['key'])} down and {code(columns['key'])}"
        " across.\n"
    )
    body = [
        (str(value), *("" if cell is None else str(cell) for cell in cells))
        for value, cells in zip(rows["values"], published["cells"], strict=True)
    ]
    return f"{title}\n{table(('', *map(str, columns['values'])), body)}"
