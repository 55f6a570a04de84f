"""The audit ``audit=membership``: whether attacks distinguish training records from other records.

One attack uses the loss of a record (Yeom et al. 2018). Another attack compares it with the loss of
the model before fine-tuning. With reference runs, there are also RMIA (Zarifzadeh et al. 2024) and
LiRA (Carlini et al. 2022). All findings are private, because the score of a record depends on the
record and no epsilon covers the score.

Score functions take log-likelihoods of records in nats, shape (n,), or (k, n) for k reference
models. They return a score for each record, shape (n,), which is higher if the record is more
likely to have been trained on.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field
from scipy.special import logsumexp

from dpft.audit.base import AUDITS, Audit, AuditedRun, Finding
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
from dpft.reports.privacy_json import OpenRun
from dpft.strict_model import AtLeastOne, Count, Probability, StrictModel, Versioned

Numbers = NDArray[np.float64]
LEAST_DEVIATION = 1e-6
"""Deviations between reference models below this value are rounding errors."""
LIMITS = (0.01, 0.001)
"""False positive rates at which true positive rates are reported."""
CONFIDENCE = 0.95
LIRA_RUNS = 2
"""Minimum number of reference runs for LiRA."""


@AUDITS.register("membership")
class MembershipConfig(Audit):
    """Configuration of the audit, conf/audit/membership.yaml."""

    reference_runs: tuple[str, ...] = ()
    """Folders of runs of the same task and model, trained on other records of the same kind."""
    limit: AtLeastOne = 1000
    """Maximum number of training records, and of other records, selected at even spacing."""
    batch_size: AtLeastOne = 32
    """Number of the longest records that are processed at once; affects only memory and speed."""

    def _check_fields(self) -> None:
        if len(set(self.reference_runs)) < len(self.reference_runs):
            raise InputError(
                "audit.reference_runs must name different runs.",
                key="audit.reference_runs",
                value=self.reference_runs,
            )

    def find(self, run: AuditedRun) -> Finding:
        """See ``Audit.find``."""
        from dpft.audit.audited_run import Unseen, read_run_records, trained, untrained

        reference_runs = [_reference(run, folder) for folder in self.reference_runs]

        # 1. Read records that the run was trained on, and records that it was not trained on.
        scorer = trained(run, self.batch_size)
        read = read_run_records(run.folder, run.config, scorer.encoding)
        if not isinstance(read.unseen, Unseen) or not read.unseen.records:
            why = read.unseen if isinstance(read.unseen, str) else "the other split is empty"
            raise InputError(
                "audit=membership needs records that the run was not trained on, but"
                f" {why.rstrip('.')}. Train another run that holds records out.",
                key="run",
                value=str(run.folder),
                hint="eval.held_out=0.1",
            )
        # A record is scored by its first chunk. If a unit has too many chunks, training may have
        # skipped this chunk.
        chunks = zip(read.training, read.rows, strict=True)
        members = [record for record, numbers in chunks if 0 in numbers]
        others = scorer.encoding.readable(read.unseen.records)
        members = [members[at] for at in spread(len(members), self.limit)]
        others = [others[at] for at in spread(len(others), self.limit)]
        records = [*members, *others]
        is_member = np.arange(len(records)) < len(members)

        # 2. Compute log-likelihoods by each model; only one model is in memory at a time.
        after = np.array(scorer.log_likelihoods(records))
        del scorer
        before = np.array(untrained(run, self.batch_size).log_likelihoods(records))
        references = np.array(
            [
                trained(reference, self.batch_size).log_likelihoods(records)
                for reference in reference_runs
            ]
        )

        # 3. Compute the attacks, and the largest values that the mechanism allows.
        curves = attack_curves(is_member, after, before, references)
        bound_or_reason = _bound(run)
        bound = None if isinstance(bound_or_reason, str) else bound_or_reason
        return Finding(
            record=MembershipAudit(
                attacks={name: _attack(curve, bound) for name, curve in curves.items()},
                members=len(members),
                non_members=len(others),
                non_members_of=read.unseen.split,
                reference_runs=len(reference_runs),
            ),
            rows=[row for name, curve in curves.items() for row in _rows(name, curve, bound)],
            notes=[
                f"The attack compares {len(members)} training records with {len(others)} other"
                f" records ({read.unseen.split}). If these are from another split, the attack may"
                " detect differences between the splits instead of membership; records held out of"
                " the same file (eval.held_out) avoid this. Reference runs must not be trained on"
                " these records, and are as private as their own training records.",
                *_verdict(curves, bound_or_reason),
            ],
            figures={"roc": roc_plot(curves, trade_off=bound)},
        )


class AllowedAttack(StrictModel):
    """The largest values that the mechanism allows."""

    auc: Probability
    """Largest area under the ROC curve."""
    one_percent: Probability = Field(alias="0.01")
    """Largest true positive rate at a false positive rate of 0.01."""
    one_in_thousand: Probability = Field(alias="0.001")
    """Largest true positive rate at a false positive rate of 0.001."""


class Attack(StrictModel):
    """Results of an attack."""

    auc: Probability
    """Area under the ROC curve."""
    tpr_at_fpr: OperatingPoints
    """True positive rate at each limit of the false positive rate."""
    allowed: AllowedAttack | None = None
    """The largest values that the mechanism allows; absent if no bound applies."""


class MembershipAudit(Versioned):
    """Results of attacks that distinguish the run's training records from other records."""

    audit: Literal["membership"] = "membership"
    """Name of the audit."""
    note: str | None = None
    """Statement that the result is private; only in the saved file."""
    private: Literal[True] = True
    """Always true, because the result reveals information about the records."""
    members: AtLeastOne
    """Number of records that were trained on."""
    non_members: AtLeastOne
    """Number of records that were not trained on."""
    non_members_of: str
    """Name of the split that contains the records that were not trained on."""
    reference_runs: Count
    """Number of reference runs that the attacks used."""
    attacks: Mapping[str, Attack]
    """Results of each attack, by name."""


