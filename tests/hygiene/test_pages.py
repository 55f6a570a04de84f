"""Pages of the documentation: their examples are read as they stand, and none is a stub."""

import re
import subprocess
from pathlib import Path

import pytest

from docs.tools.examples import Failed, run_page, stale_lines
from docs.tools.pages import (
    DOCS,
    Example,
    File,
    all_pages,
    named_commands,
    not_run,
    parts_of,
    site_markdown,
)
from dpft import __version__
from dpft.config.removed import REMOVED

PAGE = """# A page

```csv title="data/rows.csv"
a,b
```

<!-- needs: network -->
```bash
dpft train task=e2e \\
    privacy.eps=3   # a comment
```

<!-- show: last 1 -->
<!-- exit: 3 -->
```console
$ echo one; \\
>     echo two; exit 3
something old
```
<!-- check: t.o -->

```console
$ cat data/rows.csv
```
"""
PAGES = [path.relative_to(DOCS).as_posix() for path in all_pages()]


def test_a_page_holds_files_and_examples_in_their_order() -> None:
    file, first, second = parts_of(PAGE)
    assert file == File(name="data/rows.csv", content="a,b\n")
    assert isinstance(first, Example)
    assert first.commands == ("echo one; \\\n    echo two; exit 3",)
    assert (first.show, first.exit_code, first.checks) == ("last 1", 3, ("t.o",))
    assert isinstance(second, Example) and second.checks == ()


def test_on_the_site_what_is_copied_is_what_was_run_and_outputs_stand_apart() -> None:
    made = site_markdown(PAGE)
    assert "<!--" not in made and "```console" not in made
    assert "```bash\necho one; \\\n    echo two; exit 3\n```\n" in made
    assert "```{ .text .no-copy .output }\nsomething old\n```\n" in made
    commands = [
        command for part in parts_of(PAGE) if isinstance(part, Example) for command in part.commands
    ]
    assert all(f"```bash\n{command}\n```\n" in made for command in commands)


def test_a_block_of_commands_is_run_in_its_turn_unless_it_says_why_not(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```bash\necho made > file\nfalse\n```\n")
    with pytest.raises(Failed, match="ended with 1"):
        run_page(page)
    kept = page.read_text().replace("false", "true") + "\n```console\n$ cat file\nmade\n```\n"
    page.write_text(kept)
    assert run_page(page) == kept
    page.write_text("<!-- needs: hours -->\n```bash\nfalse\n```\n")
    assert run_page(page) == page.read_text()


def test_an_output_that_its_page_does_not_show_is_stale() -> None:
    page = "```console\n$ dpft\nbleu 3.4 in 2 min, run 2026-01-02/10-11-12\ndelta = 0.001\n```\n"
    now = page.replace("2 min", "80 s").replace("2026-01-02/10-11-12", "2027-03-04/01-02-03")
    assert stale_lines(page, now) == []
    changed = stale_lines(page, now.replace("0.001", "0.0002"))
    assert changed[-2:] == ["-delta = 0.001", "+delta = 0.0002"]
    assert len(stale_lines(page, now.replace("3.4", "3.5"))) == 3
    varying = [f"<!-- varies: bleu [0-9.]+ -->\n{text}" for text in (page, now.replace("3.4", "9"))]
    assert stale_lines(*varying) == []


def test_a_block_that_needs_a_model_runs_only_with_it() -> None:
    text = "<!-- needs: smollm2 -->\n```console\n$ cat build/smollm2/config.json\nold\n```\n"
    assert parts_of(text) == [] and len(parts_of(text, having=["smollm2"])) == 1
    assert not_run(text) == {"cat build/smollm2/config.json": "smollm2"}


@pytest.mark.parametrize(
    ("note", "message"), [("needs: patience", "must be one of"), ("fill: DIR", "holds, got DIR")]
)
def test_a_reason_that_is_none_is_refused(note: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parts_of(f"<!-- {note} -->\n```bash\ndpft doctor\n```\n")


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_words_that_bash_reads(page: str) -> None:
    text = (DOCS / page).read_text()
    examples = [part for part in parts_of(text) if isinstance(part, Example)]
    copied = [command for each in examples for command in each.commands] + [*not_run(text)]
    done = subprocess.run(["bash", "-n"], input="\n".join(copied), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_commands_are_named_without_comments_and_in_one_line() -> None:
    assert named_commands(PAGE) == ["dpft train task=e2e      privacy.eps=3"]


def test_examples_are_run_in_one_folder_with_the_pages_files(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    made = run_page(page)
    assert "something old" not in made
    assert "…\ntwo\n```\n<!-- check: t.o -->" in made
    assert made.endswith("```console\n$ cat data/rows.csv\na,b\n```\n")
    page.write_text(made)
    assert run_page(page) == made


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [("check: t.o", "check: three", "nothing matches 'three'"), ("exit 3", "exit 4", "ended with")],
)
def test_a_page_that_says_what_is_not_so_fails(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace(f"{old}", new))
    with pytest.raises(Failed, match=message):
        run_page(page)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_one_title(page: str) -> None:
    text = (DOCS / page).read_text()
    assert text.startswith("# ") and len(re.findall(r"(?m)^# ", _without_blocks(text))) == 1


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_as_printed_was_printed(page: str) -> None:
    """An example without output below its commands was never run, unless it prints nothing."""
    for part in parts_of((DOCS / page).read_text()):
        if isinstance(part, Example) and part.show != "nothing":
            assert part.output or not part.checks, part.commands


def _without_blocks(text: str) -> str:
    return re.sub(r"(?ms)^```.*?^```$", "", text)


def test_each_removed_key_and_its_replacement_are_in_the_changelog() -> None:
    page = (DOCS.parent / "CHANGELOG.md").read_text()
    assert [key for key, advice in REMOVED.items() if f"| `{key}` | {advice} |" not in page] == []


def test_the_readme_is_one_page_whose_links_lead_somewhere() -> None:
    readme = DOCS.parent / "README.md"
    text = readme.read_text()
    assert len(text.splitlines()) <= 110
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if not link.startswith("http")]
    assert len(links) > 20
    assert [link for link in links if not (DOCS.parent / link).exists()] == []


def test_reports_and_wheels_that_pages_show_are_of_this_version() -> None:
    pages = [*DOCS.glob("gallery/*.html"), *DOCS.rglob("*.md")]
    # Pages may speak of earlier versions; a report states the one that made it.
    shown = {".html": r"\bdpft (\d+\.\d+\.\d+)\b", ".md": r"\bdpft-(\d+\.\d+\.\d+)-"}
    named = [re.findall(shown[page.suffix], page.read_text()) for page in pages]
    reports = [names for page, names in zip(pages, named, strict=True) if page.suffix == ".html"]
    assert reports and all(reports), "each report of the gallery names its version"
    pairs = zip(pages, named, strict=True)
    older = {page.name for page, names in pairs if {*names} - {__version__}}
    assert older == set(), "python -m docs.tools.gallery makes reports anew"
