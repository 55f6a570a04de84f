"""Whether the noise of a run drowns whatever its records could teach; of public numbers alone.

A warning is public, so nothing here may depend on a record: not on gradients, which it is about.
What is left is the best case. Clipped gradients have at most the length C, so that those of a batch
of the expected size B sum to at most B * C, where all point the same way, and those of T steps to
T * B * C. The noise of T steps has the standard deviation sqrt(T) * noise_multiplier * C in every
direction, and about sqrt(d) times that as its length over d trainable parameters. Hence, with
``strength`` for sqrt(T) * B / noise_multiplier:

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
    """Returns the best case of all gradients of a run over their noise, in length.

    Args:
        mechanism: Of the whole run.
        expected_batch_size: Its sample rate times the public number of units.
        trainable_parameters: How many numbers get noise.
    """
    strength = math.sqrt(mechanism.steps) * expected_batch_size / mechanism.noise_multiplier
    return strength / math.sqrt(trainable_parameters)


def signal_notes(share: float) -> list[str]:
    """Returns what raises the share of signal where it leaves little to learn; else nothing.

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
    """Returns a warning where noise drowns any signal, else none.

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
