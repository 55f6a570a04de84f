"""The map of the papers' tables and figures: it has all of them, and every recipe.

How many there are is of the papers' own captions: Li et al. 2022 (ICLR), Bu et al. 2022 (arXiv
2210.00036) and Ponomareva et al. 2022 (Findings of ACL).
"""

import itertools
import re

import pytest

from docs.tools.pages import DOCS
from dpft.config.load import config_directory

PAGE = DOCS / "results" / "published.md"
CAPTIONS = {"Li et al. 2022": (14, 9), "Bu et al. 2022": (17, 5), "Ponomareva et al. 2022": (5, 1)}
"""Tables and figures of each paper, numbered from 1."""
APPENDICES = {"Li et al. 2022": ["Appendix N", "Appendix S", "Appendix V"]}
"""What has a recipe and no number."""
DRAWINGS = {("Bu et al. 2022", "Figure 2"), ("Ponomareva et al. 2022", "Figure 1")}
STANDS = re.compile(r"(computed|small-scale|GPU, [\d,.]+ h)( \(\[\w+\]\(\w+\.md\)\))?")
RECIPES = {path.stem for path in config_directory().glob("experiment/*.yaml")}
TUNINGS = {path.stem for path in config_directory().glob("tuning/*.yaml")}


def rows(paper: str) -> dict[str, list[str]]:
    """The cells of each row of a paper's table, by the row's name."""
    section = PAGE.read_text().partition(f"## {paper}\n")[2].partition("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in section.splitlines()
        if line.startswith("| ") and "---" not in line
    ]
    found = {row[0]: row[1:] for row in cells if row[0]}
    assert len(found) == sum(bool(row[0]) for row in cells), "a row is there twice"
    return found


def expanded(text: str) -> set[str]:
    """The words of a text, ``a_{b,c}`` as two."""
    found = set()
    for word in re.findall(r"[\w{},]+", text):
        parts = [part.split(",") for part in re.split(r"[{}]", word)]
        found |= {"".join(one) for one in itertools.product(*parts)}
    return found


@pytest.mark.parametrize("paper", CAPTIONS)
def test_each_table_and_figure_has_a_row_with_its_command_and_where_it_stands(paper: str) -> None:
    tables, figures = CAPTIONS[paper]
    names = [f"Table {n}" for n in range(1, tables + 1)]
    names += [f"Figure {n}" for n in range(1, figures + 1)]
    names += APPENDICES.get(paper, [])
    found = rows(paper)
    assert list(found) == names
    for name, row in found.items():
        what, command, stands = row
        assert what, name
        if (paper, name) in DRAWINGS:
            assert (command, stands) == ("–", "nothing to run")
            continue
        assert re.match(r"`(dpft|make|python -m) |as Table \d", command), (name, command)
        for part in stands.split("; "):
            part = re.sub(r"^(left|right): ", "", part)
            assert STANDS.fullmatch(part), (name, stands)


def test_every_recipe_on_disk_is_in_the_map_and_every_one_in_it_is_on_disk() -> None:
    words = expanded(PAGE.read_text())
    named = {word for word in words if re.match(r"(li|bu|ponomareva)2022_\w", word)}
    assert RECIPES and named - RECIPES - TUNINGS == set()
    assert RECIPES - words == set()
    run = set(re.findall(r"experiment=(\w+)", PAGE.read_text()))
    assert run and run - RECIPES == set()


def test_a_recipe_stands_in_the_row_of_the_table_that_its_head_names() -> None:
    """A recipe whose head says (Bu et al. 2022, Table 13) is named where Table 13's command is."""
    for path in sorted(config_directory().glob("experiment/*2022_*.yaml")):
        purpose = path.read_text().splitlines()[1]
        paper, _, where = re.search(r"\((\w+ et al\. 2022)(, )([^)]*)\)", purpose).groups()
        named = re.match(r"(Table|Figure|Appendix)s? (\w+)", where)
        row = rows(paper)[f"{named[1]} {named[2]}"]
        words = expanded(row[1])
        while (other := re.match(r"as (Table \d+)", row[1])) is not None:
            row = rows(paper)[other[1]]
            words |= expanded(row[1])
        if named[2] in ("9", "10", "11") and paper.startswith("Bu"):
            continue  # tables of settings, which many recipes follow
        assert path.stem in words, (path.stem, named[0])
