"""docs/dev/design.md and the pages beside it name code and tests: what they name is there."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "dev" / "design.md").read_text(encoding="utf-8")
PAGES = "\n".join(
    [PAGE]
    + [
        (ROOT / "docs" / "dev" / f"{name}.md").read_text(encoding="utf-8")
        for name in (
            "many-processes",
            "trust-rules",
            "clipper-code",
            "clipper-limits",
            "run-folder",
        )
    ]  # fmt: skip
)
RULES = (ROOT / "docs" / "dev" / "trust-rules.md").read_text(encoding="utf-8")
CITED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
CITED_PATH = re.compile(r"`((?:dpft|tests|conf|docs)/[\w/.\-]*)(?:::\w+)?`")
HEADINGS = {line.lstrip("#").strip().partition(":")[0].lower() for line in PAGE.splitlines()
            if line.startswith("#")}  # fmt: skip
HEADINGS |= {f"rule {number}" for number in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
"""What may be cited of it: "rule 7", "the clipper"."""
CITATION = re.compile(r"docs/dev/design\.md, ([^).,;:\"]+)")
UNPUBLISHED = ("DES" + "IGN", "SP" + "EC.md", "PIT" + "FALLS", "../" + "shared")
"""Texts that are not in the repository, in pieces, so that this file does not name them."""
TEXTS = (".py", ".md", ".yaml", ".toml", ".j2", ".cff")


def texts_of_the_repository() -> Iterator[tuple[Path, str]]:
    """Yield the relative path and the content of each text that is ours."""
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in ("dpft", "tests", "conf", "benchmarks", "docs", ".ci"):
        found += (ROOT / folder).rglob("*")
    for path in sorted(found):
        if path.suffix in TEXTS or path.name == "Makefile" or path.parent.name == ".ci":
            yield path.relative_to(ROOT), path.read_text(encoding="utf-8")


def rule(number: int) -> str:
    """Return what stands under a rule's heading; empty where there is none."""
    parts = re.split(r"^## Rule (\d+): .+$", RULES, flags=re.MULTILINE)
    bodies = dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))
    return re.split(r"^#", bodies.get(number, ""), flags=re.MULTILINE)[0]


@cache
def functions_of(file: str) -> set[str]:
    """Return the functions of a file of tests; none where there is no such file."""
    path = ROOT / file
    tree = ast.parse(path.read_text(encoding="utf-8") if path.is_file() else "")
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_test_that_the_design_cites_is_there() -> None:
    cited = CITED_TEST.findall(PAGES)
    assert len(cited) > 30
    assert [f"{file}::{name}" for file, name in cited if name not in functions_of(file)] == []


def test_every_path_that_the_design_cites_is_there() -> None:
    cited = set(CITED_PATH.findall(PAGES))
    assert len(cited) > 50
    assert sorted(path for path in cited if not (ROOT / path).exists()) == []


def test_the_design_is_read_in_one_sitting() -> None:
    assert len(PAGE.splitlines()) <= 250


@pytest.mark.parametrize("number", range(1, 12))
def test_each_rule_names_where_it_is_held_and_a_test(number: int) -> None:
    assert CITED_TEST.search(rule(number))
    assert any(path.startswith("dpft/") for path in CITED_PATH.findall(rule(number)))


def test_what_the_code_cites_of_the_design_has_a_heading() -> None:
    cited = [
        (str(path), place)
        for path, text in texts_of_the_repository()
        for place in CITATION.findall(re.sub(r"\n[\s#]*", " ", text))
    ]
    assert len(cited) > 30
    assert [each for each in cited if each[1] not in HEADINGS] == []


def test_no_file_cites_a_text_that_is_not_in_the_repository() -> None:
    assert [
        (str(path), name)
        for path, text in texts_of_the_repository()
        for name in UNPUBLISHED
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)
    ] == []
