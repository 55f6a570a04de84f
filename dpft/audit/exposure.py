"""The audit ``audit=exposure``: rank repeated canaries among all alternatives by likelihood.

The method is from Carlini et al. 2019, "The secret sharer" (arXiv 1802.08232). A canary is a fixed
prefix and a random suffix from a set R. The model assigns every suffix in R a log-perplexity in
bits, which is summed over its tokens and lower for more likely suffixes. Exposure is log2 |R| -
log2 rank. The rank is the number of suffixes with at most the log-perplexity of the canary. A
canary that was never trained on has a uniformly distributed rank: P(exposure >= x) = 2^-x, with
mean 1 / ln 2 = 1.4427 bits. A canary trained on once under (eps, delta)-differential privacy has
P(exposure >= x) <= e^eps 2^-x + delta.

If R is too large to rank, a skew-normal distribution is fitted to log-perplexities. Carlini et al.
call this "approximation by distribution model", and Li et al. 2022, Appendix M, use it. Exposure is
then minus log2 of the probability mass below the canary's log-perplexity, which can exceed
log2 |R|. The Kolmogorov-Smirnov distance shows the quality of the fit. Findings are listed by
number of repetitions, as in Li et al. 2022, Table 9.

The likelihood of a suffix is a product over its n words, each given the words before it (its
context). All V^n suffixes are therefore scored by running the model once on each context of 0 to
n - 1 words: for V = 10 and n = 5, 11,111 contexts give 100,000 suffixes. Shapes: c contexts, v
words of the sub-vocabulary.

>>> exact_exposure(3.0, [3.0, 4.0, 5.0, 6.0])
2.0
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpft.audit.base import AUDITS, Audit, AuditedRun, Finding
from dpft.constants import (
    SEQ2SEQ,
)
from dpft.data.canaries import (
    EXPOSURE,
    FEWEST_SUFFIXES,
    Canary,
    SuffixTokens,
    suffix_tokens,
    vocabulary,
    whole_words,
)
from dpft.data.training_records import batched
from dpft.errors import InputError
from dpft.generation.decoding import evaluation_mode
from dpft.privacy.plan import EXAMPLE
from dpft.reports.audit_findings import ExposureGroup, ExposureTable, Spread
from dpft.reports.privacy_json import OpenRun, RunPrivacy
from dpft.strict_model import AtLeastOne, Probability, Versioned, merge_models
from dpft.tasks.base import Task

if TYPE_CHECKING:
    from dpft.audit.audited_run import Scorer


@AUDITS.register("exposure")
class ExposureConfig(Audit):
    """Configuration of the audit, conf/audit/exposure.yaml."""

    batch_size: AtLeastOne = 256
    """Number of suffix prefixes that are processed at once; affects only memory and speed."""

    def find(self, run: AuditedRun) -> Finding:
        """See ``Audit.find``."""
        from dpft.audit.audited_run import kept_canaries, trained, untrained
        from dpft.commands.progress_bars import (
            batch_progress,
        )
        from dpft.evaluation.evaluate import counter

        canary_config = run.config.audit
        if not canary_config.exposure_canaries:
            raise InputError(
                "audit=exposure needs a run with repeated canaries, but the run has"
                " audit.exposure_canaries=0. Train another run with canaries.",
                key="audit.exposure_canaries",
                value=0,
                hint="audit.exposure_canaries=5",
            )
        canary_config.check_suffixes()
        wanted = canary_config.exposure_canaries * (1 + len(canary_config.repetitions))
        canaries = kept_canaries(run, EXPOSURE, wanted, noun="canaries")
        suffixes = canary_config.vocabulary**canary_config.suffix_words
        total = 2 * len(canaries) * suffixes
        # The number of suffixes depends only on the configuration, not on any record.
        with batch_progress("audit=exposure", timed=True) as show:
            count = counter("suffixes", total, show)
            after = _exposures(run, trained(run, self.batch_size), canaries, count)
            before = _exposures(run, untrained(run, self.batch_size), canaries, count)
        return finding(canaries, after, before, run.privacy)


def _exposures(
    run: AuditedRun, scorer: "Scorer", canaries: Sequence[Canary], count: Callable[[int], None]
) -> "list[Exposed]":
    """Return the exposure of each canary in one model; callers free the model afterwards."""
    from dpft.data.encoding import TokenEncoding

    assert isinstance(scorer.encoding, TokenEncoding)  # Canaries are texts.
    words = vocabulary(run.config.audit, whole_words(scorer.encoding.tokenizer))
    return [
        exposed(*suffix_scores(scorer, run.config.task, canary, words, on_scored=count))
        for canary in canaries
    ]


class ExposureAudit(ExposureTable, Versioned):
    """Exposure of repeated canaries (Carlini et al. 2019), in bits."""

    audit: Literal["exposure"] = "exposure"
    """Name of the audit."""
    note: str | None = None
    """Statement that the result is private; only in the saved file."""
    goodness_of_fit: Probability
    """Kolmogorov-Smirnov statistic of the worst fit."""


MEAN_UNSEEN = 1 / math.log(2)
"""Mean exposure, in bits, of a canary that was not trained on."""
TAIL = 1e-4
"""Probabilities below this value are integrated in logarithms."""
STEPS, REACH = 4000, 60.0
"""Number of steps of the integration over a tail, and length of the integration interval in units
of the decay length at its start."""


@dataclass(frozen=True, kw_only=True)
class SkewNormal:
    """A skew-normal distribution fitted to log-perplexities, with its goodness of fit.

    Attributes:
        shape: Skewness parameter; 0 is a normal distribution.
        location: Location in bits.
        scale: Scale in bits, above 0.
        distance: Kolmogorov-Smirnov statistic: the largest distance of the two distribution
            functions.
        p_value: p-value of ``distance``. It is too large, because the parameters were fitted to the
            same values. A small p-value therefore indicates a bad fit, but a large p-value does not
            indicate a good fit.
        count: Number of fitted values.
    """

    shape: float
    location: float
    scale: float
    distance: float
    p_value: float
    count: int

    def exposure(self, log_perplexity: float) -> float:
        """Return minus log2 of the probability mass up to a log-perplexity, in bits.

        The error is below 1e-3 bits, even if the mass is far below the smallest float.
        """
        from scipy.stats import skewnorm

        place = (log_perplexity - self.location) / self.scale
        mass = float(skewnorm.cdf(place, self.shape))
        if mass >= TAIL:
            return -math.log2(mass)
        return -self._log_tail(place) / math.log(2)

    def _log_tail(self, place: float) -> float:
        """Return the logarithm of the probability mass below a point in the lower tail.

        The logarithm of the density is concave, so the density below the point decays at least as
        fast as the exponential with the decay rate at the point. The density is integrated
        numerically over a multiple of that exponential's decay length.
        """
        from scipy.integrate import trapezoid

        slope = self._log_density(np.array([place])) - self._log_density(np.array([place - 1e-5]))
        decay = float(slope[0]) / 1e-5
        lengths = np.linspace(0.0, REACH, STEPS + 1)
        density = self._log_density(place - lengths / decay)
        weights = np.exp(density - density[0])
        return float(density[0]) + math.log(trapezoid(weights, lengths) / decay)

    def _log_density(self, place: NDArray[np.float64]) -> NDArray[np.float64]:
        from scipy.special import log_ndtr

        log_normal = -(place**2) / 2 - math.log(2 * math.pi) / 2
        density: NDArray[np.float64] = math.log(2) + log_normal + log_ndtr(self.shape * place)
        return density


def exact_exposure(log_perplexity: float, candidates: ArrayLike) -> float:
    """Return the exposure of a canary by its rank among all suffixes.

    Args:
        log_perplexity: Log-perplexity of the canary's suffix, exactly as in ``candidates``.
        candidates: Log-perplexity of every possible suffix, including the canary's own, shape (r,).

    Raises:
        InputError: A value is not finite, or the canary's is not among the candidates.
    """
    values = _finite(candidates, "candidates")
    if not np.any(values == log_perplexity):
        raise InputError(
            f"log_perplexity must be among the {len(values)} candidates, got {log_perplexity}."
            " Rank it among all suffixes, including its own, scored in the same way.",
            key="log_perplexity",
            value=log_perplexity,
        )
    return math.log2(len(values)) - math.log2(np.count_nonzero(values <= log_perplexity))


def fit_skew_normal(sample: ArrayLike) -> SkewNormal:
    """Return the maximum-likelihood skew-normal distribution of several log-perplexities.

    Args:
        sample: Log-perplexities of uniformly drawn suffixes, shape (s,), in bits. If all suffixes
            can be scored, pass the log-perplexities of all of them.

    Raises:
        InputError: There are fewer than ``FEWEST_SUFFIXES`` values, a value is not finite, or all
            are equal.
    """
    from scipy.stats import kstest, skewnorm

    values = _finite(sample, "sample")
    if len(values) < FEWEST_SUFFIXES or np.ptp(values) == 0:
        raise InputError(
            f"A skew-normal distribution needs at least {FEWEST_SUFFIXES} log-perplexities that"
            f" differ, got {len(values)}. Use the exact rank instead.",
            key="sample",
        )
    shape, location, scale = map(float, skewnorm.fit(values))
    fit = kstest(values, skewnorm(shape, location, scale).cdf)
    return SkewNormal(
        shape=shape,
        location=location,
        scale=scale,
        distance=float(fit.statistic),
        p_value=float(fit.pvalue),
        count=len(values),
    )


def chance_bound(exposure: float, *, epsilon: float, delta: float) -> float:
    """Return an upper bound of the probability of an exposure for a canary trained on once.

    Args:
        exposure: Exposure in bits, by exact rank.
        epsilon: Epsilon of the run for one record, at least 0. Use 0 with delta 0 for a canary that
            was never trained on.
        delta: Delta of the run, in [0, 1).
    """
    return min(1.0, math.exp(min(0.0, epsilon - exposure * math.log(2))) + delta)


def mean_bound(*, epsilon: float, delta: float, candidates: int) -> float:
    """Return an upper bound of the mean exposure of canaries trained on once, in bits.

    This is the integral of ``chance_bound``: (epsilon + 1) / ln 2, plus delta for each of the
    log2(candidates) bits.

    >>> round(mean_bound(epsilon=3.0, delta=0.0, candidates=100_000), 2)
    5.77
    """
    return (epsilon + 1) / math.log(2) + delta * math.log2(candidates)


def _finite(values: ArrayLike, key: str) -> NDArray[np.float64]:
    numbers = np.asarray(values, dtype=np.float64).reshape(-1)
    if len(numbers) == 0 or not np.all(np.isfinite(numbers)):
        raise InputError(
            f"log-perplexities must be finite and at least one, got {len(numbers)}, of which"
            f" {np.count_nonzero(~np.isfinite(numbers))} are not finite.",
            key=key,
        )
    return numbers


def suffix_scores(
    scorer: "Scorer",
    task: Task,
    canary: Canary,
    words: Sequence[str],
    *,
    on_scored: Callable[[int], None] = lambda suffixes: None,
) -> tuple[float, NDArray[np.float64]]:
    """Return the log-perplexities of a canary's suffix and of every possible suffix, in bits."""
    import torch

    table = suffix_tokens(scorer.encoding, task, canary, words)
    log_perplexities = np.zeros(1)
    with evaluation_mode(scorer.model), torch.no_grad():
        for place in range(len(canary.learned)):
            contexts = product(range(len(words)), repeat=place)
            bits = []
            for batch in batched(contexts, scorer.batch_size):
                bits.append(_bits_of_words(scorer, task, canary, words, table, batch, place))
                if place == len(canary.learned) - 1:
                    on_scored(len(batch) * len(words))
            extended = log_perplexities[:, None] + np.concatenate(bits)
            log_perplexities = extended.reshape(-1)
    number = 0
    for word in canary.learned:
        number = number * len(words) + words.index(word)
    return float(log_perplexities[number]), log_perplexities


