"""The site as it is built: strictly, of all its pages, and fetching nothing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.tools.pages import DOCS, all_pages
from dpft import __version__

pytest.importorskip("mkdocs", reason="what builds the site is not installed: make docs")
ROOT = DOCS.parent
FETCHED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=\"?(https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_built_and_none_fetches_anything(site: Path) -> None:
    built = {page.relative_to(site).with_suffix(".md").as_posix() for page in site.rglob("*.html")}
    assert {page.relative_to(DOCS).as_posix() for page in all_pages()} <= built
    fetching = [page.name for page in site.rglob("*.html") if FETCHED.search(page.read_text())]
    assert fetching == []


@pytest.mark.slow
def test_a_formula_is_shown_without_a_script(site: Path) -> None:
    text = (site / "explanation" / "clipper.html").read_text()
    assert "<math" in text and "arithmatex" not in text


@pytest.mark.slow
def test_the_header_names_the_version_and_no_command_has_a_gap_to_fill(site: Path) -> None:
    text = (site / "index.html").read_text()
    assert f"dpft {__version__}" in text
    assert "REPOSITORY" not in text + (site / "start" / "install.html").read_text()
