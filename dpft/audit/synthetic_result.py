"""What an audit of synthetic records has found, as JSON and for people."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpft.audit.leakage import Leakage
from dpft.audit.near_duplicates import METHOD
from dpft.audit.synthetic_file import SyntheticFile
from dpft.audit.text_quality import MAUVE, Likeness, TextShape
from dpft.records import audits
from dpft.records.audits import CanariesInTexts, Utility
from dpft.reports.terminal import Grid

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

    def record(self) -> audits.TextQuality:
        """Returns the numbers as they are written down."""
        alike = self.likeness
        apart = audits.TextQuality(
            reference=self.reference, reference_is_public=self.public, real=self.shape.record()
        )
        if isinstance(alike, str):
            return replace(apart, not_compared=alike)
        return replace(
            apart,
            records=alike.records,
            two_sample_accuracy=alike.accuracy,
            two_sample_p_value=alike.p_value,
            ngram_divergence=_of_ngrams(alike.divergences),
            ngram_divergence_control=_of_ngrams(alike.control),
        )


def _of_ngrams(divergences: Mapping[int, float]) -> audits.NgramDivergence:
    return audits.NgramDivergence(**{f"of_{n}": value for n, value in divergences.items()})


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
    canaries: Mapping[str, CanariesInTexts]
    """None where the run has no canaries."""
    not_there: Mapping[str, str]
    """Why some records are not compared, in words, by what they are."""
    promise: tuple[float, float] | None
    """The run's epsilon and delta; None where it promises none."""

    def record(self) -> audits.SyntheticAudit:
        """Returns what ``output=json`` prints."""
        utility = self.utility
        return audits.SyntheticAudit(
            note=OWNERS,
            synthetic=self.file.path.name,
            limit=self.limit,
            no_rows=self.file.no_rows,
            near_duplicates=METHOD,
            alone=self.shape.record(),
            quality=None if self.quality is None else self.quality.record(),
            utility=audits.NoUtility(not_computed=utility) if isinstance(utility, str) else utility,
            leakage=None if self.leakage is None else self.leakage.record(),
            canaries=self.canaries,
            not_there=self.not_there,
            not_computed={"mauve": MAUVE},
            epsilon=None if self.promise is None else self.promise[0],
            delta=None if self.promise is None else self.promise[1],
            not_released=self.file.why_private,
        )

    def parts(self) -> list[Grid | str]:
        """Returns what people read: what was found of single records first, then what it is worth.

        The numbers that the pages have beside plots are left to them.
        """
        return [
            *self._leakage_parts(),
            *[f"Not compared with {what}: {why}" for what, why in self.not_there.items()],
            *self._quality_parts(),
            *self._utility_parts(),
            *([] if self.file.why_private is None else [self._not_released()]),
            f"This is {OWNERS}.",
        ]

    def _not_released(self) -> str:
        return f"Nothing of this may be released: {self.file.why_private}."

    def _leakage_parts(self) -> list[Grid | str]:
        if self.leakage is None:
            return []
        found = self.leakage
        sides = {"training records": found.training.record()}
        if found.unseen is not None:
            sides["others"] = found.unseen.record()
        quantities = (
            ("records compared", "records", "d"),
            ("that are a synthetic text, %", "exact_percent", ".2f"),
            ("with a near duplicate, %", "near_duplicate_percent", ".2f"),
            ("words in a row found: median", "longest_run_median", "g"),
            ("words in a row found: most", "longest_run_most", "d"),
        )
        parts: list[Grid | str] = [
            _grid("What the synthetic texts hold of single records", sides, quantities),
            f"Synthetic texts that are a training record, but for blanks: {found.copies}.",
        ]
        if found.auc is not None:
            parts.append(
                "A training record has the longer run of words in common than another record with"
                f" probability {found.auc:.3f} (p = {found.p_value:.2g}); 0.5 says that nothing of"
                " single records is there."
            )
        for kind, one in self.canaries.items():
            parts.append(
                f"Canaries {kind.replace('_', ' ')}: {one.found} of {one.canaries} found, at most"
                f" {one.longest_run} words in a row."
            )
        return parts

    def _quality_parts(self) -> list[Grid | str]:
        sides = {"synthetic": self.shape.record()}
        if self.quality is not None:
            sides[self.quality.reference] = self.quality.shape.record()
        quantities = (
            ("texts", "records", "d"),
            ("different ones, %", "distinct_percent", ".1f"),
            ("words: mean", "words_mean", ".1f"),
            ("words: 5 of 100 have at most", "words_5_percent", "g"),
            ("words: 95 of 100 have at most", "words_95_percent", "g"),
            ("different words, as a share of all", "distinct_1", ".3f"),
        )
        parts: list[Grid | str] = [_grid("The texts", sides, quantities)]
        if self.file.no_rows:
            parts.append(
                f"No rows, since their label is none of task.labels: {self.file.no_rows}, left out."
            )
        alike = None if self.quality is None else self.quality.likeness
        if isinstance(alike, str):
            parts.append(f"Not compared: {alike}.")
        elif alike is not None:
            parts.append(
                f"A classifier tells {alike.accuracy:.1%} of them right from"
                f" {list(sides)[-1]} (p = {alike.p_value:.2g}); a coin tells 50 %."
            )
        return parts

    def _utility_parts(self) -> list[Grid | str]:
        if isinstance(self.utility, str):
            return [f"No classifier was taught: {self.utility}."]
        scores = {
            "synthetic records": self.utility.synthetic,
            "training records": self.utility.training,
            "none: always the commonest class": self.utility.commonest,
        }
        rows: list[tuple[str, str, str]] = []
        why: list[str] = []
        for name, one in scores.items():
            if isinstance(one, str):
                why.append(f"Not taught by {name}: {one}.")
            else:
                rows.append((name, f"{one.accuracy:.4f}", f"{one.macro_f1:.4f}"))
        title = f"What a classifier learns, tested on {self.utility.tested} real records"
        return [Grid(title=title, columns=("taught by", "accuracy", "macro F1"), rows=rows), *why]


def _grid(
    title: str,
    sides: Mapping[str, Any],
    quantities: Sequence[tuple[str, str, str]],
) -> Grid:
    """Returns a table of quantities, in words, by key and format, a column for each side."""
    rows = [
        (name, *(format(getattr(side, key), form) for side in sides.values()))
        for name, key, form in quantities
    ]
    return Grid(title=title, columns=("", *sides), rows=rows)
