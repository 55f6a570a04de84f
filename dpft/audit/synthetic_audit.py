"""The work of ``audit=synthetic``: usefulness and leakage of synthetic records, on two pages.

Quality is measured on what a model wrote, against records that it was not trained on; leakage on
training records, with the others as the control. What is told of the synthetic text alone, and
against a published split, may be released with it (`released_page`): a reader who has both can
compute it. All else is private, and so is a choice made by it: to leave out a synthetic record
because it is like a training record is no post-processing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpft import __version__
from dpft.audit.audited_run import RunRecords, Unseen, check_writes_texts, records_and_unseen
from dpft.audit.base import import_extra
from dpft.audit.plots import divergence_plot, lengths_plot, runs_plot
from dpft.audit.synthetic_text import (
    MAUVE,
    Likeness,
    SyntheticFile,
    TextShape,
    label_task,
    likeness,
    read_synthetic,
    shape_of,
    utility_of,
)
from dpft.audit.text_overlap import (
    METHOD,
    Leakage,
    canaries_found,
    leakage_of,
    most_found,
    written_text,
)
from dpft.config.schema import TrainConfig
from dpft.evaluation.predictions import spread
from dpft.files import (
    PRIVACY,
    PRIVATE_SYNTHETIC_AUDIT,
    SYNTHETIC_AUDIT,
    audit_path,
    hold_run,
    private_audit_path,
    write_text,
)
from dpft.models.loading import quiet_transformers
from dpft.records import audits
from dpft.records.audits import CanariesInTexts, ClassifierScores, Utility
from dpft.records.promises import RunPrivacy, guarantee, is_promised
from dpft.reports.pages import render_html
from dpft.reports.scores import tone_of
from dpft.reports.terminal import Grid
from dpft.runs.guarantee import privacy_of
from dpft.runs.saved_run import saved_run
from dpft.runs.task_model import trained_model_of_run
from dpft.tasks.base import Example, TextTask
from dpft.training.training_config import DeviceConfig

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
    """Findings on synthetic records; private but for `released_page`."""

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
        """Returns the record that ``output=json`` prints."""
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
        """Returns tables and sentences for a terminal: leakage first, then quality and utility.

        The numbers that the pages have beside plots are left to them.
        """
        why = self.file.why_private
        not_released = [] if why is None else [f"Nothing of this may be released: {why}."]
        return [
            *self._leakage_parts(),
            *[f"Not compared with {what}: {why}" for what, why in self.not_there.items()],
            *self._quality_parts(),
            *self._utility_parts(),
            *not_released,
            f"This is {OWNERS}.",
        ]

    def _leakage_parts(self) -> list[Grid | str]:
        if self.leakage is None:
            return []
        found = self.leakage
        sides = {TRAINING: found.training.record()}
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
        scores = _scores(self.utility)
        rows: list[tuple[str, str, str]] = []
        why: list[str] = []
        for name, one in scores.items():
            if isinstance(one, str):
                why.append(f"Not taught by {name}: {one}.")
            else:
                rows.append((name, f"{one.accuracy:.4f}", f"{one.macro_f1:.4f}"))
        title = f"What a classifier learns, tested on {self.utility.tested} real records"
        return [Grid(title=title, columns=("taught by", "accuracy", "macro F1"), rows=rows), *why]


def _grid(title: str, sides: Mapping[str, Any], quantities: Sequence[tuple[str, str, str]]) -> Grid:
    """Returns a table of quantities, in words, by key and format, a column for each side."""
    rows = [
        (name, *(format(getattr(side, key), form) for side in sides.values()))
        for name, key, form in quantities
    ]
    return Grid(title=title, columns=("", *sides), rows=rows)


TEMPLATE = "synthetic_audit.html.j2"
TRAINING = "training records"
"""Name of the real texts where there are no others, and of what teaches a classifier."""
TAUGHT, COMMONEST = "synthetic records", "none: always the commonest class"
"""Data that teach a classifier whose scores may be released."""


def _scores(utility: Utility) -> dict[str, ClassifierScores | str]:
    """Returns what was learned, by the data that taught it; private."""
    return {
        TAUGHT: utility.synthetic,
        TRAINING: utility.training,
        COMMONEST: utility.commonest,
    }


def released_page(result: SyntheticResult) -> str:
    """Returns the page that may be released."""
    quality = result.quality if result.quality is not None and result.quality.public else None
    utility = None if quality is None or isinstance(result.utility, str) else result.utility
    scores = {} if utility is None else {TAUGHT: utility.synthetic, COMMONEST: utility.commonest}
    return render_html(
        TEMPLATE,
        owners=None,
        headline=list(result.file.notes),
        tone=tone_of(result.promise),
        leakage=None,
        **_parts(result.file.path.name, result.shape, quality, scores),
    )


def private_page(result: SyntheticResult) -> str:
    """Returns the page for the owner of the data."""
    scores = {} if isinstance(result.utility, str) else _scores(result.utility)
    return render_html(
        TEMPLATE,
        owners=OWNERS,
        headline=list(result.file.notes),
        tone=tone_of(result.promise),
        leakage=_owners_parts(result),
        **_parts(result.file.path.name, result.shape, result.quality, scores),
    )


def _parts(
    file: str, shape: TextShape, quality: Quality | None, scores: dict[str, ClassifierScores | str]
) -> dict[str, Any]:
    """Returns the template's values that both pages share."""
    shapes = {"synthetic": shape.record()}
    lengths = {"synthetic": shape.lengths}
    alike: Likeness | str | None = None
    if quality is not None:
        shapes[quality.reference] = quality.shape.record()
        lengths[quality.reference] = quality.shape.lengths
        alike = quality.likeness
    return {
        "title": f"Synthetic records: {file}",
        "version": __version__,
        "shapes": shapes,
        "lengths": lengths_plot(lengths),
        "reference": None if quality is None else quality.reference,
        "likeness": alike if isinstance(alike, Likeness) else None,
        "not_compared": alike if isinstance(alike, str) else None,
        "ngrams": divergence_plot(alike, quality.reference)
        if quality is not None and isinstance(alike, Likeness)
        else None,
        "scores": {name: one for name, one in scores.items() if not isinstance(one, str)},
        "no_scores": {name: one for name, one in scores.items() if isinstance(one, str)},
        "mauve": MAUVE,
    }