def rmia_scores(
    log_likelihoods: ArrayLike,
    references_out: ArrayLike,
    population: ArrayLike,
    population_references: ArrayLike,
) -> Numbers:
    """Return robust membership scores (RMIA: Zarifzadeh et al. 2024, arXiv 2312.03262).

    The score of a record x is the share of population records z that x dominates: (p(x) / P(x)) /
    (p(z) / P(z)) >= 1. Here, p is the likelihood of the model under attack and P is the mean over
    reference models. One reference model is enough. This is the offline attack, in which no
    reference model saw x. The attack approximates P(x) by ((1 + a) P_out(x) + 1 - a) / 2. Here a
    must be 1: likelihoods of whole records are so small that 1 - a would dominate. Zarifzadeh et
    al. used about 0.3 for images.

    Args:
        log_likelihoods: Log-likelihoods by the model under attack, shape (n,).
        references_out: Log-likelihoods by k reference models that were not trained on the records,
            shape (k, n).
        population: Log-likelihoods by the model under attack of z records that it was not trained
            on, shape (z,).
        population_references: Log-likelihoods of these records by l reference models, shape (l, z).
    """
    target = _finite(log_likelihoods, "log_likelihoods", 1)
    population_target = _finite(population, "population", 1)
    ratios = target - _log_mean(references_out, target)
    among = np.sort(population_target - _log_mean(population_references, population_target))
    dominated: Numbers = np.searchsorted(among, ratios, side="right") / len(among)
    return dominated


def lira_scores(log_likelihoods: ArrayLike, references_out: ArrayLike) -> Numbers:
    """Return offline LiRA scores (Carlini et al. 2022, arXiv 2112.03570).

    The score is the distance of a record's log-likelihood from the mean over reference models that
    were not trained on the record, in standard deviations. The paper's test uses the cumulative
    probability under a Gaussian that is fitted to the reference models, which increases with this
    score. All records share one variance, as the authors recommend for few models. The variance
    needs two reference models.

    Args:
        log_likelihoods: Log-likelihoods by the model under attack, shape (n,).
        references_out: Log-likelihoods by k reference models that were not trained on the records,
            shape (k, n), k >= 2.

    Raises:
        InputError: A value is not finite, shapes do not match, there are fewer than two reference
            models, or all of them assign the same likelihoods.
    """
    target = _finite(log_likelihoods, "log_likelihoods", 1)
    references = _same_records(_finite(references_out, "references_out", 2), target)
    if len(references) < 2:
        raise InputError(
            "LiRA needs at least 2 reference models, got 1. RMIA needs only one.",
            key="references_out",
        )
    deviation = math.sqrt(float(np.mean(np.var(references, axis=0, ddof=1))))
    if deviation < LEAST_DEVIATION:
        raise InputError(
            "The reference models assign the same likelihood to every record. Train them"
            " independently of each other.",
            key="references_out",
        )
    scores: Numbers = (target - references.mean(axis=0)) / deviation
    return scores


def _log_mean(log_likelihoods: ArrayLike, target: Numbers) -> Numbers:
    """Return the logarithm of the mean likelihood over models, shape (n,)."""
    rows = _same_records(_finite(log_likelihoods, "references_out", 2), target)
    means: Numbers = logsumexp(rows, axis=0) - math.log(len(rows))
    return means


