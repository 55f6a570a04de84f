"""A figure of matplotlib as inline SVG: the same bytes each time, no address, no script.

Texts stay texts, which a reader can search and a screen reader can read.
"""

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    """Returns a drawing as an ``<svg>`` element that fits the width it is given.

    Args:
        draw: Draws on empty axes.
        name: Tells its elements from those of other figures on a page.
        label: What it shows, for those who cannot see it.
        width: In inches; the text's size is relative to it.
        height: In inches.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", {**STYLE, "svg.hashsalt": name}]):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata=NO_METADATA)
    drawn = buffer.getvalue()
    element = drawn[drawn.index("<svg") :]
    element = re.sub(r'\bid="([\w.]+_\d+)"', rf'id="{escape(name)}-\1"', element)
    return Markup(element.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1))
