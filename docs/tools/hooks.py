"""What MkDocs does beside its own: pages made from the code, and formulas without scripts.

A page made from the code is never kept as a file, so it cannot be older than the code. The header
names the version. Where mkdocs.yml does not say which repository to clone, the site was built in
its only copy, and no page tells to clone it.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.tools import made
from docs.tools.pages import site_markdown
from dpft import __version__

SHIM = "https://unpkg.com/iframe-worker/shim"
LOCAL_SHIM = "assets/iframe-worker-shim.js"
CLONED = "REPOSITORY"
_CLONING = re.compile(rf"(?m)^git clone {CLONED}\b.*\n")
_DISPLAY = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)
_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)


_BLOCK_OR_CODE = re.compile(r"(<pre.*?</pre>)|<code>(.*?)</code>", re.DOTALL)
_TAG_OR_BREAK = re.compile(r"(<[^>]*>)|[._/=,](?=\w)")
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
STACKED = "reference/"
"""Pages whose tables stand in lines on narrow screens: their cells are words, not numbers."""
SHORT = 12
"""Signs of a word of code that is never broken, as long as the narrowest column of a table."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the version in the header of each page."""
    config.site_name = f"dpft {__version__}"
    return config


@event_priority(100)  # before the redirects are checked
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is made from the code."""
    for path, text in made.files().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, config: MkDocsConfig, **_: Any) -> str:
    """Set commands apart from what they print; names the repository."""
    text = site_markdown(markdown)
    return text.replace(CLONED, config.repo_url) if config.repo_url else _CLONING.sub("", text)


def on_page_content(content: str, page: Page, **_: Any) -> str:
    """Write formulas as MathML, which browsers show by themselves; make keys and tables fit."""
    content = _BLOCK_OR_CODE.sub(lambda found: found[1] or _breakable(found[2]), content)
    content = _TABLE.sub(lambda found: _labelled(found[0]), content)
    content = _DISPLAY.sub(lambda found: _mathml(found[1], "block"), content)
    content = _INLINE.sub(lambda found: _mathml(found[1], "inline"), content)
    return f'<div class="stacked">{content}</div>' if page.url.startswith(STACKED) else content


def _breakable(code: str) -> str:
    """Return inline code that may be broken after its dots, underscores and the like.

    Tags within the code stay as they are.
    """
    if len(code) < SHORT:
        return f"<code>{code}</code>"
    broken = _TAG_OR_BREAK.sub(lambda found: found[1] or f"{found[0]}<wbr>", code)
    return f"<code>{broken}</code>"


def _labelled(table: str) -> str:
    """Return a table whose cells name their columns, for screens on which they stand in lines."""
    labels = [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<th[^>]*>(.*?)</th>", table)]
    if not any(labels):
        return table

    def row(found: re.Match[str]) -> str:
        columns = iter(labels)
        return re.sub("<td", lambda _: f'<td data-label="{next(columns, "")}"', found[0])

    return re.sub(r"<tr>.*?</tr>", row, table, flags=re.DOTALL)


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Take from the site what the theme would fetch for search where there is no server."""
    return output.replace(SHIM, "../" * page.url.count("/") + LOCAL_SHIM)


def on_post_template(output_content: str, **_: Any) -> str:
    """Do as ``on_post_page`` for the page of what is not there."""
    return output_content.replace(SHIM, f"/{LOCAL_SHIM}")


def _mathml(formula: str, display: str) -> str:
    return convert(html.unescape(formula), display=display)
