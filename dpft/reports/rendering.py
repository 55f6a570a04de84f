"""Rendering of reports: Markdown from templates, HTML from Markdown, plots as inline SVG.

Users open a report in a browser, and names or texts in the report may come from a file or a model.
The Markdown therefore contains no HTML from outside, and the page escapes all HTML. Links lead to
arXiv only. The SVG of a plot has the same bytes each time and contains no address and no script.
Text in a plot stays text, so that it can be searched and read by screen readers.
"""

import difflib
import io
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


ARXIV = re.compile(r"\barXiv:? ?(\d{4}\.\d{4,5})")
ARXIV_ADDRESS = re.compile(r"https://arxiv\.org/abs/\d{4}\.\d{4,5}")
SYMBOLS = {"epsilon": "ε", "delta": "δ"}
BEFORE, AFTER = "Before", "After"
"""Labels of the texts of a model before and after training."""


def render_markdown(template: str, **values: Any) -> str:
    """Return a filled-in Markdown template; templates escape values with the filter ``line``."""
    return _environment().get_template(template).render(**values)


class _Parser(MarkdownIt):
    """A Markdown parser without HTML and images, and with links to arXiv only."""

    def __init__(self) -> None:
        super().__init__("commonmark", {"html": False})
        self.enable("table").disable(["image", "autolink", "reference"])

    def validateLink(self, url: str) -> bool:  # noqa: N802 -- the name that markdown-it calls
        return ARXIV_ADDRESS.fullmatch(url) is not None


def render_page(
    title: str, markdown: str, plots: Mapping[str, Sequence[Markup]] = MappingProxyType({})
) -> str:
    """Render a Markdown report as an HTML page that runs no script and fetches nothing.

    HTML in the Markdown is shown as text. Images and links (except to arXiv) are shown as text too,
    because their addresses may come from a file or a model. The page folds sections of level 4, and
    highlights the differences between the texts before and after training.

    Args:
        title: Title of the page, as plain text.
        markdown: The whole report.
        plots: Figures by the heading of their section. They are next to the first table of the
            section. If the report has no such heading, the heading and its figures are added at
            the end.
    """
    parser = _Parser()
    left = {heading: _figures(figures) for heading, figures in plots.items() if figures}
    sections: list[list[Token]] = [[]]
    for token in parser.parse(markdown):
        if token.type == "heading_open" and token.level == 0:
            sections.append([])
        sections[-1].append(token)
    tokens = sections[0]
    for section in sections[1:]:
        tokens += _section(section, left.pop(section[1].content, ""))
    tokens += [_html(f"<h2>{escape(name)}</h2>\n{added}") for name, added in left.items()]
    content = parser.renderer.render(tokens, parser.options, {})
    template = _environment().get_template("page.html.j2")
    return template.render(title=escape(title), content=content, version=dpft.__version__)


def _section(tokens: list[Token], figures: str) -> list[Token]:
    """Return a section with its figures, its differences highlighted, and folded at level 4."""
    tokens, kinds = _with_differences(tokens), [token.type for token in tokens]
    if figures and "table_close" in kinds:
        first, last = kinds.index("table_open"), kinds.index("table_close") + 1
        beside = _html('<div class="beside">\n'), *tokens[first:last], _html(f"{figures}</div>\n")
        tokens = [*tokens[:first], *beside, *tokens[last:]]
    elif figures:
        tokens = [*tokens[:3], _html(figures), *tokens[3:]]
    if tokens[0].tag != "h4":
        return tokens
    summary = _html("<details>\n<summary>"), tokens[1], _html("</summary>\n")
    return [*summary, *tokens[3:], _html("</details>\n")]


def _with_differences(tokens: Sequence[Token]) -> list[Token]:
    """Return the tokens, with changes marked in each text after training."""
    shown, label, before = [], "", ""
    for token in tokens:
        label = token.content if token.type == "inline" else label
        if token.type == "code_block" and label == f"{BEFORE}:":
            before = token.content
        elif token.type == "code_block" and label == f"{AFTER}:" and before:
            token, before = _html(differences(before, token.content.rstrip())), ""
        shown.append(token)
    return shown


