r"""What a page holds: the files it shows, the commands it runs and those it only names.

A ``bash`` block holds commands that are not run here; they are composed by a test. A ``console``
block holds commands that were run: lines that begin with ``$ ``, their continuations with ``> ``,
and below each what it printed. Comments around a console block say what is done with it:

    <!-- show: last 8 -->        above: what of each output is shown (first N, last N,
                                 matching REGEX, nothing)
    <!-- exit: 2 -->             above: how its last command ends
    <!-- keep: noise.svg -->     above: a file it makes that the page shows, from figures/
    <!-- check: epsilon 7\.99 -->  below: what must be found in all that its commands printed

A block with ``title="NAME"`` is a file, which the commands below it find in their folder.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
NOT_PAGES = ("tools", "design.md")
_FENCE = re.compile(r"(?m)^```(?P<info>\S*)(?P<rest>[^\n]*)\n(?P<body>.*?)^```$", re.DOTALL)
_ABOVE = re.compile(r"((?:<!-- (?:show|exit|keep): [^\n]* -->\n)*)$")
_BELOW = re.compile(r"\n((?:<!-- check: [^\n]* -->\n?)*)")
_NOTE = re.compile(r"<!-- (\w+): (.*?) -->")


@dataclass(frozen=True, kw_only=True)
class File:
    """A file that a page shows."""

    name: str
    content: str


@dataclass(frozen=True, kw_only=True)
class Example:
    """A console block."""

    commands: tuple[str, ...]
    show: str = "all"
    exit_code: int = 0
    keep: str = ""
    """A file to copy beside the page, into figures/."""
    checks: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    """Lines that the page shows as printed."""
    span: tuple[int, int] = field(compare=False)
    """Where its body stands in the page."""


def all_pages() -> list[Path]:
    """Returns every page that is kept as a file, in order."""
    return [
        path
        for path in sorted(DOCS.rglob("*.md"))
        if path.relative_to(DOCS).parts[0] not in NOT_PAGES
    ]


def parts_of(text: str) -> list[File | Example]:
    """Returns the files and console blocks of a page, in order.

    Raises:
        ValueError: A console block does not begin with a command.
    """
    parts: list[File | Example] = []
    for found in _FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', found["rest"])
        if title and found["info"] != "console":
            parts.append(File(name=title[1], content=found["body"]))
        if found["info"] == "console":
            parts.append(_example(text, found))
    return parts


def named_commands(text: str) -> list[str]:
    """Returns the ``dpft`` commands of a page's bash and console blocks, without comments.

    Those that a page shows being refused are not among them.
    """
    found = []
    for block in _FENCE.finditer(text):
        if block["info"] == "bash":
            lines = block["body"].replace("\\\n", " ").splitlines()
        elif block["info"] == "console" and not _notes(text, block).get("exit"):
            lines = commands_in(block["body"])
        else:
            continue
        found += [line.partition(" #")[0].strip() for line in lines if line.startswith("dpft ")]
    return found


def commands_in(body: str) -> list[str]:
    """Returns the commands of a console block."""
    commands: list[str] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            commands.append(line[2:])
        elif line.startswith("> ") and commands and commands[-1].endswith("\\"):
            commands[-1] = commands[-1].removesuffix("\\") + line[2:]
    return commands


def prose_words(text: str) -> int:
    """Returns how many words of its own a page has: without code, comments and tables."""
    text = re.sub(r"<!--.*?-->", "", _FENCE.sub("", text), flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "#", "    "))]
    return len(re.findall(r"\w[\w'-]*", " ".join(lines)))


def _example(text: str, found: re.Match[str]) -> Example:
    commands = commands_in(found["body"])
    if not found["body"].startswith("$ "):
        raise ValueError(f"a console block must begin with a command, got {found['body'][:40]!r}")
    notes = _notes(text, found)
    below = _BELOW.match(text, found.end())
    checks = [value for _, value in _NOTE.findall(below[1] if below else "")]
    return Example(
        commands=tuple(commands),
        show=notes.get("show", "all"),
        exit_code=int(notes.get("exit", "0")),
        keep=notes.get("keep", ""),
        checks=tuple(checks),
        output=tuple(
            line for line in found["body"].splitlines() if not line.startswith(("$ ", "> "))
        ),
        span=found.span("body"),
    )


def _notes(text: str, found: re.Match[str]) -> dict[str, str]:
    """Returns what stands in the comments above a block."""
    above = _ABOVE.search(text[: found.start()])
    return dict(_NOTE.findall(above[1] if above else ""))