def _bits_of_words(
    scorer: "Scorer",
    task: Task,
    canary: Canary,
    words: Sequence[str],
    table: SuffixTokens,
    contexts: Sequence[tuple[int, ...]],
    place: int,
) -> NDArray[np.float64]:
    """Return the log-perplexity of each word after each context, in bits, shape (c, v)."""
    from dpft.models.losses import token_logits

    missing = [words[0]] * (len(table.places) - place)
    suffixes = [[*(words[at] for at in context), *missing] for context in contexts]
    rows = scorer.encoding.rows(
        [task.canary(canary.read, suffix, number=canary.number) for suffix in suffixes]
    )
    batch = scorer.encoding.layout.collate(rows).to(scorer.model.device)
    late = 0 if batch.kind == SEQ2SEQ else 1
    logits = token_logits(scorer.model, batch)[:, table.places[place] - late]
    bits = -logits.double().log_softmax(dim=-1) / math.log(2)
    word_bits: NDArray[np.float64] = bits[:, list(table.ids[place])].cpu().numpy()
    return word_bits


@dataclass(frozen=True, kw_only=True)
class Exposed:
    """The exposure of one canary in one model, in bits."""

    exact: float
    """Exposure by rank among all suffixes."""
    fitted: float
    """Exposure by a skew-normal distribution, which may exceed the range of ranks."""
    goodness_of_fit: float
    """Kolmogorov-Smirnov statistic of the fit; 0 is perfect."""
    suffixes: int


