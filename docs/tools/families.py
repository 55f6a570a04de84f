"""Write the tables of docs/how-to/model-families.md: what works for each model family.

Run: make families. The tests in tests/zoo write the results of each family into a folder. If dpft
rejects several families for the same reason, their cells have the same number, and the list below
the tables contains the reason once.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from docs.tools.model_size import write
from tests.zoo.families import FAMILIES
from tests.zoo.features import LACKS
from tests.zoo.methods import METHOD_SETTINGS

PAGE = Path(__file__).resolve().parents[1] / "how-to" / "model-families.md"
FEATURE_HEADS = {name: f"`{name}`" for name in ("train", "eval", "generate", "export")} | {
    "lora": "LoRA",
    "classify": "classify",
    "chat": "chat",
}
METHOD_HEADS = {name: f"`{name}`" for name in METHOD_SETTINGS}
NEUTRAL = (
    (r"The model's module \S+ \(\w+\)", "A module of the model"),
    (r" for model type '[\w-]+'\. .*", " for the family. Name the output projections."),
    (r"no parameter of \w+ to train", "no parameter of the family to train"),
    (r", got \w+, which is seq2seq and answers with label words\. Try: ", ". T5 and BART need "),
    (r", got \w+For\w+([;.])", r"\1"),
)
"""Patterns of the text that differs between families in one reason, and the replacements."""


class Notes:
    """The reasons for rejections, in the order in which they are first used."""

    def __init__(self) -> None:
        """Start with an empty list."""
        self.reasons: list[str] = []

    def cell(self, result: str) -> str:
        """Return the content of a cell: the result, or "no" with the number of the reason."""
        if " " not in result:
            return result
        reason = result
        for pattern, replacement in NEUTRAL:
            reason = re.sub(pattern, replacement, reason)
        if reason not in self.reasons:
            self.reasons.append(reason)
        return f"no ({self.reasons.index(reason) + 1})"


def table(
    heads: Mapping[str, str], results: Mapping[str, Mapping[str, str]], notes: Notes
) -> list[str]:
    """Return the lines of a Markdown table with one row for each family.

    Args:
        heads: The column heading of each result.
        results: The results of each family, by the family's title.
        notes: Collects the reasons for rejections.
    """
    lines = [f"| family | {' | '.join(heads.values())} |", f"|---{'|---' * len(heads)}|"]
    for title, cells in results.items():
        row = [notes.cell(cells.get(name, LACKS)) for name in heads]
        lines.append(f"| {title} | {' | '.join(row)} |")
    return lines


def page(folder: Path) -> list[str]:
    """Return the lines of the generated part of the page.

    Args:
        folder: Contains the test results, one file for each family.
    """
    features: dict[str, Mapping[str, str]] = {}
    methods: dict[str, Mapping[str, str]] = {}
    for name, family in FAMILIES.items():
        results = json.loads((folder / f"{name}.json").read_text())
        features[family.title] = results["features"]
        if results["methods"]:
            methods[family.title] = results["methods"]
    notes = Notes()
    commands = table(FEATURE_HEADS, features, notes)
    clipped = table(METHOD_HEADS, methods, notes)
    reasons = [f"{number}. {reason}" for number, reason in enumerate(notes.reasons, 1)]
    return ["", *commands, "", *clipped, "", "Reasons:", "", *reasons, ""]


if __name__ == "__main__":
    write(PAGE, page(Path(sys.argv[1])))
