r"""What a page holds: the files it shows, the commands it runs and those it only names.

A ``console`` block holds commands that were run: lines that begin with ``$ ``, their continuations
with ``> ``, and below each what it printed. A ``bash`` block holds commands that are run like them,
in their turn, unless a comment above says why not; then they are composed by a test. Comments:

    <!-- show: last 8 -->        above: what of each output is shown (first N, last N,
                                 matching REGEX, nothing)
    <!-- exit: 2 -->             above: how its last command ends
    <!-- keep: curve.svg -->     above: a file it makes that the page shows, from figures/
    <!-- varies: REGEX -->       above: text of its output that differs from run to run ("numbers":
                                 every number); dates, durations and digests always do
    <!-- needs: hours -->        above: what running it takes (gpu, network, hours, cluster, or
                                 smollm2, which make tutorials-real runs)
    <!-- fill: DIR, r.csv -->    above bash: what readers put in themselves; it has no copy button
    <!-- check: epsilon 7\.99 -->  below: what must be found in all that its commands printed

A block with ``title="NAME"`` is a file, which the commands below it find in their folder.

On the site, commands and outputs are blocks of their own, and only commands that run have a copy
button: what it takes is what ``Example.commands`` holds, which the examples' run gives to bash.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
NOT_PAGES = ("tools", "design.md")
NEEDS = ("gpu", "network", "hours", "cluster", "smollm2")
COPIED, NOT_COPIED, OUTPUT = "bash", "{ .bash .no-copy }", "{ .text .no-copy .output }"
"""Kinds of blocks on the site: commands that run as they are pasted, commands with gaps to fill
in, and what commands print."""
GAP = re.compile(r"\b(?:DIR|FILE|RUN|DATE/TIME|outputs/\w+)\b")
"""What generated pages have where readers put in their own."""
_FENCE = re.compile(r"(?m)^```(?P<info>\S*)(?P<rest>[^\n]*)\n(?P<body>.*?)^```$", re.DOTALL)
_ABOVE = re.compile(r"((?:<!-- (?:show|exit|keep|varies|needs|fill): [^\n]* -->\n)*)$")
_BELOW = re.compile(r"\n((?:<!-- check: [^\n]* -->\n?)*)")
_ANY_NOTE = re.compile(r"<!-- (?:show|exit|keep|varies|needs|fill|check): [^\n]* -->\n?")
_NOTE = re.compile(r"<!-- (\w+): (.*?) -->")


@dataclass(frozen=True, kw_only=True)
class File:
    """A file that a page shows."""

    name: str
    content: str
    span: tuple[int, int] = field(default=(0, 0), compare=False)
    """Where its body stands in the page."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """A block of commands that are run."""

    commands: tuple[str, ...]
    """As they are pasted: a long one in several lines, all but the last ending in a backslash."""
    show: str = "all"
    exit_code: int = 0
    keep: str = ""
    """A file to copy beside the page, into figures/."""
    varies: str = ""
    """A regular expression of what differs in its output from run to run."""
    checks: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    """Lines that the page shows as printed."""
    is_console: bool = True
    """Whether its page shows what it prints; a ``bash`` block shows commands alone."""
    span: tuple[int, int] = field(compare=False)
    """Where its body stands in the page."""


def all_pages() -> list[Path]:
    """Return every page that is kept as a file, in order."""
    return [
        path
        for path in sorted(DOCS.rglob("*.md"))
        if path.relative_to(DOCS).parts[0] not in NOT_PAGES
    ]


def parts_of(text: str, having: Collection[str] = ()) -> list[File | Example]:
    """Return the files of a page and the blocks of commands that are run, in order.

    Args:
        text: The page.
        having: What is available of ``NEEDS``; blocks that need anything else are not run.

    Raises:
        ValueError: A console block does not begin with a command, or a note above a block says
            what cannot be.
    """
    parts: list[File | Example] = []
    for found in _FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', found["rest"])
        if title and found["info"] != "console":
            parts.append(File(name=title[1], content=found["body"], span=found.span("body")))
        elif found["info"] in ("console", "bash"):
            reason = why_not_run(text, found)
            parts += [] if reason and reason not in having else [_example(text, found)]
    return parts


def why_not_run(text: str, found: re.Match[str]) -> str:
    """Return what a block's commands need, or what has to be filled in; else nothing.

    Raises:
        ValueError: It needs what nobody knows, or does not have what is to be filled in.
    """
    notes = _notes(text, found)
    needs, gaps = notes.get("needs", ""), notes.get("fill", "")
    if needs and needs not in NEEDS:
        raise ValueError(f"needs must be one of {', '.join(NEEDS)}, got {needs!r}")
    missing = [gap for gap in gaps.split(", ") if gap not in found["body"]]
    if gaps and missing:
        raise ValueError(f"fill must name what its block holds, got {', '.join(missing)}")
    return needs or gaps


def not_run(text: str) -> dict[str, str]:
    """Return the commands of a page that are copied but not run, and what each block needs."""
    blocks = {}
    for found in _FENCE.finditer(text):
        if needs := _notes(text, found).get("needs"):
            blocks["\n".join(_example(text, found).commands)] = needs
    return blocks


def site_markdown(text: str) -> str:
    """Return a page's Markdown with commands and outputs in blocks of their own, without notes."""
    made, end = "", 0
    for found in _FENCE.finditer(text):
        if found["info"] == "console":
            made += text[end : found.start()] + _split(found["body"])
        elif found["info"] == "bash" and _notes(text, found).get("fill"):
            made += text[end : found.start()] + _fenced(NOT_COPIED, found["body"])
        elif found["info"] == "text" and not found["rest"]:
            made += text[end : found.start()] + _fenced("{ .text .no-copy }", found["body"])
        else:
            continue
        end = found.end() + 1
    return _ANY_NOTE.sub("", made + text[end:])


