"""How the reports are written: jinja2's environments for Markdown and for HTML.

Both escape what they are given: a name or a reason may come from a file, and a report is opened in
a browser. In sentences of dpft's own, `` `x` `` is code and ``**x**`` is strong, in either form.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from dpft.privacy.accounting.summary import eps_text

CODE, STRONG = re.compile(r"`([^`]*)`"), re.compile(r"\*\*([^*]+)\*\*")


def render_markdown(template: str, **values: Any) -> str:
    """Returns a template of Markdown filled in; it escapes by the filter ``line``."""
    return _environment(html=False).get_template(template).render(**values)


def render_html(template: str, **values: Any) -> str:
    """Returns a template of HTML filled in; whatever is not ``Markup`` is escaped."""
    return _environment(html=True).get_template(template).render(**values)


def score(value: float, rounded: int | None = None) -> str:
    """Returns a score as it is printed.

    Args:
        value: The score.
        rounded: Significant digits that it was rounded to, of which no more are printed.
    """
    return f"{value:.4f}" if rounded is None else f"{value:g}"


def digits(value: float, rounded: int | None = None) -> str:
    """Returns a score in three digits; those before the point all stand.

    >>> digits(60.5321), digits(0.6512), digits(1234.5), digits(9.999), digits(0.0)
    ('60.5', '0.651', '1234', '10.0', '0')

    Args:
        value: The score.
        rounded: As ``score``.
    """
    if value == 0 or rounded is not None:
        return f"{value:g}"
    exponent = int(f"{value:.2e}".partition("e")[2])
    return f"{value:.{max(0, 2 - exponent)}f}" if exponent >= -4 else f"{value:.2e}"


def printed(value: Any) -> str:
    """Returns a value of the configuration as it is printed."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {part}" for name, part in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def line(text: object) -> str:
    """Returns a text that fits a cell of a Markdown table and holds no HTML."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def words(text: object) -> Markup:
    """Returns a sentence of a report as HTML."""
    escaped = str(escape(" ".join(str(text).split())))
    return Markup(STRONG.sub(r"<strong>\1</strong>", CODE.sub(r"<code>\1</code>", escaped)))


@cache
def _environment(*, html: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("dpft.reports"),
        undefined=StrictUndefined,
        autoescape=html,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "up": eps_text,
        "score": score,
        "digits": digits,
        "line": line,
        "words": words,
    }
    return environment