def exposed(log_perplexity: float, candidates: NDArray[np.float64]) -> Exposed:
    """Return the exposure of a canary, computed from the scores that ``suffix_scores`` returns."""
    fit = fit_skew_normal(candidates)
    return Exposed(
        exact=exact_exposure(log_perplexity, candidates),
        fitted=fit.exposure(log_perplexity),
        goodness_of_fit=fit.distance,
        suffixes=len(candidates),
    )


def finding(
    canaries: Sequence[Canary],
    after: Sequence[Exposed],
    before: Sequence[Exposed],
    privacy: RunPrivacy,
) -> Finding:
    """Return the finding of the audit: exposures by number of repetitions."""
    from dpft.audit.plots import exposure_histogram

    places: dict[int, list[int]] = {}
    for place, canary in enumerate(canaries):
        places.setdefault(canary.copies, []).append(place)
    groups, rows = [], []
    bits_by_rank: dict[str, list[float]] = {}
    for copies, group_places in sorted(places.items()):
        bits = [after[at].exact for at in group_places]
        group = ExposureGroup(
            copies=copies,
            canaries=len(group_places),
            exact=_spread(bits),
            fitted=_spread([after[at].fitted for at in group_places]),
            exact_before=_spread([before[at].exact for at in group_places]),
            goodness_of_fit=max(after[at].goodness_of_fit for at in group_places),
        )
        groups.append(group)
        phrases = {0: "never inserted", 1: "inserted once"}
        inserted = phrases.get(copies, f"inserted {copies} times")
        bits_by_rank[inserted] = bits
        value = (
            f"{_bits(group.exact)} bits by rank, {_bits(group.fitted)} by fit (K-S"
            f" {group.goodness_of_fit:.3f}), {_bits(group.exact_before)} before fine-tuning;"
            f" canaries: {group.canaries}"
        )
        rows.append((f"exposure, {inserted}", value))
    largest = math.log2(after[0].suffixes)
    released = ExposureTable(repetitions=tuple(groups), rows=tuple(rows), largest_exposure=largest)
    worst = max(exposure.goodness_of_fit for exposure in after)
    return Finding(
        record=merge_models(ExposureAudit, released, goodness_of_fit=worst),
        rows=[*rows, ("largest exposure that a rank can show", f"{largest:.2f} bits")],
        notes=_notes(groups, privacy, canaries, after),
        figures={"exposure": exposure_histogram(bits_by_rank, bits=largest)},
        released=released,
    )