def site_prose(text: str) -> str:
    """Return what stands between two blocks: without the fences around it, and without notes."""
    text = re.sub(r"\A```\n|```[^`\n]*\n\Z", "", text)
    return _ANY_NOTE.sub("", text).strip()


def _split(body: str) -> str:
    """Return the blocks of commands and of outputs that a console block becomes."""
    made: list[tuple[str, list[str]]] = []
    continued = False
    for line in body.splitlines():
        is_command = line.startswith("$ ") or (continued and line.startswith("> "))
        continued = is_command and line.endswith("\\")
        kind = COPIED if is_command else OUTPUT
        if not made or made[-1][0] != kind:
            made.append((kind, []))
        made[-1][1].append(line[2:] if is_command else line)
    return "\n".join(_fenced(kind, "\n".join(lines) + "\n") for kind, lines in made)


def _fenced(kind: str, body: str) -> str:
    return f"```{kind}\n{body}```\n"


def named_commands(text: str) -> list[str]:
    """Return the ``dpft`` commands of a page's bash and console blocks, without comments.

    Those that a page shows being refused are not among them.
    """
    found = []
    for block in _FENCE.finditer(text):
        if block["info"] == "bash":
            lines = block["body"].replace("\\\n", " ").splitlines()
        elif block["info"] == "console" and not _notes(text, block).get("exit"):
            lines = [each.replace("\\\n", " ") for each in commands_in(block["body"])]
        else:
            continue
        found += [line.partition(" #")[0].strip() for line in lines if line.startswith("dpft ")]
    return found


def commands_in(body: str) -> list[str]:
    """Return the commands of a console block, as they are pasted."""
    commands: list[str] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            commands.append(line[2:])
        elif line.startswith("> ") and commands and commands[-1].endswith("\\"):
            commands[-1] += f"\n{line[2:]}"
    return commands


def _example(text: str, found: re.Match[str]) -> Example:
    body, is_console = found["body"], found["info"] == "console"
    if is_console and not body.startswith("$ "):
        raise ValueError(f"a console block must begin with a command, got {body[:40]!r}")
    notes = _notes(text, found)
    below = _BELOW.match(text, found.end())
    checks = [value for _, value in _NOTE.findall(below[1] if below else "")]
    output = [line for line in body.splitlines() if not line.startswith(("$ ", "> "))]
    return Example(
        commands=tuple(commands_in(body)) if is_console else (body.rstrip("\n"),),
        show=notes.get("show", "all"),
        exit_code=int(notes.get("exit", "0")),
        keep=notes.get("keep", ""),
        varies=notes.get("varies", ""),
        checks=tuple(checks),
        output=tuple(output) if is_console else (),
        is_console=is_console,
        span=found.span("body"),
    )


def _notes(text: str, found: re.Match[str]) -> dict[str, str]:
    """Return what stands in the comments above a block."""
    above = _ABOVE.search(text[: found.start()])
    return dict(_NOTE.findall(above[1] if above else ""))
