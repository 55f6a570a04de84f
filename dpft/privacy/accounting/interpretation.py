"""Explain epsilon: accuracy of membership guesses, and the noise relative to the gradients.

*Membership.* A test sees the released model, knows every record but those of one unit, and says
whether that unit was among those trained on. Where the mechanism is (eps, delta)-differentially
private, its errors satisfy ``false_positives + e^eps * false_negatives >= 1 - delta``, and the same
with the two exchanged (Kairouz et al. 2015, arXiv 1311.0776, Theorem 2.1). The sum of both bounds
the advantage, ``1 - false_positives - false_negatives``, by
``(e^eps - 1 + 2 delta) / (e^eps + 1)``. Where either case is as likely as the other, the test is
therefore wrong with a probability of at least ``(1 - delta) / (e^eps + 1)``; some mechanism of this
epsilon and delta meets it with equality.

*Signal.* A warning is public, so it may not depend on a record: not on gradients, which it is
about. What is left is the best case. Clipped gradients have at most the length C, so that those of
a batch of the expected size B sum to at most B * C, where all point the same way, and those of T
steps to T * B * C. The noise of T steps has the standard deviation sqrt(T) * noise_multiplier * C
in every direction, and about sqrt(d) times that as its length over d trainable parameters. Hence,
with ``strength`` for sqrt(T) * B / noise_multiplier:

- Along the best direction, once that is known, signal to noise is ``strength``. T steps of
  sensitivity B * C are ``strength``-Gaussian-DP (Dong et al. 2019, Corollary 3.3) for all records
  of batches of size B at once, so who guesses from the model whether it was trained on them or on
  nothing is right at most Phi(strength / 2) of the time: 0.69 at 1. No optimizer makes more of it.
- Over all parameters, signal to noise in length is ``strength`` / sqrt(d). This is no proof:
  a signal in few directions can be learnt below 1, and is (private fine-tuning of large models
  works at 0.2 and more in this best case, Li et al. 2022). Far below, an update is noise in all
  but name. An encoder of 23 million parameters learned nothing of 600 sentences at 0.2, and its
  head alone, at 34, did (docs/how-to/bad-scores.md): below 0.5 ``dpft plan`` says so.
"""

import math
from decimal import ROUND_FLOOR, Context, Decimal

from dpft.privacy.accounting.mechanism import SampledGaussian

LEAST_STRENGTH = 1.0
"""Best-case signal to noise in a known direction below which nothing can be learnt."""
LEAST_SHARE = 0.01
"""Best-case signal to noise in length below which an update is noise: a twentieth of the least of
the published recipes at epsilon 0.5."""
LITTLE_SHARE = 0.5
"""Below it little is left to learn, though an update is not noise alone."""


def signal_share(
    mechanism: SampledGaussian, *, expected_batch_size: float, trainable_parameters: int
) -> float:
    """Return the best case of all gradients of a run over their noise, in length.

    Args:
        mechanism: Of the whole run.
        expected_batch_size: Its sample rate times the public number of units.
        trainable_parameters: How many numbers get noise.
    """
    strength = math.sqrt(mechanism.steps) * expected_batch_size / mechanism.noise_multiplier
    return strength / math.sqrt(trainable_parameters)


def signal_notes(share: float) -> list[str]:
    """Return what raises the share of signal where it leaves little to learn; else nothing.

    Where it leaves nothing at all, ``noise_warnings`` says so instead.
    """
    if not LEAST_SHARE <= share < LITTLE_SHARE:
        return []
    return [
        f"a signal-to-noise ratio below {LITTLE_SHARE:g} leaves little to learn: more examples, a"
        " higher eps or fewer trainable parameters (method=lora, bitfit or linear_probe) raise it"
        " most, larger batches and more epochs a little."
    ]


def noise_warnings(
    mechanism: SampledGaussian, *, expected_batch_size: float, trainable_parameters: int = 1
) -> list[str]:
    """Return a warning where noise drowns any signal, else none.

    Args:
        mechanism: Of the whole run.
        expected_batch_size: Its sample rate times the public number of units.
        trainable_parameters: How many numbers get noise; 1 where that is not known.
    """
    sizes = {"expected_batch_size": expected_batch_size}
    strength = signal_share(mechanism, trainable_parameters=1, **sizes)
    share = signal_share(mechanism, trainable_parameters=trainable_parameters, **sizes)
    if strength >= LEAST_STRENGTH and share >= LEAST_SHARE:
        return []
    over = f" over {trainable_parameters:,} parameters" if trainable_parameters > 1 else ""
    return [
        f"the noise drowns any signal: if all gradients of all {mechanism.steps} steps pointed the"
        f" same way, their sum would be {share:.2g} times as long as the noise{over}, and"
        f" {strength:.2g} times its standard deviation in that direction; raise eps, the number of"
        " examples or expected_batch_size, or train fewer parameters."
    ]


EXACT = Context(prec=60, traps=[])
"""In how many digits the bound is computed, so that only printing rounds; e^1e9 is infinite."""
SIGNIFICANT, DECIMALS = 2, 1
"""Digits of the least percentage of errors as it is printed, and decimals, whichever is more."""
LEAST_ERROR = Decimal("1e-6")
"""An error this rare is none to a reader: no percentage is printed."""


def lowest_attack_error(epsilon: float, delta: float) -> Decimal:
    """Return how often, at least, a test of membership is wrong, in [0, 1/2].

    Args:
        epsilon: At least 0.
        delta: In [0, 1].
    """
    weight = EXACT.add(EXACT.exp(Decimal(epsilon)), 1)
    return EXACT.divide(EXACT.subtract(1, Decimal(delta)), weight)


def best_attack_accuracy(epsilon: float, delta: float) -> str | None:
    """Return, in percent and rounded up, how often a test of membership can be right.

    None where that is so close to always that the bound tells nothing.

    Guarantees:
        The printed number is never below the bound, and below 100.

    >>> [best_attack_accuracy(epsilon, 1e-5) for epsilon in (3.0, 8.0, 40.0)]
    ['95.3', '99.967', None]
    """
    error = lowest_attack_error(epsilon, delta)
    if error < LEAST_ERROR:
        return None
    last = Decimal(1).scaleb(min((error * 100).adjusted() - SIGNIFICANT + 1, -DECIMALS))
    percent = (error * 100).quantize(last, rounding=ROUND_FLOOR)
    return f"{(100 - percent).normalize():f}"
