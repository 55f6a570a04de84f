"""Membership inference: scores of records from models' log-likelihoods, and what they show.

Score functions take natural logarithms of what models say of records, shape (n,) or, of k reference
models, (k, n), and return a score for each record, shape (n,), higher where the record is more
likely to have been trained on. `audit_membership` attacks a run by its own records; all of its
findings are private: which record scores how is of the records, and no epsilon covers it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field
from scipy.special import logsumexp

from dpft.audit.audited_run import Scorer, Unseen, read_run_records, trained, untrained
from dpft.audit.base import AuditedRun, Finding
from dpft.audit.one_run import planned_trade_off
from dpft.audit.plots import roc_plot
from dpft.audit.trade_off import (
    OperatingPoints,
    RocCurve,
    TradeOff,
    largest_auc,
    largest_true_positive_rate,
    operating_point,
    roc_curve,
)
from dpft.commands.ledger_account import saved_run
from dpft.errors import InputError
from dpft.evaluation.predictions import spread
from dpft.privacy.plan import EXAMPLE
from dpft.reports.promises import OpenRun
from dpft.strict_model import AtLeastOne, Count, Probability, StrictModel, Versioned
from dpft.tasks.base import Record


class AllowedAttack(StrictModel):
    """Bounds."""

    auc: Probability
    """Of the area."""
    one_percent: Probability = Field(alias="0.01")
    """Of true positives at 0.01 false ones."""
    one_in_thousand: Probability = Field(alias="0.001")
    """Of true positives at 0.001 false ones."""


class Attack(StrictModel):
    """An attack."""

    auc: Probability
    """Area under its curve."""
    tpr_at_fpr: OperatingPoints
    """At each limit of false positives."""
    allowed: AllowedAttack | None = None
    """The most that the mechanism allows; absent where nothing bounds an attack."""


class MembershipAudit(Versioned):
    """How well attacks tell the run's training records from others."""

    audit: Literal["membership"] = "membership"
    """Which audit."""
    note: str | None = None
    """That it is the owner's alone; in the kept file only."""
    private: Literal[True] = True
    """Always: the result tells of the records, and stays with their owner."""
    members: AtLeastOne
    """Records that were trained on."""
    non_members: AtLeastOne
    """Records that were not."""
    non_members_of: str
    """Where these are from."""
    reference_runs: Count
    """Reference runs that the attacks had."""
    attacks: Mapping[str, Attack]
    """Each attack by its name."""


Numbers = NDArray[np.float64]
LEAST_DEVIATION = 1e-6
"""Below it, what differs between reference models is rounding."""


def rmia_scores(
    log_likelihoods: ArrayLike,
    references_out: ArrayLike,
    population: ArrayLike,
    population_references: ArrayLike,
) -> Numbers:
    """Returns robust membership scores (RMIA: Zarifzadeh et al. 2024, arXiv 2312.03262).

    The share of population records z that x dominates: (p(x) / P(x)) / (p(z) / P(z)) >= 1, with p
    of the model under attack and P the mean over reference models. One reference model is enough.
    The attack is the offline one: no reference model saw x. Its approximation of P(x) is ((1 + a)
    P_out(x) + 1 - a) / 2; a is 1 here, as it must be for likelihoods of whole records, beside which
    1 - a would be everything (theirs, of images, were about 0.3).

    Args:
        log_likelihoods: Of the model under attack, shape (n,).
        references_out: Of k reference models not trained on the records, shape (k, n).
        population: Of the model under attack, of z records that it was not trained on, shape (z,).
        population_references: Of the reference models, shape (l, z).
    """
    target = _finite(log_likelihoods, "log-likelihoods", 1)
    population_target = _finite(population, "log-likelihoods of the population", 1)
    ratios = target - _log_mean(references_out, target)
    among = np.sort(population_target - _log_mean(population_references, population_target))
    dominated: Numbers = np.searchsorted(among, ratios, side="right") / len(among)
    return dominated


def lira_scores(log_likelihoods: ArrayLike, references_out: ArrayLike) -> Numbers:
    """Returns offline LiRA scores (Carlini et al. 2022, arXiv 2112.03570).

    By how many standard deviations a record's log-likelihood exceeds the mean of reference models
    not trained on it: their test of a Gaussian fitted to these, whose probability grows with it.
    The variance is one for all records, as they advise for few models; it needs two of them.

    Args:
        log_likelihoods: Of the model under attack, shape (n,).
        references_out: Of k reference models not trained on the records, shape (k, n), k >= 2.

    Raises:
        InputError: A value is not finite, shapes do not match, there are fewer than two reference
            models, or they all say the same.
    """
    target = _finite(log_likelihoods, "log-likelihoods", 1)
    references = _same_records(_finite(references_out, "log-likelihoods of references", 2), target)
    if len(references) < 2:
        raise InputError("LiRA needs at least 2 reference models, got 1; RMIA works with one.")
    deviation = math.sqrt(float(np.mean(np.var(references, axis=0, ddof=1))))
    if deviation < LEAST_DEVIATION:
        raise InputError("all reference models say the same of every record; train them apart.")
    scores: Numbers = (target - references.mean(axis=0)) / deviation
    return scores