def _spread(values: Sequence[float]) -> Spread:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(mean=statistics.fmean(values), standard_deviation=deviation)


def _bits(spread: Spread) -> str:
    return f"{spread.mean:.2f} ± {spread.standard_deviation:.2f}"


def _notes(
    groups: Sequence[ExposureGroup],
    privacy: RunPrivacy,
    canaries: Sequence[Canary],
    after: Sequence[Exposed],
) -> list[str]:
    notes = [
        f"A canary that was never inserted has {MEAN_UNSEEN:.2f} bits on average, and at least x"
        " bits with probability 2^-x. The fit extrapolates beyond the ranks with a skew-normal"
        " distribution; K-S is its Kolmogorov-Smirnov distance from the scores (0 is perfect)."
    ]
    if isinstance(privacy, OpenRun):
        return [*notes, "The run was trained without privacy, so no ε bounds the exposure."]
    epsilon, delta = float(privacy.epsilon), float(privacy.delta)
    once = next((group for group in groups if group.copies == 1), None)
    if once is None or privacy.plan.unit != EXAMPLE:
        return notes
    most = mean_bound(epsilon=epsilon, delta=delta, candidates=after[0].suffixes)
    largest = max(
        exposure.exact
        for exposure, canary in zip(after, canaries, strict=True)
        if canary.copies == 1
    )
    # Union bound over all canaries, because the largest exposure was selected.
    number = once.canaries
    chance = min(1.0, number * chance_bound(largest, epsilon=epsilon, delta=delta))
    return [
        *notes,
        f"For a canary inserted once, ε = {epsilon:.2f} allows at most {most:.2f} bits on average."
        f" The largest exposure of the {number} canaries inserted once is {largest:.2f} bits; under"
        f" this ε, one of them reaches it with a probability of at most {chance:.2g}. For a canary"
        " inserted r times, use r times the ε.",
    ]
