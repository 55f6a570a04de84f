"""What an audit of synthetic records has found, as JSON and for people."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpft.audit.canaries_found import CanariesFound, canary_record
from dpft.audit.leakage import Leakage
from dpft.audit.near_duplicates import METHOD
from dpft.audit.synthetic_file import SyntheticFile
from dpft.audit.text_quality import MAUVE, Likeness, TextShape
from dpft.audit.utility import Utility
from dpft.files import SCHEMA_VERSION

OWNERS = (
    "private: it compares with records that were trained on or held out, no epsilon covers it, and"
    " it stays with the owner of the data"
)


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Synthetic texts against real ones."""

    reference: str
    """What the real ones are, in words."""
    public: bool
    """Whether those may be shown."""
    shape: TextShape
    """The real ones by themselves."""
    likeness: Likeness | str
    """The two against each other, or why they are not compared."""

    def record(self) -> dict[str, Any]:
        """Returns the numbers as JSON has them."""
        alike = self.likeness
        return {
            "reference": self.reference,
            "reference_is_public": self.public,
            "real": self.shape.record(),
            **({"not_compared": alike} if isinstance(alike, str) else alike.record()),
        }


@dataclass(frozen=True, kw_only=True)
class SyntheticResult:
    """What was found of synthetic records; private but for what ``synthetic_page`` releases."""

    file: SyntheticFile
    limit: int
    shape: TextShape
    """The synthetic texts by themselves."""
    quality: Quality | None
    """None where no real records are there."""
    utility: Utility | str
    """What a classifier learns of them, or why none is taught."""
    leakage: Leakage | None
    """None where the training records are not there."""
    most_found: Sequence[tuple[int, str]]
    """Training records of which the longest runs of words were found."""
    canaries: Mapping[str, CanariesFound]
    """None where the run has no canaries."""
    not_there: Mapping[str, str]
    """Why some records are not compared, in words, by what they are."""
    promise: tuple[float, float] | None
    """The run's epsilon and delta; None where it promises none."""

    def record(self) -> dict[str, Any]:
        """Returns what ``output=json`` prints."""
        utility = self.utility
        return {
            "schema_version": SCHEMA_VERSION,
            "audit": "synthetic",
            "private": True,
            "note": OWNERS,
            "synthetic": self.file.path.name,
            "limit": self.limit,
            "near_duplicates": METHOD,
            "alone": self.shape.record(),
            "quality": None if self.quality is None else self.quality.record(),
            "utility": {"not_computed": utility} if isinstance(utility, str) else utility.record(),
            "leakage": None if self.leakage is None else self.leakage.record(),
            "canaries": canary_record(self.canaries),
            "not_there": dict(self.not_there),
            "not_computed": {"mauve": MAUVE},
            "epsilon": None if self.promise is None else self.promise[0],
            "delta": None if self.promise is None else self.promise[1],
            "not_released": self.file.why_private,
        }

    def table(self) -> str:
        """Returns the numbers for people, a line for each."""
        lines = []
        for name, part in self.record().items():
            if isinstance(part, dict) and part and name != "not_computed":
                lines += [name, *_lines(part, "  ")]
        lines.append(MAUVE + ".")
        if self.file.why_private is not None:
            lines.append(f"Nothing may be released: {self.file.why_private}.")
        return "\n".join([*lines, f"This is {OWNERS}."])


def _lines(part: Mapping[str, Any], indent: str) -> list[str]:
    lines = []
    for name, value in part.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{name}", *_lines(value, indent + "  ")]
        elif value is not None:
            shown = f"{value:.4g}" if isinstance(value, float) else str(value)
            lines.append(f"{indent}{name:<{32 - len(indent)}}{shown}")
    return lines