def _log_mean(log_likelihoods: ArrayLike, target: Numbers) -> Numbers:
    """Returns the logarithm of the mean likelihood over models, shape (n,)."""
    rows = _same_records(_finite(log_likelihoods, "log-likelihoods of references", 2), target)
    means: Numbers = logsumexp(rows, axis=0) - math.log(len(rows))
    return means


def _finite(values: ArrayLike, name: str, dimensions: int) -> Numbers:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != dimensions or numbers.size == 0:
        shape = "(n,)" if dimensions == 1 else "(k, n)"
        raise InputError(f"{name} must be of shape {shape} and not empty, got {numbers.shape}.")
    if not np.all(np.isfinite(numbers)):
        raise InputError(f"{name} must be finite; {np.count_nonzero(~np.isfinite(numbers))} of "
                         f"{numbers.size} are not.")  # fmt: skip
    return numbers


def _same_records(values: Numbers, target: Numbers) -> Numbers:
    if values.shape[-1] != len(target):
        raise InputError(
            f"reference models were asked about {values.shape[-1]} records and the model under "
            f"attack about {len(target)}; ask all about the same."
        )
    return values


LIMITS = (0.01, 0.001)
"""False positive rates at which true ones are told."""
CONFIDENCE = 0.95
LIRA_RUNS = 2
"""Reference runs that LiRA needs."""


