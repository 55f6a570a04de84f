"""Render reports: Markdown from templates, HTML from Markdown, plots as inline SVG.

A name or a reason may come from a file, and a report is opened in a browser: Markdown holds no HTML
of theirs, and a page shows none. A plot of matplotlib has the same bytes each time, no address, no
script; its texts stay texts, which a reader can search and a screen reader can read.
"""

import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

import dpft
from dpft.privacy.accounting.summary import eps_text
from dpft.reports.privacy_json import PrivateRun, RunPrivacy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def render_markdown(template: str, **values: Any) -> str:
    """Return a template of Markdown filled in; templates escape by the filter ``line``."""
    return _environment().get_template(template).render(**values)


def render_page(
    title: str, markdown: str, plots: Mapping[str, Sequence[Markup]] = MappingProxyType({})
) -> str:
    """Render a Markdown report as an HTML page that runs no script and fetches nothing.

    HTML in the Markdown is shown as text. Links and images stay text, too: their addresses may come
    from a file or from a model.

    Args:
        title: The page's title, as plain text.
        markdown: The whole report.
        plots: Figures by the heading that they follow. If the report has no such heading, the
            heading and its figures are added at the end.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.disable(["link", "image", "autolink", "reference"])
    left = {heading: figures for heading, figures in plots.items() if figures}
    tokens = []
    for token in parser.parse(markdown):
        tokens.append(token)
        if token.type == "heading_close":
            tokens += _figures(left.pop(tokens[-2].content, ()))
    content = str(parser.renderer.render(tokens, parser.options, {}))
    for heading, figures in left.items():
        added = parser.renderer.render(_figures(figures), parser.options, {})
        content += f"<h2>{escape(heading)}</h2>\n{added}"
    template = _environment().get_template("page.html.j2")
    return template.render(title=escape(title), content=content, version=dpft.__version__)


def _figures(figures: Sequence[Markup]) -> list[Token]:
    content = "".join(f"<figure>{figure}</figure>\n" for figure in figures)
    return [Token("html_block", "", 0, content=content)]


def score(value: float, rounded: int | None = None) -> str:
    """Return a score as it is printed.

    Args:
        value: The score.
        rounded: Significant digits that it was rounded to, of which no more are printed.
    """
    return f"{value:.4f}" if rounded is None else f"{value:g}"


def digits(value: float, rounded: int | None = None) -> str:
    """Return a score in three digits; those before the point all stand.

    >>> digits(60.5321), digits(0.6512), digits(1234.5), digits(9.999), digits(0.0)
    ('60.5', '0.651', '1234', '10.0', '0')
    """
    if value == 0 or rounded is not None:
        return f"{value:g}"
    exponent = int(f"{value:.2e}".partition("e")[2])
    return f"{value:.{max(0, 2 - exponent)}f}" if exponent >= -4 else f"{value:.2e}"


def printed(value: Any) -> str:
    """Return a value of the configuration as it is printed."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {part}" for name, part in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def line(text: object) -> str:
    """Return a text that fits a cell of a Markdown table and holds no HTML."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def indented(text: str) -> str:
    """Return a text as an indented block of Markdown, which no text can end."""
    return "\n".join(f"    {text_line}" for text_line in text.splitlines())


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("dpft.reports"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"score": score, "indented": indented, "line": line}
    return environment


STYLE = {
    "svg.fonttype": "none",
    # a name may hold dollar signs
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "font.size": 10.0,
}
NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
COLORS = ("#0b5cad", "#c4501b", "#2e7d32", "#7b3fa0", "#8a6d00", "#00798c", "#b0305c", "#555555")


def draw_svg(
    draw: Callable[["Axes"], None],
    *,
    name: str,
    label: str,
    width: float = 6.6,
    height: float = 3.3,
) -> Markup:
    """Return a drawing as an ``<svg>`` element that fits the width it is given."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", {**STYLE, "svg.hashsalt": name}]):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure.add_subplot())
        buffer = io.StringIO()
        with warnings.catch_warnings():
            # The reader's font draws the names, which are text in the file.
            warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
            figure.savefig(buffer, format="svg", metadata=NO_METADATA)
    drawn = buffer.getvalue()
    element = drawn[drawn.index("<svg") :]
    element = re.sub(r'\bid="([\w.]+_\d+)"', rf'id="{escape(name)}-\1"', element)
    return Markup(element.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1))


