"""Markdown of the generated pages: tables, code, and prose made of docstrings."""

import re
from collections.abc import Iterable, Iterator, Sequence

from docs.tools.pages import COPIED, GAP, NOT_COPIED

_CODE = re.compile(r"(`[^`]*`)")
_WORD = re.compile(
    r"(?<![\w/.`-])(?:--?)?[a-z][\w.]*=\[?[\w.,/*-]*\w\]?"  # key=value
    r"|(?<![\w/.`-])[a-z_]+(?:\.[a-z_0-9]+)+(?![\w/])"  # dotted.key or file.json
)


def head(title: str, sources: Iterable[str], intro: str) -> str:
    """Returns the top of a page: title, what it is about, and what it is generated from.

    Args:
        title: Of the page.
        sources: Files and folders of the repository.
        intro: A few sentences of Markdown.
    """
    names = [code(source) if "/" in source else source for source in sources]
    of = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return f"# {title}\n\n{intro.strip()}\n\n*Generated from {of}.*\n"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table of cells that are Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def code(text: str) -> str:
    """Returns text as code in a line or a cell, an empty one as nothing."""
    flat = text.replace("\n", "\\n").replace("|", "\\|")
    if not flat:
        return ""
    return f"`` {flat} ``" if "`" in flat else f"`{flat}`"


def block(text: str, language: str) -> str:
    """Returns a fenced block."""
    return f"```{language}\n{text.rstrip()}\n```\n"


def commands(lines: Iterable[str]) -> Iterator[str]:
    """Yields a block of the commands that run as they are pasted, and one of those with gaps."""
    listed = list(lines)
    for kind, has_gap in ((COPIED, False), (NOT_COPIED, True)):
        chosen = [line for line in listed if bool(GAP.search(line)) == has_gap]
        if chosen:
            yield block("\n".join(chosen), kind)


def prose(text: str) -> str:
    """Returns the text of a docstring or a comment as Markdown on one line.

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
    """Returns prose without code in it, its keys as code and the rest escaped."""
    found, end = "", 0
    for match in _WORD.finditer(text):
        if match[0] in ("e.g", "i.e") or match[0].endswith("et.al"):
            continue
        found += _escaped(text[end : match.start()]) + code(match[0])
        end = match.end()
    return found + _escaped(text[end:])


def _escaped(text: str) -> str:
    for sign, instead in (("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("*", "\\*"), ("[", "\\[")):
        text = text.replace(sign, instead)
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)