def _owners_parts(result: SyntheticResult) -> dict[str, Any]:
    """Returns the template's values of the owner's page alone."""
    leakage = result.leakage
    sides = {}
    if leakage is not None:
        sides[TRAINING] = leakage.training.record()
        if leakage.unseen is not None:
            sides["records not trained on"] = leakage.unseen.record()
    return {
        "found": leakage,
        "sides": sides,
        "runs": None if leakage is None else runs_plot(leakage, result.promise),
        "bounded": result.promise if leakage is not None and leakage.unseen is not None else None,
        "most_found": result.most_found,
        "canaries": result.canaries,
        "not_there": result.not_there,
        "why_private": result.file.why_private,
        "no_utility": result.utility if isinstance(result.utility, str) else None,
    }


def audit_synthetic(
    run: Path, synthetic: Path, *, limit: int, label: str | None = None, device: DeviceConfig
) -> SyntheticResult:
    """Compares synthetic records with a run's, and writes a private page and one to release.

    Raises:
        InputError: The run cannot be read, or its model writes no texts; or the synthetic records
            cannot be read, or are another run's; or a library is missing.
        StateError: A file of the run is damaged.
    """
    quiet_transformers()
    device.prepare()
    config = saved_run(str(run))
    task = check_writes_texts(config)
    import_extra("datasketch")
    if label is not None:
        label_task(task, label)
    privacy = privacy_of(run) if (run / PRIVACY).exists() else None
    file = read_synthetic(run, task, synthetic.expanduser(), privacy)
    with hold_run(run):
        result = _compared(run, config, task, file, limit, label, privacy)
        path = private_audit_path(run, PRIVATE_SYNTHETIC_AUDIT)
        write_text(path, private_page(result), mode=0o600)
        (run / SYNTHETIC_AUDIT).unlink(missing_ok=True)  # of an earlier audit
        if result.file.why_private is None:
            write_text(audit_path(run, SYNTHETIC_AUDIT), released_page(result))
    return result


def _compared(
    run: Path,
    config: TrainConfig,
    task: TextTask,
    file: SyntheticFile,
    limit: int,
    label: str | None,
    privacy: RunPrivacy | None,
) -> SyntheticResult:
    encoding = trained_model_of_run(run, config).encoding(task, max_new_tokens=None)
    records, unseen = records_and_unseen(run, config, encoding)
    not_there = {}
    if not isinstance(records, RunRecords):
        not_there[TRAINING] = records
    if not isinstance(unseen, Unseen):
        not_there["other records"] = unseen
    texts = file.texts(limit)
    training = _texts(records.training, file, limit) if isinstance(records, RunRecords) else None
    others = _texts(unseen.records, file, limit) if isinstance(unseen, Unseen) else None
    leakage = None if training is None else leakage_of(texts, training, others)
    return SyntheticResult(
        file=file,
        limit=limit,
        shape=shape_of(texts),
        quality=_quality(texts, training, others, unseen),
        utility=utility_of(config, file.path, label, records, unseen, limit),
        leakage=leakage,
        most_found=[] if leakage is None else most_found(leakage.training, training or []),
        canaries=canaries_found(run, texts),
        not_there=not_there,
        promise=guarantee(privacy) if privacy and is_promised(privacy) else None,
    )


def _texts(records: Sequence[Example], file: SyntheticFile, limit: int) -> list[str] | None:
    """Returns the texts of records as a model would write them; None where there are none."""
    chosen = [records[at] for at in spread(len(records), limit)] if records else []
    return [written_text(each, prompted=file.prompted) for each in chosen] or None


def _quality(
    texts: Sequence[str],
    training: Sequence[str] | None,
    others: Sequence[str] | None,
    unseen: Unseen | str,
) -> Quality | None:
    """Returns texts against real ones, which were not trained on where there are such."""
    reference, public, real = TRAINING, False, training
    if others is not None and isinstance(unseen, Unseen):
        reference, public, real = f"{unseen.split} records".replace("_", "-"), unseen.public, others
    if real is None:
        return None
    return Quality(
        reference=reference, public=public, shape=shape_of(real), likeness=likeness(texts, real)
    )


def written_pages(run: Path, result: SyntheticResult) -> list[str]:
    """Returns sentences that say where the pages of an audit are."""
    private = f"A page with plots, for the owner of the data alone: {run / PRIVATE_SYNTHETIC_AUDIT}"
    if result.file.why_private is not None:
        return [private]
    return [private, f"A page that may be released: {run / SYNTHETIC_AUDIT}"]
