"""Markdown of the generated pages: tables, code, and prose from docstrings."""

import re
from collections.abc import Iterable, Iterator, Sequence

from docs.tools.pages import COPIED, GAP, NOT_COPIED

LONGEST = 60
_CODE = re.compile(r"(`[^`]*`)")
_WORD = re.compile(
    r"(?<![\w/.`-])(?:--?)?[a-z][\w.]*=\[?[\w.,/*-]*\w\]?"  # key=value
    r"|(?<![\w/.`-])[a-z_]+(?:\.[a-z_0-9]+)+(?![\w/])"  # dotted.key or file.json
)


def head(title: str, sources: Iterable[str], intro: str) -> str:
    """Return the top of a page: its title, an introduction, and the files that it is made from."""
    return f"# {title}\n\n{intro.strip()}\n\n*Generated from {', '.join(map(code, sources))}.*\n"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def code(text: str) -> str:
    """Return text as code in a line or a cell; an empty text stays empty."""
    flat = text.replace("\n", "\\n").replace("|", "\\|")
    if not flat:
        return ""
    return f"`` {flat} ``" if "`" in flat else f"`{flat}`"


def short(value: str) -> str:
    """Return a value as code, cut after ``LONGEST`` characters."""
    return code(value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…")


def anchored(anchor: str, text: str) -> str:
    """Return a text as code that a link can lead to."""
    return f'<span id="{anchor}"></span>{code(text)}'


def commands(lines: Sequence[str]) -> Iterator[str]:
    """Yield a block of the commands that run when pasted, and one of those with placeholders."""
    for kind, has_gap in ((COPIED, False), (NOT_COPIED, True)):
        chosen = [line for line in lines if bool(GAP.search(line)) == has_gap]
        if chosen:
            yield "\n".join([f"```{kind}", *chosen, "```\n"])


def prose(text: str) -> str:
    """Return the text of a docstring or a comment as Markdown on one line.

    Keys and files become code, and signs that mean something to Markdown are escaped.
    """
    flat = " ".join(text.split()).replace("``", "`")
    flat = re.sub(r"\bNone\b", "null", flat)
    parts = _CODE.split(flat)
    return "".join(
        code(part[1:-1]) if part.startswith("`") and len(part) > 1 else _marked(part)
        for part in parts
    )


def _marked(text: str) -> str:
    """Return prose without code in it, its keys as code and the rest escaped."""
    found, end = "", 0
    for match in _WORD.finditer(text):
        if match[0] in ("e.g", "i.e"):
            continue
        found += _escaped(text[end : match.start()]) + code(match[0])
        end = match.end()
    return found + _escaped(text[end:])


def _escaped(text: str) -> str:
    for sign, instead in (("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("*", "\\*"), ("[", "\\[")):
        text = text.replace(sign, instead)
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)
