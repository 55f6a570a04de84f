"""What synthetic text holds of training records: copies, near copies, long stretches, canaries.

A text may hold a stretch of a record because the record was trained on, or because everybody
writes so. Records that were not trained on say how much is everybody's: each measure is taken of
them, too, and the two are compared. Under (epsilon, delta)-differential privacy the share of
training records of which anything is found is, in expectation, at most e^epsilon times the share of
other records of the same distribution, plus delta, since to have trained on one changes the
probability of each outcome by no more. Which canaries stand in the text is private, as they and
their coins are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dpft.audit.longest_runs import longest_runs
from dpft.audit.near_duplicates import NearDuplicates
from dpft.audit.words import words_of
from dpft.records import audits
from dpft.records.audits import CanariesInTexts, KeptCanaries
from dpft.records.form import read_record
from dpft.run_folder import CANARIES

TAIL = 0.01
"""Share of the records not trained on by which a long run is called long."""
SHOWN = 5
"""Training records that the owner is shown."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What synthetic text holds of some records."""

    longest: tuple[int, ...] = field(repr=False)
    """For each record, how many of its words in a row stand in one synthetic text."""
    exact: int
    """Records that are a synthetic text, but for blanks."""
    near: int
    """Records with a near duplicate among the synthetic texts."""

    def share_of_runs(self, words: int) -> float:
        """Returns the share of the records of which at least so many words in a row were found."""
        return sum(length >= words for length in self.longest) / len(self.longest)

    def limit_of_share(self, words: int) -> float:
        """Returns a bound that ``share_of_runs`` of all such records is below, at 95 %.

        Clopper and Pearson's, for records drawn independently: of few records none may be found by
        chance.
        """
        from scipy.stats import binomtest

        found = sum(length >= words for length in self.longest)
        test = binomtest(found, len(self.longest), alternative="less")
        return float(test.proportion_ci(confidence_level=0.95).high)

    def record(self) -> audits.TextsFound:
        """Returns the numbers as they are written down, shares in percent."""
        count = len(self.longest)
        return audits.TextsFound(
            records=count,
            exact_percent=100 * self.exact / count,
            near_duplicate_percent=100 * self.near / count,
            longest_run_median=float(np.median(self.longest)),
            longest_run_95_percent=float(np.quantile(self.longest, 0.95)),
            longest_run_most=max(self.longest),
        )


@dataclass(frozen=True, kw_only=True)
class Leakage:
    """What was found of training records, beside what was found of others."""

    training: Found
    unseen: Found | None
    """The control; None where there are no such records."""
    copies: int
    """Synthetic texts that are a training record, but for blanks."""
    auc: float | None = None
    """Probability that of a training record a longer run was found than of another, ties half."""
    p_value: float | None = None
    """Of one-sided Mann and Whitney's test that it is above one half."""

    @property
    def tail(self) -> audits.LongRuns | None:
        """The fewest words in a row that at most ``TAIL`` of the others have, and two shares.

        They are of the training records and of others that have as many; None without others.
        A few records copied as a whole move the probability above little, and these much.
        """
        if self.unseen is None:
            return None
        words = 0
        while self.unseen.share_of_runs(words) > TAIL:
            words += 1
        return audits.LongRuns(
            words=words,
            training_share=self.training.share_of_runs(words),
            unseen_share=self.unseen.share_of_runs(words),
        )

    def record(self) -> audits.Leakage:
        """Returns the numbers as they are written down."""
        return audits.Leakage(
            training=self.training.record(),
            unseen=None if self.unseen is None else self.unseen.record(),
            copies=self.copies,
            longest_run_auc=self.auc,
            longest_run_p_value=self.p_value,
            tail=self.tail,
        )


def leakage_of(
    synthetic: Sequence[str], training: Sequence[str], unseen: Sequence[str] | None
) -> Leakage:
    """Returns what synthetic texts hold of training records and of others.

    Args:
        synthetic: Texts that a model wrote; at least one.
        training: Those of records that it was trained on; at least one.
        unseen: Those of other records; None, or at least one.

    Raises:
        InputError: datasketch is not installed.
    """
    near = NearDuplicates(synthetic)
    known = set(map(_plain, synthetic))
    of_training = _found(synthetic, known, near, training)
    of_unseen = None if unseen is None else _found(synthetic, known, near, unseen)
    trained_on = set(map(_plain, training))
    auc, p_value = _compared(of_training, of_unseen)
    return Leakage(
        training=of_training,
        unseen=of_unseen,
        copies=sum(_plain(text) in trained_on for text in synthetic),
        auc=auc,
        p_value=p_value,
    )


def allowed_share(share: float, epsilon: float, delta: float) -> float:
    """Returns what share of training records epsilon allows, given that of other records."""
    return min(1.0, math.exp(min(epsilon, 700.0)) * share + delta)


def most_found(found: Found, texts: Sequence[str]) -> list[tuple[int, str]]:
    """Returns a few texts of which the longest runs were found, and how long they are."""
    order = sorted(range(len(texts)), key=lambda at: -found.longest[at])
    return [(found.longest[at], texts[at]) for at in order[:SHOWN] if found.longest[at]]


def _found(
    synthetic: Sequence[str], known: set[str], near: NearDuplicates, texts: Sequence[str]
) -> Found:
    runs = longest_runs([words_of(text) for text in texts], [words_of(text) for text in synthetic])
    return Found(
        longest=tuple(runs.tolist()),
        exact=sum(_plain(text) in known for text in texts),
        near=sum(near.near(texts)),
    )


def _compared(training: Found, unseen: Found | None) -> tuple[float | None, float | None]:
    if unseen is None:
        return None, None
    from scipy.stats import mannwhitneyu

    test = mannwhitneyu(training.longest, unseen.longest, alternative="greater")
    pairs = len(training.longest) * len(unseen.longest)
    return float(test.statistic) / pairs, float(test.pvalue)


def _plain(text: str) -> str:
    return " ".join(text.split())


def canaries_found(run: Path, texts: Sequence[str]) -> dict[str, CanariesInTexts]:
    """Returns what was found of the canaries, included ones and others apart; none without any.

    Args:
        run: The run's folder.
        texts: Synthetic ones.

    Raises:
        InputError: The file of the canaries is of another schema version.
        StateError: The file of the canaries is damaged.
    """
    path = run / CANARIES
    if not path.exists():
        return {}
    kinds: dict[str, list[Sequence[str]]] = {"included": [], "not_included": []}
    for canary in read_record(path, KeptCanaries).canaries:
        kinds["included" if canary.included else "not_included"].append(canary.texts)
    return {kind: _stands_in(canaries, texts) for kind, canaries in kinds.items() if canaries}


def _stands_in(canaries: Sequence[Sequence[str]], texts: Sequence[str]) -> CanariesInTexts:
    everything = "\n".join(texts)
    runs = longest_runs(
        [words_of(text) for canary in canaries for text in canary],
        [words_of(text) for text in texts],
    )
    return CanariesInTexts(
        canaries=len(canaries),
        found=sum(any(text.strip() in everything for text in canary) for canary in canaries),
        longest_run=max(runs.tolist(), default=0),
    )
