"""Runs the examples of pages: `write` puts what they print into the page, `check` compares.

What bash is given is what a reader pastes: the text that a page's copy buttons take.

Run: python -m docs.tools.examples write|check [--smollm2] docs/tutorials/own-data.md …

A page's examples run in order in one new folder, without a network. With ``--smollm2``, the folder
has a link to build/smollm2 (``make smollm2``), and the blocks that need this model run too.
"""

import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from docs.tools.pages import DOCS, Example, File, parts_of

LONGEST, LONGEST_OF_SMOLLM2 = 600, 3600
"""Seconds that one command may take, on a machine that does other things as well."""
SMOLLM2 = "smollm2"
PAGES_AT_ONCE = 2
CUT = "…"
LINES_OF_FAILURE = 20
NUMBERS = r"\d[\d.,]*(?:e[+-]?\d+)?"
_VARYING = (
    r"^INFO: (?:evaluating|step \d).*",
    r"(?<=^scores: ).*->.*",
    r"\d{4}-\d\d-\d\d(?:/\d\d-\d\d-\d\d)?",
    r"\b[0-9a-f]{12,}\b…?",
    r"\b\d[\d.]*(?: to \d[\d.]*)? (?:s|ms|min|h|seconds?|minutes?|hours?)\b",
)
"""Progress, scores, dates, digests and durations."""
_COLORS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Failed(Exception):
    """An example did not do what its page says."""


def run_page(page: Path, *, figures: Path | None = None, having: Collection[str] = ()) -> str:
    """Return a page's text with what its examples print now.

    Args:
        page: The page.
        figures: Where to copy the files that it shows; None: nowhere.
        having: What is available of ``pages.NEEDS``.

    Raises:
        Failed: A command failed, or a check did not hold.
    """
    text = page.read_text()
    made: list[tuple[tuple[int, int], str]] = []
    with tempfile.TemporaryDirectory(prefix="dpft-docs-") as folder:
        if SMOLLM2 in having:
            Path(folder, "build").mkdir()
            Path(folder, "build", SMOLLM2).symlink_to(DOCS.parent / "build" / SMOLLM2)
        for part in parts_of(text, having):
            if isinstance(part, File):
                path = Path(folder, part.name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(part.content)
            else:
                made.append((part.span, _run(part, folder, page, is_large=SMOLLM2 in having)))
                if part.keep and figures is not None:
                    figures.mkdir(exist_ok=True)
                    shutil.copy(Path(folder, part.keep), figures)
    for (start, end), body in reversed(made):
        text = text[:start] + body + text[end:]
    return text


def stale_lines(page: str, made: str, having: Collection[str] = ()) -> list[str]:
    """Return the lines of a page's outputs that its commands no longer print, as a diff.

    Progress lines, scores, dates, durations and digests are not compared, and neither is what a
    block's note ``varies`` names, such as numbers that depend on noise. A line without other text
    may be missing.
    """
    blocks = [
        [
            line
            for part in parts_of(text, having)
            if isinstance(part, Example)
            for line in (normalized(output, part.varies) for output in part.output)
            if line
        ]
        for text in (page, made)
    ]
    return [line for line in difflib.unified_diff(*blocks, n=0, lineterm="") if line[3:4] != " "]


def normalized(line: str, varies: str = "") -> str:
    """Return a line of output with placeholders for what differs between two runs.

    Args:
        line: The line.
        varies: A regular expression of further text that differs; "numbers" means every number.
    """
    for pattern in (*_VARYING, *([NUMBERS if varies == "numbers" else varies] if varies else ())):
        line = re.sub(pattern, "~", line)
    return re.sub(r"[\s~─━-]+", " ", line).strip()


def _run(example: Example, folder: str, page: Path, *, is_large: bool) -> str:
    """Return an example's block, with what its commands print where its page shows that."""
    blocks, printed = [], ""
    for number, command in enumerate(example.commands, start=1):
        script = command if example.is_console else f"set -e\n{command}"
        done = _done(script, folder, is_large=is_large)
        output = _COLORS.sub("", done.stdout).replace(f"{folder}/", "")
        wanted = example.exit_code if number == len(example.commands) else 0
        if done.returncode != wanted:
            raise Failed(f"{page}: `{command}` ended with {done.returncode}:\n{_end(output)}")
        printed += output
        if not example.is_console:
            continue
        blocks += [*_prompted(command), *_shown(output.splitlines(), example.show)]
    for check in example.checks:
        if not re.search(check, printed):
            raise Failed(f"{page}: nothing matches {check!r} in what ends with\n{_end(printed)}")
    return "\n".join(blocks or example.commands) + "\n"


def _done(command: str, folder: str, *, is_large: bool) -> "subprocess.CompletedProcess[str]":
    """Run a command in a shell and return both streams as its output.

    If ``is_large``, it may use all cores and take longer.

    Raises:
        Failed: It took too long.
    """
    longest = LONGEST_OF_SMOLLM2 if is_large else LONGEST
    threads = {"OMP_NUM_THREADS": str(os.cpu_count())} if is_large else {}
    try:
        return subprocess.run(
            ["bash", "-c", f"set -o pipefail\n{command}"],
            cwd=folder,
            env=environment() | threads,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=longest,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"`{command}` took more than {longest} seconds.") from None


def _end(output: str) -> str:
    return "\n".join(output.splitlines()[-LINES_OF_FAILURE:])


def environment() -> dict[str, str]:
    """Return the environment of the examples: this Python's programs first, and no network."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    settings = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "100", "TERM": "dumb"}
    return {**os.environ, **settings, "PATH": path, "PYTHONPATH": os.getcwd()}


def _prompted(command: str) -> Iterator[str]:
    """Yield a command's lines as a terminal shows them while they are typed."""
    first, *others = command.splitlines()
    yield f"$ {first}"
    yield from (f"> {line}" for line in others)


def _shown(lines: list[str], show: str) -> list[str]:
    """Return the lines of an output that its page shows."""
    how, _, what = show.partition(" ")
    if how == "nothing":
        return []
    if how == "matching":
        return [line for line in lines if re.search(what, line)]
    if how in ("first", "last") and len(lines) > int(what):
        number = int(what)
        return [*lines[:number], CUT] if how == "first" else [CUT, *lines[-number:]]
    return lines


def main(words: list[str]) -> int:
    """Run the examples of pages, two pages at a time; return the exit code."""
    having = [SMOLLM2] if f"--{SMOLLM2}" in words else []
    verb, *names = [word for word in words if word != f"--{SMOLLM2}"] or [""]
    if not names or verb not in ("write", "check"):
        usage = "usage: python -m docs.tools.examples write|check [--smollm2] PAGE…"
        print(usage, file=sys.stderr)
        return 2
    writes, pages = verb == "write", [Path(name) for name in names]

    def run(page: Path) -> Failed | None:
        try:
            figures = page.parent / "figures" if writes else None
            made = run_page(page, figures=figures, having=having)
        except Failed as error:
            print(error, file=sys.stderr, flush=True)
            return error
        if writes:
            page.write_text(made)
        elif stale := stale_lines(page.read_text(), made, having):
            print(
                f"{page} does not show what its commands print:", *stale, sep="\n", file=sys.stderr
            )
            return Failed(str(page))
        print(f"{page}: done", flush=True)
        return None

    with ThreadPoolExecutor(max_workers=PAGES_AT_ONCE) as pool:
        return int(any(list(pool.map(run, pages))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