def differences(before: str, after: str) -> str:
    """Return ``after`` as an HTML code block in which words that are not in ``before`` are marked.

    >>> differences("The <old> inn", "The <new> inn")
    '<pre><code>The &lt;<mark>new</mark>&gt; inn</code></pre>'
    """
    old, new = (re.findall(r"\w+|\s+|[^\w\s]", text) for text in (before, after))
    content, changes = "", difflib.SequenceMatcher(str.isspace, old, new, autojunk=False)
    for kind, _, _, start, end in changes.get_opcodes():
        piece = str(escape("".join(new[start:end])))
        content += f"<mark>{piece}</mark>" if piece and kind != "equal" else piece
    return f"<pre><code>{content}</code></pre>"


def _figures(figures: Sequence[Markup]) -> str:
    return "".join(f"<figure>{figure}</figure>\n" for figure in figures)


def _html(content: str) -> Token:
    return Token("html_block", "", 0, content=content)


def score(value: float, rounded: int | None = None) -> str:
    """Return a score as it is printed.

    Args:
        value: The score.
        rounded: Number of significant digits of a rounded score; None for an unrounded score.
    """
    return f"{value:.4f}" if rounded is None else f"{value:g}"


def digits(value: float, rounded: int | None = None) -> str:
    """Return a score with three significant digits, or with all digits before the point.

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
    """Return text for a Markdown table cell: escape HTML, and turn arXiv numbers into links."""
    text = " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
    return ARXIV.sub(r"[\g<0>](https://arxiv.org/abs/\1)", text)


def symbols(text: str) -> str:
    """Return a sentence with the words replaced by ε and δ, but not in keys (``privacy.delta``).

    >>> symbols("epsilon at delta = 0.1 (privacy.delta=0.1)")
    'ε at δ = 0.1 (privacy.delta=0.1)'
    """
    return re.sub(r"(?<![\w.])(epsilon|delta)\b(?!=)", lambda word: SYMBOLS[word[0]], text)


def indented(text: str) -> str:
    """Return a text as an indented code block of Markdown, which the text itself cannot end."""
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
    environment.filters |= {
        "score": score, "indented": indented, "line": line, "symbols": symbols,
    }  # fmt: skip
    return environment


STYLE = {
    "svg.fonttype": "none",
    # A name may contain dollar signs.
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
    """Return a drawing as an ``<svg>`` element; ``width`` and ``height`` are in inches."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", {**STYLE, "svg.hashsalt": name}]):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure.add_subplot())
        buffer = io.StringIO()
        with warnings.catch_warnings():
            # The browser draws the names, which are text in the file, in a font of its own.
            warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
            figure.savefig(buffer, format="svg", metadata=NO_METADATA)
    drawn = buffer.getvalue()
    element = drawn[drawn.index("<svg") :]
    element = re.sub(r'\bid="([\w.]+_\d+)"', rf'id="{escape(name)}-\1"', element)
    return Markup(element.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1))


def epsilon_points(privacy: RunPrivacy) -> list[tuple[int, float]]:
    """Return step numbers, and an upper bound on ε after each step.

    The list is empty if the record has no curve: for runs without privacy, for the training of a
    synthesis, and for the best run of a search, whose own steps cost less than the search.

    Guarantees:
        Each bound is the value of the curve, but at most the ε of the whole run. The ε of the whole
        run covers all steps, and therefore also the first steps.
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
    """Return a plot of ε against steps, with the ε of the run at its end; None without points."""
    points = epsilon_points(privacy)
    if not points or not isinstance(privacy, PrivateRun) or privacy.epsilon_curve is None:
        return None
    from matplotlib.ticker import MaxNLocator

    last = points[-1][0]
    accountants = sorted(  # the accountant of the run first
        set(privacy.epsilon_curve.accountants), key=lambda name: (name != privacy.accountant, name)
    )

    def draw(axes: "Axes") -> None:
        steps, bounds = [0, *(step for step, _ in points)], [0.0, *(eps for _, eps in points)]
        # The bound of the next point holds between points; a straight line would be below it.
        label = f"upper bound ({', '.join(accountants)})"
        axes.step(steps, bounds, where="pre", color=COLORS[0], label=label)
        headline = f"this run: ε = {eps_text(privacy.epsilon)}"
        axes.plot([last], [privacy.epsilon], "o", color=COLORS[1], label=headline, clip_on=False)
        axes.set(xlabel="noisy steps", ylabel="ε", xlim=(0, last * 1.02))
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False, loc="lower right")

    label = f"ε grows with the steps to {eps_text(privacy.epsilon)} after step {last}"
    return draw_svg(draw, name="epsilon", label=label, width=4.6, height=3.1)
