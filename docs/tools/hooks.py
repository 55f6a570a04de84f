"""What MkDocs does beside its own: pages made from the code, and formulas without scripts.

A page made from the code is never kept as a file, so it cannot be older than the code.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from docs.tools import made

_DISPLAY = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)
_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_NOTES = re.compile(r"<!-- (?:show|exit|keep|check): [^\n]* -->\n?")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made from the code."""
    for path, text in made.pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Leaves out what is said to the program that runs the examples."""
    return _NOTES.sub("", markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Writes formulas as MathML, which browsers show by themselves."""
    content = _DISPLAY.sub(lambda found: _mathml(found[1], "block"), content)
    return _INLINE.sub(lambda found: _mathml(found[1], "inline"), content)


def _mathml(formula: str, display: str) -> str:
    return convert(html.unescape(formula), display=display)