@dataclass(frozen=True, kw_only=True)
class Records:
    """Members and other records, which models score."""

    members: Sequence[Record]
    others: Sequence[Record]
    split: str
    """Where the others are from."""

    @property
    def all(self) -> list[Record]:
        """Both, members first."""
        return [*self.members, *self.others]

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Of each, whether it is a member."""
        return np.arange(len(self.members) + len(self.others)) < len(self.members)


def audit_membership(
    run: AuditedRun, *, references: Sequence[str], limit: int, batch_size: int
) -> Finding:
    """Attack a run with records that it was trained on and records that it was not trained on.

    Raises:
        InputError: There are no other records, or it is not known which records were trained on,
            or a reference run has another task or model.
    """
    others = [_reference(run, folder) for folder in references]
    scorer = trained(run, batch_size)
    records = _records(run, scorer, limit)
    after = np.array(scorer.log_likelihoods(records.all))
    del scorer  # one model at a time
    before = np.array(untrained(run, batch_size).log_likelihoods(records.all))
    log_likelihoods = [trained(other, batch_size).log_likelihoods(records.all) for other in others]
    curves = _curves(records.inside, after, before, np.array(log_likelihoods))
    bound_or_reason = _bound(run)
    bound = None if isinstance(bound_or_reason, str) else bound_or_reason
    return Finding(
        record=MembershipAudit(
            attacks={name: _entry(curve, bound) for name, curve in curves.items()},
            members=len(records.members),
            non_members=len(records.others),
            non_members_of=records.split,
            reference_runs=len(references),
        ),
        rows=[row for name, curve in curves.items() for row in _rows(name, curve, bound)],
        notes=_notes(records, curves, bound_or_reason),
        figures={"roc": roc_plot(curves, trade_off=bound)},
    )


def _records(run: AuditedRun, scorer: Scorer, limit: int) -> Records:
    read = read_run_records(run.folder, run.config, scorer.encoding)
    if not isinstance(read.unseen, Unseen) or not read.unseen.records:
        why = read.unseen if isinstance(read.unseen, str) else "the other split is empty"
        raise InputError(
            "audit=membership needs records that were not trained on, and"
            f" {why.rstrip('.')}; train a run with eval.held_out=0.1, for instance."
        )
    # A record is scored by its first chunk, which a unit of too many chunks may have lost.
    trained = [record for record, rows in zip(read.training, read.rows, strict=True) if 0 in rows]
    kept = [
        [side[at] for at in spread(len(side), limit)]
        for side in (trained, scorer.encoding.readable(read.unseen.records))
    ]
    return Records(members=kept[0], others=kept[1], split=read.unseen.split)


def _reference(run: AuditedRun, folder: str) -> AuditedRun:
    """Return a reference run; reject one of another task or model."""
    if Path(folder).resolve() == run.folder.resolve():
        raise InputError(f"audit.reference_runs must be other runs, got {folder}, the run itself.")
    config = saved_run(folder)
    for name in ("task", "model"):
        audited, reference = (getattr(settings, name).name for settings in (run.config, config))
        if audited != reference:
            raise InputError(
                f"audit.reference_runs must be of the run's own {name}, {audited}, got {folder},"
                f" which is of {reference}."
            )
    return replace(run, folder=Path(folder), config=config.replace(task=run.config.task))


def _curves(
    inside: NDArray[np.bool_], after: Numbers, before: Numbers, references: Numbers
) -> dict[str, RocCurve]:
    """Returns the curve of each attack by its name.

    The loss itself is Yeom et al. 2018 (arXiv 1709.01604); beside the model before fine-tuning it
    is a likelihood ratio (Carlini et al. 2021, arXiv 2012.07805; Mireshghallah et al. 2022, arXiv
    2203.03929): what every model of the language finds easy no longer counts.
    """
    curves = {
        "loss": roc_curve(after, inside),
        "loss beside the model before": roc_curve(after - before, inside),
    }
    if len(references) >= LIRA_RUNS:
        curves["LiRA"] = roc_curve(lira_scores(after, references), inside)
    others = np.flatnonzero(~inside)
    if len(references) and len(others) > 1:
        # Every second non-member is the population, and is not asked about itself.
        population = others[::2]
        asked = np.setdiff1d(np.arange(len(inside)), population)
        scores = rmia_scores(
            after[asked], references[:, asked], after[population], references[:, population]
        )
        curves["RMIA"] = roc_curve(scores, inside[asked])
    return curves


def _bound(run: AuditedRun) -> TradeOff | str:
    """Returns the trade-off curve that bounds attacks on a record, or why none does, in words."""
    if isinstance(run.privacy, OpenRun):
        return "The run was trained without privacy: nothing bounds an attack."
    if run.privacy.plan.unit != EXAMPLE:
        return "The unit of privacy is not a record, so ε bounds no attack on a record."
    if run.privacy.with_tokenizer is not None:
        return (
            "The records made the model's tokenizer, too, so the plan of its training alone bounds"
            " no attack on the model; the report has ε of both."
        )
    planned = planned_trade_off(run.folder)
    gone = "The run's plan is gone with its checkpoints: nothing bounds an attack."
    return gone if planned is None else planned


def _entry(curve: RocCurve, bound: TradeOff | None) -> Attack:
    one_percent, one_in_thousand = LIMITS
    return Attack(
        auc=curve.auc,
        tpr_at_fpr=OperatingPoints(
            one_percent=operating_point(curve, one_percent),
            one_in_thousand=operating_point(curve, one_in_thousand),
        ),
        allowed=None
        if bound is None
        else AllowedAttack(
            auc=largest_auc(bound),
            one_percent=largest_true_positive_rate(bound, one_percent),
            one_in_thousand=largest_true_positive_rate(bound, one_in_thousand),
        ),
    )


def _rows(name: str, curve: RocCurve, bound: TradeOff | None) -> list[tuple[str, str]]:
    most = "" if bound is None else f" (at most {largest_auc(bound):.3f})"
    rows = [(f"{name}: AUC", f"{curve.auc:.3f}{most}")]
    for limit in LIMITS:
        rate = operating_point(curve, limit).true_positive_rate
        most = "" if bound is None else f", at most {largest_true_positive_rate(bound, limit):.2%}"
        rate_text = f"{rate.rate:.2%} ({rate.lower:.2%} to {rate.upper:.2%}){most}"
        rows.append((f"{name}: true positives at {100 * limit:g} % false ones", rate_text))
    return rows


def _notes(records: Records, curves: Mapping[str, RocCurve], bound: TradeOff | str) -> list[str]:
    notes = [
        f"{len(records.members)} records that were trained on, {len(records.others)} that were not"
        f" ({records.split}). Where these are another split, attacks may tell the splits apart, and"
        " not what was trained on; records held out of one file (eval.held_out) differ in nothing"
        " else. Reference runs must not have seen the records; they are as private as what they"
        " were trained on."
    ]
    if isinstance(bound, str):
        return [*notes, bound]
    looks = len(curves) * len(LIMITS)
    sure = 1 - (1 - CONFIDENCE) / looks
    above = [
        f"{name} at {100 * limit:g} %"
        for name, curve in curves.items()
        for limit in LIMITS
        if operating_point(curve, limit, sure).true_positive_rate.lower
        > largest_true_positive_rate(
            bound, operating_point(curve, limit, sure).false_positive_rate.upper
        )
    ]
    if above:
        notes.append(
            f"**More than the mechanism allows was told apart ({', '.join(above)}), at"
            f" {CONFIDENCE:.0%} confidence for all {looks} looks, as if each record had a training"
            " of its own:** either the splits differ, or one training told of many at once, or the"
            " guarantee does not hold; `audit=one_run` tells."
        )
    return notes
