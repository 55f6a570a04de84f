"""Interpretation of epsilon: accuracy of membership guesses, and noise relative to gradients.

*Membership.* A test sees the released model, knows every record except those of one unit, and
decides whether this unit was in the training data. If the mechanism is (eps, delta)-differentially
private, its errors satisfy ``false_positives + e^eps * false_negatives >= 1 - delta``, and the same
with both exchanged (Kairouz et al. 2015, arXiv 1311.0776, Theorem 2.1). The sum of these two
inequalities bounds the advantage, ``1 - false_positives - false_negatives``, by
``(e^eps - 1 + 2 delta) / (e^eps + 1)``. If both cases are equally likely, the test is therefore
wrong with a probability of at least ``(1 - delta) / (e^eps + 1)``. Some mechanism with this epsilon
and delta reaches equality.

*Signal.* A warning is public, so it must not depend on a record, and therefore not on gradients.
The warnings therefore consider the best case. Clipped gradients have at most the norm C. If all
gradients point in the same direction, those of a batch of the expected size B sum to B * C. Those
of T steps sum to T * B * C. The noise of T steps has the standard deviation
sqrt(T) * noise_multiplier * C in every direction. Its norm over d trainable parameters is about
sqrt(d) times as large. Let ``strength`` be sqrt(T) * B / noise_multiplier.

- Along the best direction, if that is known, the signal-to-noise ratio is ``strength``. T steps of
  sensitivity B * C are ``strength``-Gaussian-DP (Dong et al. 2019, Corollary 3.3) for all records
  of batches of size B at once. A guess from the model, whether it was trained on these records or
  on nothing, is therefore right with a probability of at most Phi(strength / 2): 0.69 at 1. No
  optimizer can use more.
- Over all parameters, the ratio of the norms of signal and noise is ``strength`` / sqrt(d). A ratio
  below 1 does not prove that nothing can be learned, because a signal in few directions can be.
  Private fine-tuning of large models works at ratios of 0.2 and more (Li et al. 2022). At much
  smaller ratios, an update is almost only noise. An encoder with 23 million parameters learned
  nothing from 600 sentences at 0.2, and its head, at 34, did learn
  (docs/how-to/hyperparameters.md). ``dpft plan`` warns below 0.5.
"""

import math
from decimal import ROUND_FLOOR, Context, Decimal

from dpft.privacy.accounting.mechanism import SampledGaussian

LEAST_STRENGTH = 1.0
"""Best-case signal-to-noise ratio in a known direction below which nothing can be learned."""
LEAST_SHARE = 0.01
"""Best-case ratio of the norms of signal and noise below which an update counts as pure noise. The
value is a twentieth of the lowest ratio among the published recipes at epsilon 0.5."""
LITTLE_SHARE = 0.5
"""Ratio below which little can be learned, although an update is not only noise."""


def signal_share(
    mechanism: SampledGaussian, *, expected_batch_size: float, trainable_parameters: int
) -> float:
    """Return the best-case norm of the sum of a run's gradients, divided by the norm of its noise.

    Args:
        mechanism: Mechanism of the whole run.
        expected_batch_size: Sample rate times the public number of units.
        trainable_parameters: Number of values that get noise.
    """
    strength = math.sqrt(mechanism.steps) * expected_batch_size / mechanism.noise_multiplier
    return strength / math.sqrt(trainable_parameters)


def signal_notes(share: float) -> list[str]:
    """Return advice if little can be learned at this signal share; otherwise an empty list.

    If nothing can be learned at this share, ``noise_warnings`` returns a warning instead.
    """
    if not LEAST_SHARE <= share < LITTLE_SHARE:
        return []
    return [
        f"with a signal-to-noise ratio below {LITTLE_SHARE:g}, the model can learn little. More"
        " examples, a higher eps or fewer trainable parameters (method=lora, bitfit, linear_probe)"
        " raise the ratio most; larger batches and more epochs raise it a little."
    ]


def noise_warnings(
    mechanism: SampledGaussian, *, expected_batch_size: float, trainable_parameters: int = 1
) -> list[str]:
    """Return a warning if the noise hides any signal; otherwise an empty list.

    Args:
        mechanism: Mechanism of the whole run.
        expected_batch_size: Sample rate times the public number of units.
        trainable_parameters: Number of values that get noise; 1 if this number is not known.
    """
    sizes = {"expected_batch_size": expected_batch_size}
    strength = signal_share(mechanism, trainable_parameters=1, **sizes)
    share = signal_share(mechanism, trainable_parameters=trainable_parameters, **sizes)
    if strength >= LEAST_STRENGTH and share >= LEAST_SHARE:
        return []
    over = f" over {trainable_parameters:,} parameters" if trainable_parameters > 1 else ""
    return [
        f"the noise drowns any signal: even if all gradients of all {mechanism.steps} steps pointed"
        f" in one direction, their sum would be {share:.2g} times as long as the noise{over}, and"
        f" {strength:.2g} times the standard deviation of the noise in that direction. Raise eps,"
        " the number of examples or expected_batch_size, or train fewer parameters."
    ]


EXACT = Context(prec=60, traps=[])
"""Decimal context with so many digits that only printing rounds the bound; e^1e9 is infinite."""
SIGNIFICANT, DECIMALS = 2, 1
"""Minimum significant digits and minimum decimals with which the error is rounded, in percent."""
LEAST_ERROR = Decimal("1e-6")
"""Error rate below which no percentage is printed, because such an error is negligible to
readers."""


def lowest_attack_error(epsilon: float, delta: float) -> Decimal:
    """Return the minimum error rate of a membership test, in [0, 1/2].

    Args:
        epsilon: At least 0.
        delta: In [0, 1].
    """
    weight = EXACT.add(EXACT.exp(Decimal(epsilon)), 1)
    return EXACT.divide(EXACT.subtract(1, Decimal(delta)), weight)


def best_attack_accuracy(epsilon: float, delta: float) -> str | None:
    """Return the maximum accuracy of a membership test in percent, rounded up.

    Return None if the accuracy is so close to 100 % that the bound is not informative.

    Guarantees:
        The printed number is never below the bound, and always below 100.

    >>> [best_attack_accuracy(epsilon, 1e-5) for epsilon in (3.0, 8.0, 40.0)]
    ['95.3', '99.967', None]
    """
    error = lowest_attack_error(epsilon, delta)
    if error < LEAST_ERROR:
        return None
    last = Decimal(1).scaleb(min((error * 100).adjusted() - SIGNIFICANT + 1, -DECIMALS))
    percent = (error * 100).quantize(last, rounding=ROUND_FLOOR)
    return f"{(100 - percent).normalize():f}"
