"""The page of the recipes of conf/experiment, with the figures that they were published with."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from docs.tools.reference.groups import command_of, comments
from docs.tools.reference.markup import code, commands, head, prose, table
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
    "own": "dpft's own",
}
OTHERS = "own"


INTRO_OF_PAPER = """
Tables are the published rows, on the scales of [metrics.json](../metrics.md).
"""
PAPER = re.compile(r"^(?:Li|Bu|Ponomareva) et al\. 2022, ")
WIDEST = 9
"""Columns of a table of published rows; one with more has its metrics down instead."""


def recipes_pages() -> dict[str, str]:
    """Returns the page that lists all recipes, and one for each paper, by path below docs/."""
    by_paper: dict[str, list[Path]] = {paper: [] for paper in PAPERS}
    for file in sorted((config_directory() / "experiment").glob("*.yaml")):
        paper = file.stem.partition("_")[0]
        by_paper[paper if paper in PAPERS else OTHERS].append(file)
    whole = [head("Recipes", ["conf/experiment/"], INTRO)]
    made = {}
    for paper, files in by_paper.items():
        of_paper = [head(f"Recipes: {PAPERS[paper]}", ["conf/experiment/"], INTRO_OF_PAPER)]
        notes = _notes(files)
        of_paper += [_recipe(file, notes) for file in files]
        if notes:
            of_paper += ["## Notes\n", *(f"{number}. {note}" for note, number in notes.items())]
        made[f"reference/recipes/{paper}.md"] = "\n".join(of_paper)
        links = [f"[{code(file.stem)}](recipes/{paper}.md#{file.stem})" for file in files]
        whole += [f"## {PAPERS[paper]}\n", f"{', '.join(links)}.\n"]
    return made | {"reference/recipes.md": "\n".join(whole)}


def _sentences(text: str) -> list[str]:
    whole = prose(text).replace("et al. ", "et al.\N{NO-BREAK SPACE}")
    return re.split(r"(?<=\.) (?=[A-Z])", whole)


def _notes(files: Sequence[Path]) -> dict[str, int]:
    """Returns the sentences that several recipes say, with the numbers by which each names them."""
    said = Counter(each for file in files for text in comments(file) for each in _sentences(text))
    several = [each for each, times in said.items() if times > 1 and len(each.split()) > 9]
    return {each: number for number, each in enumerate(several, start=1)}


def _with_notes(text: str, notes: Mapping[str, int]) -> str:
    parts = [
        f"([note {notes[each]}](#notes))" if each in notes else each for each in _sentences(text)
    ]
    return " ".join(parts)


def _recipe(file: Path, notes: Mapping[str, int]) -> str:
    content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    parts = [f"## {file.stem}\n", f"{prose(purpose(file))}\n"]
    parts += [f"{_with_notes(text, notes)}\n" for text in comments(file)]
    command = command_of(file)
    if command:
        parts += commands([command])
    if content.get("reference"):
        by_metrics: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
        for row in content["reference"]:
            by_metrics.setdefault(tuple(row["metrics"]), []).append(row)
        parts += [_rows(names, rows) for names, rows in by_metrics.items()]
    parts += [_map(published) for published in content.get("reference_maps", ())]
    return "\n".join(parts)


def _rows(metrics: Sequence[str], published: Sequence[Mapping[str, Any]]) -> str:
    """Returns published rows that have the same metrics; what all rows share stands above them.

    Rows of one metric have a column for each epsilon, and rows of many have their metrics down.
    """
    columns = {
        "Source": [prose(PAPER.sub("", row["source"])) for row in published],
        "What": [prose(row["what"]) for row in published],
        "Settings": [_settings(row) for row in published],
        "Model": [code(str(row["model"])) if row.get("model") else "any" for row in published],
    }
    alike = [name for name, cells in columns.items() if len({*cells}) == 1]
    shared = [cells[0] for name in alike if (cells := columns.pop(name))[0]]
    epsilons = ["not private" if row.get("eps") is None else str(row["eps"]) for row in published]
    scores = [[str(row["metrics"][name]) for name in metrics] for row in published]
    if len(metrics) == 1 and len({*epsilons}) > 1:
        shared.append(code(metrics[0]))
        columns = _by_epsilon(columns, epsilons, [score for (score,) in scores])
    else:
        columns["ε"] = epsilons
        columns |= {code(name): [row[at] for row in scores] for at, name in enumerate(metrics)}
    if len(columns) > WIDEST:
        lines = table(("", *[""] * len(published)), [(name, *columns[name]) for name in columns])
    else:
        lines = table([*columns], zip(*columns.values(), strict=True))
    return f"{'; '.join(shared)}{':' if shared else ''}\n\n{lines}"


def _by_epsilon(
    columns: Mapping[str, Sequence[str]], epsilons: Sequence[str], scores: Sequence[str]
) -> dict[str, list[str]]:
    """Returns rows that differ in epsilon alone as one row with a column for each epsilon."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for place, (epsilon, score) in enumerate(zip(epsilons, scores, strict=True)):
        row = found.setdefault(tuple(cells[place] for cells in columns.values()), {})
        row[epsilon] = f"{row[epsilon]}, {score}" if epsilon in row else score
    made = {name: [key[place] for key in found] for place, name in enumerate(columns)}
    for epsilon in dict.fromkeys(epsilons):
        title = epsilon if epsilon == "not private" else f"ε = {epsilon}"
        made[title] = [row.get(epsilon, "") for row in found.values()]
    return made


def _settings(row: Mapping[str, Any]) -> str:
    """Returns the settings in which a row differs from its recipe."""
    return ", ".join(code(f"{key}={value}") for key, value in row.get("settings", {}).items())


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
