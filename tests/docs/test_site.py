"""The built site: it has every page, fetches nothing, and its search finds the right page."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.tools.pages import DOCS, Example, all_pages, not_run, parts_of
from docs.tools.search import first_hits
from dpft import __version__

pytest.importorskip("mkdocs", reason="what builds the site is not installed: make docs")
ROOT = DOCS.parent
BLOCK = re.compile(
    r'<div class="([^"]*\bhighlight\b[^"]*)">(<span class="filename">.*?</span>)?<pre[^>]*>'
    r"(?:<span></span>)?<code>(.*?)</code></pre>",
    re.DOTALL,
)
"""A block of code, which the theme's script gives a copy button but where its class is no-copy."""
FETCHED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=\"?(https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site: where ``make docs`` just built it, as CI says by a variable, or anew."""
    if built := os.environ.get("DPFT_BUILT_SITE"):
        return Path(built).resolve()
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def html_pages(site: Path) -> list[Path]:
    """The pages of the site, without those that only redirect from an old address."""
    pages = sorted(site.rglob("*.html"))
    return [page for page in pages if 'http-equiv="refresh"' not in page.read_text()]


@pytest.mark.slow
def test_every_page_is_built_and_none_fetches_anything(site: Path) -> None:
    built = {page.relative_to(site).with_suffix(".md").as_posix() for page in html_pages(site)}
    assert {page.relative_to(DOCS).as_posix() for page in all_pages()} <= built
    fetching = [page.name for page in site.rglob("*.html") if FETCHED.search(page.read_text())]
    assert fetching == []


@pytest.mark.slow
def test_each_old_address_redirects_to_a_page(site: Path) -> None:
    pages = html_pages(site)
    redirects = [page for page in site.rglob("*.html") if page not in pages]
    for page in redirects:
        target = re.search(r'href="([^"#]+)', page.read_text())
        assert target and Path(os.path.normpath(page.parent / target[1])) in pages, page
    old = ("commands/train", "groups/task", "recipes/li2022", "metrics", "forms", "exit-codes")
    assert {site / "reference" / f"{name}.html" for name in old} <= {*redirects}


@pytest.mark.slow
def test_names_of_the_python_api_are_links(site: Path) -> None:
    page = (site / "reference" / "python.html").read_text()
    assert re.search(r'Bases: <code><a [^>]*href="#dpft.DpftError">DpftError</a>', page)
    assert "autoref>" not in page


def commands_copied(page: Path) -> list[str]:
    """The commands that a page's copy buttons copy, without spaces at the end."""
    return [
        html.unescape(re.sub(r"<[^>]*>", "", code)).rstrip()
        for classes, file_name, code in BLOCK.findall(page.read_text())
        if not file_name and "language-bash" in classes and "no-copy" not in classes
    ]


@pytest.mark.slow
def test_what_the_copy_buttons_take_is_what_the_examples_run(site: Path) -> None:
    compared = 0
    for path in all_pages():
        text = path.read_text()
        examples = [part for part in parts_of(text) if isinstance(part, Example)]
        run = [line for each in examples for line in "\n".join(each.commands).splitlines()]
        others = [line for body in not_run(text) for line in body.splitlines()]
        blocks = commands_copied(site / path.relative_to(DOCS).with_suffix(".html"))
        copied = [line for block in blocks for line in block.splitlines()]
        # The site was built without the name of a repository, and then tells nobody to clone it.
        expected = [line for line in run + others if not line.startswith("git clone ")]
        assert sorted(copied) == sorted(expected), path
        assert [line for line in copied if line not in others] == run, path
        compared += len(run)
    assert compared > 50


@pytest.mark.slow
def test_every_block_of_commands_is_read_by_bash_as_it_is_copied(site: Path) -> None:
    blocks = [(page, block) for page in html_pages(site) for block in commands_copied(page)]
    assert len(blocks) > 100
    for page, block in blocks:
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), (page, block)
        assert not re.search(r"(?m)^[$>] |DATE/TIME|\bDIR\b", block), (page, block)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("quickstart", "start/first-model.html"),
        ("out of memory", "how-to/troubleshooting.html"),
        ("epsilon", "explanation/epsilon.html"),
        ("GPU", "how-to/gpu.html"),
        ("CUDA", "how-to/gpu.html"),
        ("LoRA", "how-to/lora.html"),
        ("QLoRA", "how-to/lora.html"),
        ("glossary", "explanation/epsilon.html"),
        ("troubleshooting", "how-to/troubleshooting.html"),
    ],
)
def test_a_search_begins_with_the_page_that_answers_it(site: Path, query: str, page: str) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert len(entries) > 300
    assert first_hits(entries, query)[:1] == [page]


def test_titles_lead_a_search_and_whole_pages_their_sections() -> None:
    def entry(location: str, title: str, text: str) -> dict[str, str]:
        return {"location": location, "title": title, "text": text}

    entries = [
        entry("a.html", "Speed", "memory memory memory"),
        entry("b.html#x", "Memory", ""),
        entry("c.html", "Memory", ""),
        entry("d.html", "Other", "nothing"),
    ]
    assert first_hits(entries, "memory", 4) == ["c.html", "b.html", "a.html"]
    assert first_hits(entries, "memo") == ["c.html", "b.html", "a.html"]
    assert first_hits(entries, "cuda") == []


BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
NARROW = 420
WIDTHS = """<!doctype html><body><script>
const pages = %s, widths = {};
async function measure() {
  for (const page of pages) {
    const frame = document.createElement("iframe");
    frame.style.cssText = "border:0; width:%dpx; height:900px";
    frame.src = page;
    document.body.append(frame);
    await new Promise(done => frame.onload = done);
    widths[page] = frame.contentDocument.documentElement.scrollWidth;
    frame.remove();
  }
  document.body.textContent = JSON.stringify(widths);
}
measure();
</script></body>"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_no_page_is_wider_than_a_narrow_screen(site: Path, tmp_path: Path) -> None:
    pages = [page.relative_to(site).as_posix() for page in html_pages(site)]
    harness = site / "widths-of-pages.html"
    harness.write_text(WIDTHS % (json.dumps(pages), NARROW))
    done = subprocess.run(
        [
            str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu",
            "--allow-file-access-from-files", f"--user-data-dir={tmp_path}",
            "--virtual-time-budget=600000", "--dump-dom", harness.as_uri(),
        ],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    harness.unlink()
    found = re.search(r"<body>(\{.*\})</body>", done.stdout)
    assert found, done.stdout[-500:] + done.stderr[-500:]
    widths = json.loads(html.unescape(found[1]))
    assert sorted(widths) == sorted(pages) and len(pages) > 40 and min(widths.values()) > 300
    assert {page: width for page, width in widths.items() if width > NARROW} == {}


@pytest.mark.slow
def test_a_formula_is_shown_without_a_script(site: Path) -> None:
    text = (site / "explanation" / "clipper.html").read_text()
    assert "<math" in text and "arithmatex" not in text


@pytest.mark.slow
def test_the_header_names_the_version_and_no_command_has_a_gap_to_fill(site: Path) -> None:
    text = (site / "index.html").read_text()
    assert f"dpft {__version__}" in text
    assert "REPOSITORY" not in text + (site / "start" / "install.html").read_text()