def _finite(values: ArrayLike, name: str, dimensions: int) -> Numbers:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != dimensions or numbers.size == 0:
        shape = "(n,)" if dimensions == 1 else "(k, n)"
        raise InputError(
            f"{name} must have shape {shape} and not be empty, got {numbers.shape}.", key=name
        )
    if not np.all(np.isfinite(numbers)):
        raise InputError(
            f"{name} must be finite, got {np.count_nonzero(~np.isfinite(numbers))} of"
            f" {numbers.size} that are not.",
            key=name,
        )
    return numbers


def _same_records(values: Numbers, target: Numbers) -> Numbers:
    if values.shape[-1] != len(target):
        raise InputError(
            "references_out must have the same records as the audited model, got"
            f" {values.shape[-1]} instead of {len(target)}.",
            key="references_out",
        )
    return values


def _reference(run: AuditedRun, folder: str) -> AuditedRun:
    """Return a reference run; reject a run of another task or model."""
    if Path(folder).resolve() == run.folder.resolve():
        raise InputError(
            f"audit.reference_runs must be other runs, got {folder}, the audited run itself.",
            key="audit.reference_runs",
            value=folder,
        )
    config = saved_run(folder)
    for name in ("task", "model"):
        audited, reference = (getattr(settings, name).name for settings in (run.config, config))
        if audited != reference:
            raise InputError(
                f"audit.reference_runs must have {name}={audited}, as the audited run has, got"
                f" {folder} with {name}={reference}.",
                key="audit.reference_runs",
                value=folder,
            )
    return replace(run, folder=Path(folder), config=config.replace(task=run.config.task))


def attack_curves(
    is_member: NDArray[np.bool_], after: Numbers, before: Numbers, references: Numbers
) -> dict[str, RocCurve]:
    """Return the ROC curve of each attack by name.

    The attack by loss is from Yeom et al. 2018 (arXiv 1709.01604). The comparison with the model
    before fine-tuning is a likelihood ratio (Carlini et al. 2021, arXiv 2012.07805; Mireshghallah
    et al. 2022, arXiv 2203.03929). It removes the effect of records that every language model finds
    easy.
    """
    curves = {
        "loss": roc_curve(after, is_member),
        "loss compared with the model before": roc_curve(after - before, is_member),
    }
    if len(references) >= LIRA_RUNS:
        curves["LiRA"] = roc_curve(lira_scores(after, references), is_member)
    others = np.flatnonzero(~is_member)
    if len(references) and len(others) > 1:
        # Every second non-member is in the population and is not attacked itself.
        population = others[::2]
        asked = np.setdiff1d(np.arange(len(is_member)), population)
        scores = rmia_scores(
            after[asked], references[:, asked], after[population], references[:, population]
        )
        curves["RMIA"] = roc_curve(scores, is_member[asked])
    return curves


def _bound(run: AuditedRun) -> TradeOff | str:
    """Return the trade-off curve that bounds attacks on a record, or why no bound applies."""
    from dpft.audit.audited_run import planned_trade_off

    if isinstance(run.privacy, OpenRun):
        return "The run was trained without privacy, so no ε bounds an attack."
    if run.privacy.plan.unit != EXAMPLE:
        return "The unit of privacy is not a record, so ε bounds no attack on a record."
    if run.privacy.with_tokenizer is not None:
        return (
            "The model's tokenizer was learned from the same records, so the plan of the training"
            " does not bound attacks on the model. The report states ε of both."
        )
    planned = planned_trade_off(run.folder)
    gone = "The run's plan was deleted with its checkpoints, so no bound on attacks is known."
    return gone if planned is None else planned


def _attack(curve: RocCurve, bound: TradeOff | None) -> Attack:
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
        rows.append((f"{name}: TPR at {100 * limit:g} % FPR", rate_text))
    return rows


def _verdict(curves: Mapping[str, RocCurve], bound: TradeOff | str) -> list[str]:
    """Return why no bound applies, or the attacks that exceed the bound, if any."""
    if isinstance(bound, str):
        return [bound]
    num_tests = len(curves) * len(LIMITS)
    confidence = 1 - (1 - CONFIDENCE) / num_tests
    above = []
    for name, curve in curves.items():
        for limit in LIMITS:
            point = operating_point(curve, limit, confidence)
            allowed = largest_true_positive_rate(bound, point.false_positive_rate.upper)
            if point.true_positive_rate.lower > allowed:
                above.append(f"{name} at {100 * limit:g} %")
    if not above:
        return []
    return [
        f"**The attack was more accurate than the mechanism allows ({', '.join(above)}), at"
        f" {CONFIDENCE:.0%} confidence over all {num_tests} tests, if records are treated as"
        " independent:** either the splits differ, or one training revealed many records at once,"
        " or the guarantee does not hold. Run `audit=one_run` to find out."
    ]