def epsilon_points(privacy: RunPrivacy) -> list[tuple[int, float]]:
    """Return numbers of steps, and an upper bound of epsilon after each.

    Empty for a run whose record has no curve: one without privacy, the training of a synthesis, and
    the best of a search, whose own steps cost less than what was spent.

    Guarantees:
        Each bound is that of the run's curve, or the headline if that is lower, because it covers
        all steps and so the first ones.
    """
    if not isinstance(privacy, PrivateRun) or privacy.epsilon_curve is None:
        return []
    last_step, curve = max(1, privacy.steps_taken), privacy.epsilon_curve
    points = [
        (steps, min(bound, privacy.epsilon))
        for steps, bound in zip(curve.steps, curve.epsilons, strict=True)
        if steps < last_step
    ]
    return [*points, (last_step, privacy.epsilon)]


def epsilon_plot(privacy: RunPrivacy) -> Markup | None:
    """Return epsilon against steps with the headline at its end; None where there is no point."""
    points = epsilon_points(privacy)
    if not points or not isinstance(privacy, PrivateRun) or privacy.epsilon_curve is None:
        return None
    from matplotlib.ticker import MaxNLocator

    last = points[-1][0]
    accountants = sorted(  # the run's own accountant first
        set(privacy.epsilon_curve.accountants), key=lambda name: (name != privacy.accountant, name)
    )

    def draw(axes: "Axes") -> None:
        steps, bounds = [0, *(step for step, _ in points)], [0.0, *(eps for _, eps in points)]
        # to the next point's height: a line between two points would lie below the bound
        label = f"upper bound after so many steps ({', '.join(accountants)})"
        axes.step(steps, bounds, where="pre", color=COLORS[0], label=label)
        headline = f"headline ({privacy.accountant})"
        axes.plot([last], [privacy.epsilon], "o", color=COLORS[1], label=headline, clip_on=False)
        axes.set(xlabel="noisy steps taken", ylabel="ε", xlim=(0, last * 1.02))
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False, loc="lower right")

    label = f"epsilon grows with the steps to {eps_text(privacy.epsilon)} after {last}"
    return draw_svg(draw, name="epsilon", label=label)


def heat_map(
    cells: Sequence[Sequence[float | None]],
    *,
    name: str,
    metric: str,
    rows: tuple[str, Sequence[str]],
    columns: tuple[str, Sequence[str]],
    scale: tuple[float, float],
) -> Markup:
    """Return means over two keys as a grid of colors with the numbers in them."""
    least, most = scale

    def draw(axes: "Axes") -> None:
        numbers = [[math.nan if value is None else value for value in row] for row in cells]
        # a mesh, not an image, which would be pixels in the page
        axes.pcolormesh(
            numbers, cmap="viridis", vmin=least, vmax=most, edgecolors="white", linewidth=1
        )
        for y, row in enumerate(cells):
            for x, value in enumerate(row):
                color = "black" if value is None or value > (least + most) / 2 else "white"
                text = "–" if value is None else f"{value:.4g}"
                axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=color)
        axes.set_xticks([x + 0.5 for x in range(len(columns[1]))], columns[1])
        axes.set_yticks([y + 0.5 for y in range(len(rows[1]))], rows[1])
        axes.set(xlabel=columns[0], ylabel=rows[0], title=metric)
        axes.grid(False)
        axes.invert_yaxis()

    label = f"{metric} over {rows[0]} and {columns[0]}, as a heat map"
    height = 1.4 + 0.42 * len(rows[1])
    return draw_svg(draw, name=name, label=label, height=height)
