"""Some inputs, what the model wrote, and the references, beside each other to be read: samples.md.

Fewer still stand in metrics.json, from which report.html shows them before and after training.

Texts of a data set may hold anything, so whatever Markdown or HTML would take as markup is escaped:
CommonMark with GitHub's tables shows each text as it is.
"""

from collections.abc import Sequence
from pathlib import Path

from dpft.files import write_text
from dpft.records.scores import Prediction, Sample

SAMPLES = 20
"""Inputs shown, evenly spread over the split."""
SHOWN_ON_PAGE = 3
"""Inputs of a public split in metrics.json, evenly spread, too."""
SHOWN_REFERENCES = 5
"""References shown beside one input; E2E has up to 43."""

_ESCAPES = str.maketrans(
    {
        **{character: f"\\{character}" for character in "\\`*_[]|~$"},
        **{"&": "&amp;", "<": "&lt;", ">": "&gt;"},
        # Control characters have no place in Markdown; a NUL may end the file for its reader.
        **{chr(code): "\N{REPLACEMENT CHARACTER}" for code in range(32)},
        "\t": " ",
    }
)


def write_samples(
    path: Path, predictions: Sequence[Prediction], *, heading: str, note: str = "", private: bool
) -> None:
    """Writes samples.md, under a temporary name first.

    Args:
        path: The file; its folder exists.
        predictions: One per input, in the order of the split.
        heading: What was scored.
        note: A sentence to stand above the samples.
        private: Only the owner may read the file, from its first byte on.
    """
    text = render_samples(predictions, heading=heading, note=note)
    write_text(path, text, mode=0o600 if private else 0o644)


def render_samples(predictions: Sequence[Prediction], *, heading: str, note: str = "") -> str:
    """Returns the Markdown of some predictions.

    Args:
        predictions: One per input, in the order of the split.
        heading: What was scored.
        note: A sentence to stand above the samples.
    """
    places = spread(len(predictions))
    rows = [f"| {place + 1} | {' | '.join(_cells(predictions[place]))} |" for place in places]
    return "\n".join(
        [
            f"# {_inline(heading)}",
            "",
            *([f"**{_inline(note)}**", ""] if note else []),
            f"{len(places)} of {len(predictions)} inputs, evenly spread over the split.",
            "",
            "| # | input | output | references |",
            "|---:|---|---|---|",
            *rows,
            "",
        ]
    )


def sample_records(predictions: Sequence[Prediction]) -> tuple[Sample, ...]:
    """Returns a few inputs, what the model wrote and one reference each, for metrics.json.

    Args:
        predictions: One per input of a public split, in its order.
    """
    chosen = [predictions[place] for place in spread(len(predictions), SHOWN_ON_PAGE)]
    return tuple(
        Sample(
            input=one.input,
            prediction=one.prediction,
            reference=one.references[0] if one.references else "",
        )
        for one in chosen
    )


def spread(count: int, most: int = SAMPLES) -> list[int]:
    """Returns at most ``most`` places among ``count``, evenly spread from the first on."""
    chosen = min(count, most)
    return [index * count // chosen for index in range(chosen)]


def _cells(prediction: Prediction) -> list[str]:
    references = [_cell(reference) for reference in prediction.references[:SHOWN_REFERENCES]]
    left_out = len(prediction.references) - len(references)
    if left_out:
        references.append(f"*and {left_out} more*")
    separator = "<br>&bull; " if len(references) > 1 else ""
    return [
        _cell(prediction.input),
        _cell(prediction.prediction),
        separator.removeprefix("<br>") + separator.join(references),
    ]


def _cell(text: str) -> str:
    """Returns a text as a cell of a Markdown table, its line ends as ``<br>``."""
    return "<br>".join(map(_inline, text.splitlines())) if text.strip() else "*empty*"


def _inline(text: str) -> str:
    return text.translate(_ESCAPES).strip()
