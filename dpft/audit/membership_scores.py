"""Scores of membership from log-likelihoods: of the model alone, and against reference models.

Every function takes natural logarithms of what models say of records, shape (n,) or, of k reference
models, (k, n), and returns a score for each record, shape (n,), higher where the record is more
likely to have been trained on. A record of text has a likelihood that falls with its length;
the mean of its tokens' log-probabilities, which is that of one token, compares records better and
is between 0 and 1 as a classifier's confidence is, which RMIA and LiRA were made for.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from dpft.errors import InputError

Numbers = NDArray[np.float64]
LEAST_DEVIATION = 1e-6
"""Below it, what differs between reference models is rounding."""


def loss_scores(log_likelihoods: ArrayLike) -> Numbers:
    """Returns the log-likelihoods themselves: minus the loss (Yeom et al. 2018, arXiv 1709.01604).

    Args:
        log_likelihoods: Of the model under attack, shape (n,).

    Raises:
        InputError: One is not finite.
    """
    return _rows(log_likelihoods, "log-likelihoods", 1)


def loss_ratio_scores(log_likelihoods: ArrayLike, before: ArrayLike) -> Numbers:
    """Returns by how much training has raised each log-likelihood.

    The likelihood ratio to one reference model, here the model before fine-tuning (Carlini et al.
    2021, arXiv 2012.07805; Mireshghallah et al. 2022, arXiv 2203.03929): what every model of the
    language finds easy no longer counts.

    Args:
        log_likelihoods: Of the model under attack, shape (n,).
        before: Of the same model before fine-tuning, shape (n,).

    Raises:
        InputError: One is not finite, or the numbers of records differ.
    """
    after = _rows(log_likelihoods, "log-likelihoods", 1)
    return after - _same_records(_rows(before, "log-likelihoods before", 1), after)


def rmia_scores(
    log_likelihoods: ArrayLike,
    references_out: ArrayLike,
    population: ArrayLike,
    population_references: ArrayLike,
    *,
    references_in: ArrayLike | None = None,
    offline_scale: float = 1.0,
    gamma: float = 1.0,
) -> Numbers:
    """Returns robust membership scores (RMIA: Zarifzadeh et al. 2024, arXiv 2312.03262).

    The share of population records z that x dominates: (p(x) / P(x)) / (p(z) / P(z)) >= gamma,
    with p of the model under attack and P the mean over reference models. One reference model is
    enough. Offline no reference model saw x, and P(x) is taken to be, as they approximate it,
    ((1 + a) P_out(x) + 1 - a) / 2, a being ``offline_scale``.

    Args:
        log_likelihoods: Of the model under attack, shape (n,).
        references_out: Of k reference models not trained on the records, shape (k, n).
        population: Of the model under attack, of z records that it was not trained on, shape (z,).
        population_references: Of the reference models, shape (l, z).
        references_in: Of reference models trained on the records, shape (j, n): the online attack,
            whose P(x) is the mean of the two kinds of models; None: the offline one.
        offline_scale: a, in [0, 1]. 1 takes P_out as it is, as it must be for likelihoods of whole
            records, beside which 1 - a would be everything; theirs, of images, were about 0.3.
        gamma: At least 1; higher asks for clearer dominance.

    Raises:
        InputError: A value is not finite or out of range, or shapes do not match.
    """
    if not 0 <= offline_scale <= 1:
        raise InputError(f"offline_scale must be in [0, 1], got {offline_scale}.")
    if not gamma >= 1:
        raise InputError(f"gamma must be at least 1, got {gamma}.")
    target = _rows(log_likelihoods, "log-likelihoods", 1)
    population_target = _rows(population, "log-likelihoods of the population", 1)
    outside = _log_mean(references_out, target)
    if references_in is None:
        average = _offline_average(outside, offline_scale)
    else:
        average = np.logaddexp(outside, _log_mean(references_in, target)) - math.log(2)
    ratios = target - average
    among = np.sort(population_target - _log_mean(population_references, population_target))
    # how many of the population are at most the ratio over gamma
    dominated = np.searchsorted(among, ratios - math.log(gamma), side="right")
    shares: Numbers = dominated / len(among)
    return shares


def lira_scores(log_likelihoods: ArrayLike, references_out: ArrayLike) -> Numbers:
    """Returns offline LiRA scores (Carlini et al. 2022, arXiv 2112.03570).

    By how many standard deviations a record's log-likelihood exceeds the mean of reference models
    not trained on it: their test of a Gaussian fitted to these, whose probability grows with it.
    The variance is one for all records, as they advise for few models; it needs two of them.

    Args:
        log_likelihoods: Of the model under attack, shape (n,); for confidences near 1 after
            ``logit_scaled``.
        references_out: Of k reference models not trained on the records, shape (k, n), k >= 2.

    Raises:
        InputError: A value is not finite, shapes do not match, there are fewer than two reference
            models, or they all say the same.
    """
    target = _rows(log_likelihoods, "log-likelihoods", 1)
    references = _same_records(_rows(references_out, "log-likelihoods of references", 2), target)
    if len(references) < 2:
        raise InputError("LiRA needs at least 2 reference models, got 1; RMIA works with one.")
    deviation = math.sqrt(float(np.mean(np.var(references, axis=0, ddof=1))))
    if deviation < LEAST_DEVIATION:
        raise InputError("all reference models say the same of every record; train them apart.")
    scores: Numbers = (target - references.mean(axis=0)) / deviation
    return scores


def logit_scaled(log_probabilities: ArrayLike) -> Numbers:
    """Returns log(p / (1 - p)), which LiRA finds nearer to a Gaussian than log p.

    Args:
        log_probabilities: Below 0, of any shape.

    Raises:
        InputError: One is not below 0: a density, or a certainty.
    """
    values = np.asarray(log_probabilities, dtype=np.float64)
    if not np.all(values < 0):
        raise InputError("log-probabilities must be below 0 to be scaled.")
    scaled: Numbers = values - np.log(-np.expm1(values))
    return scaled


def _offline_average(log_outside: Numbers, scale: float) -> Numbers:
    """Returns log(((1 + a) P_out + (1 - a)) / 2)."""
    weighted = math.log1p(scale) + log_outside
    if scale == 1:
        return weighted - math.log(2)
    return np.logaddexp(weighted, math.log1p(-scale)) - math.log(2)


def _log_mean(log_likelihoods: ArrayLike, target: Numbers) -> Numbers:
    """Returns the logarithm of the mean likelihood over models, shape (n,)."""
    rows = _same_records(_rows(log_likelihoods, "log-likelihoods of references", 2), target)
    means: Numbers = logsumexp(rows, axis=0) - math.log(len(rows))
    return means


def _rows(values: ArrayLike, name: str, dimensions: int) -> Numbers:
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
