"""report.md and report.html of a private vocabulary, and the table that its command prints.

All of it is public: it follows from privacy.json and from the words that were released.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from dpft.files import HISTOGRAM, PAGE, PRIVACY, REPORT, TOKENIZER, write_text
from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.records.promises import OpenVocabulary, PrivateVocabulary, read_vocabulary
from dpft.reports.epsilon import delta_notes
from dpft.reports.pages import COLORS, draw_svg, render_html, render_markdown
from dpft.reports.scores import tone
from dpft.reports.sections import HEAD_COMMAND

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def counts_plot(counts: Sequence[int], threshold: float) -> Markup:
    """Returns the released counts, the largest first, on logarithmic axes, and the threshold.

    Args:
        counts: One or more, each at least 1.
        threshold: Below which nothing was released.
    """
    from matplotlib.ticker import NullFormatter

    def draw(axes: "Axes") -> None:
        ranked = sorted(counts, reverse=True)
        axes.loglog(range(1, len(ranked) + 1), ranked, marker=".", color=COLORS[0])
        axes.axhline(threshold, color="black", linewidth=0.8, linestyle=":")
        axes.annotate(
            f"threshold {threshold:.3g}", (0, threshold), xycoords=("axes fraction", "data"),
            xytext=(3, 3), textcoords="offset points", ha="left", va="bottom",
        )  # fmt: skip
        axes.set(xlabel="rank of the word", ylabel="noisy count")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())

    return draw_svg(draw, name="counts", label="noisy counts by rank")


LEDGER_NOTE = (
    "The ledger has a first line with the plan and a random number that names the run, one line"
    " that was written before the noise was drawn, and a closing line. The head is the SHA-256 of"
    " the last line:"
    f" `{HEAD_COMMAND}` computes it. No other run has this head. Whoever owns the files could"
    " rewrite them all, so lodge the head above with someone else."
)
COVERAGE = (
    "Covered: the released words with their counts (`histogram.tsv`), and everything made of them:"
    " the tokenizer, and any other vocabulary of the same histogram, at no further cost.",
    "Not covered: other runs on the same records, training with this tokenizer among them; their"
    " costs add up. `dpft train model.tokenizer=RUN` composes both in its own report, and"
    " `dpft account runs=[RUN,OTHER]` any of them.",
    "Not covered: everything under `private/`, which must not be released, and what texts a model"
    " reads: the tokenizer only parts them.",
    "Not private at all: the configuration, the caps and the number of records among it.",
)

OPEN_COVERAGE = (
    "Nothing is covered: the pieces follow from the records' own words, those that one record alone"
    " has among them.",
    "A private run takes this tokenizer only where its texts are said to be public"
    " (`model.tokenizer_is_public=true`).",
)
OPEN_NOTE = "There is no ledger: no noise was drawn, and nothing was spent."


def write_tokenizer_report(folder: Path) -> None:
    """Writes report.md and report.html from the other public files of a run."""
    record = read_vocabulary(folder / PRIVACY)
    if isinstance(record, OpenVocabulary):
        parts = {
            "title": f"Vocabulary of {record.data}",
            "headline": headline(record),
            "tone": tone(record),
            "warnings": [],
            "rows": rows(record),
            "coverage": OPEN_COVERAGE,
            "ledger_note": OPEN_NOTE,
        }
        write_text(folder / PAGE, render_html("tokenizer.html.j2", **parts, plot=None))
        write_text(folder / REPORT, render_markdown("tokenizer.md.j2", **parts))
        return
    lines = (folder / HISTOGRAM).read_text(encoding="utf-8").split("\n")[:-1]
    counts = [int(line.rpartition("\t")[2]) for line in lines]
    parts = {
        "title": f"Private vocabulary of {record.data}",
        "headline": headline(record),
        "tone": tone(record),
        "warnings": [f"Warning: {warning}" for warning in record.warnings],
        "rows": rows(record),
        "coverage": [*COVERAGE, *_delta_notes(record)],
        "ledger_note": LEDGER_NOTE,
    }
    plot = Markup(counts_plot(counts, record.threshold)) if counts else None
    write_text(folder / PAGE, render_html("tokenizer.html.j2", **parts, plot=plot))
    write_text(folder / REPORT, render_markdown("tokenizer.md.j2", **parts))


def headline(record: PrivateVocabulary | OpenVocabulary) -> str:
    """Returns epsilon with all that it depends on, or "NOT PRIVATE"."""
    if isinstance(record, OpenVocabulary):
        return (
            "**NOT PRIVATE: this vocabulary was made without differential privacy"
            " (`privacy=none`), of all words of the records.**"
        )
    if not record.private:
        return (
            "**NOT PRIVATE: reproducible run, its noise was predictable (`privacy.noise_seed`).**"
        )
    relation = record.neighboring_relation.replace("_", " ")
    return (
        f"**(ε = {eps_text(record.epsilon)}, δ = {delta_text(record.delta)})-differentially"
        f" private**, exactly, by the Gaussian mechanism and a threshold; {relation}"
        f" {record.unit}."
    )


def rows(record: PrivateVocabulary | OpenVocabulary) -> list[tuple[str, str]]:
    """Returns the mechanism and what was made by it, quantity and value."""
    made = [("tokenizer", "none yet: see the message of the command")]
    if record.vocab_size is not None:
        made = [
            ("pieces", f"{record.vocab_size}, by {record.algorithm}"),
            ("tokens, special ones and sentinels included", f"{record.tokens}"),
            ("tokenizer's SHA-256", f"`{record.tokenizer_sha256}`"),
        ]
    source = record.num_examples_source
    begun = [] if record.date is None else [("begun on (UTC)", record.date)]
    if isinstance(record, OpenVocabulary):
        size = ("number of examples", f"{record.num_examples} ({source})")
        return [size, *made, ("data", record.data), *begun]
    return [
        ("ε (exact)", eps_text(record.epsilon)),
        ("ε by the classical formula, no bound above 1", eps_text(record.epsilon_classical)),
        ("δ", f"{delta_text(record.delta)}, half for the noise, half for the threshold"),
        ("neighboring relation", record.neighboring_relation),
        ("unit", f"{record.unit}: {record.unit_definition}"),
        ("number of units", f"{record.num_examples} ({source}); ε does not hide it"),
        ("words of a unit that are counted (N)", f"{record.words_per_record}"),
        ("most of one word (m)", f"{record.linf_cap:g}"),
        ("L2 norm of a unit's counts (k)", f"{record.l2_cap:g}"),
        ("noise on each count (standard deviation)", f"{record.noise_std:.6g}"),
        ("threshold", f"{record.threshold:.6g}"),
        ("noise source", record.noise_source),
        ("words that reached the threshold", f"{record.words_kept}"),
        *made,
        ("data", record.data),
        *begun,
        ("ledger", f"{record.ledger.lines} lines, head `{record.ledger.head}`"),
    ]


def table(record: PrivateVocabulary | OpenVocabulary, folder: Path) -> str:
    """Returns what the command prints."""
    shown = [*rows(record), ("tokenizer's folder", str(folder / TOKENIZER))]
    width = max(len(name) for name, _ in shown)
    lines = [f"{name:<{width}}  {value}".replace("`", "") for name, value in shown]
    if isinstance(record, OpenVocabulary):
        return "\n".join([headline(record).replace("*", "").replace("`", ""), *lines])
    lines += [f"warning: {warning}" for warning in record.warnings]
    return "\n".join([*lines, *(f"note: {note}" for note in _delta_notes(record))])


def _delta_notes(record: PrivateVocabulary) -> list[str]:
    return delta_notes(record.num_examples, source=record.delta_source)
