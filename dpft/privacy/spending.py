"""What a ledger says was spent: its noisy steps as mechanisms an accountant can compose.

Sensitivities and clipping do not enter: the noise is a multiple of the sensitivity, whatever it is.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.errors import InputError, StateError
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.ledger import LedgerRecord
from dpft.privacy.mechanisms.base import Mechanism, stream_of
from dpft.privacy.mechanisms.dp_sgd import DPSGD
from dpft.privacy.mechanisms.histogram import COUNTS, counts_of, histogram_of
from dpft.privacy.mechanisms.histogram import MECHANISM as HISTOGRAM
from dpft.privacy.plan import PrivacyPlan

MECHANISM = DPSGD.entry_name


@dataclass(frozen=True, order=True, kw_only=True)
class Noise:
    """What the cost of one noisy step depends on."""

    noise_multiplier: float
    sample_rate: float
    threshold_delta: float = 0.0
    """What of delta goes beside the noise, to the threshold of a histogram."""


def steps_taken(
    record: LedgerRecord, path: Path, *, planned: Noise | None = None
) -> dict[Noise, int]:
    """Returns how many Poisson-sampled Gaussians bound the steps taken, by their noise.

    Of DP-SGD they are the steps, of which those of equal noise add up; of another mechanism those
    that it says (``Mechanism.compositions``).

    A step whose line is torn, or that only the journal has, counts. What it was is not known, so it
    takes the least noise and the largest sample rate of the whole lines, and the most that a
    threshold took of delta, and a stream of its own, under which no step of the run cost more.

    Args:
        record: What the ledger says.
        path: The file, for messages.
        planned: What the first step would be, where the plan is known.

    Raises:
        InputError: No step is whole, one may have been taken, and ``planned`` is not known.
        StateError: A line is of a mechanism that cannot be accounted for; named by number.
    """
    plan = record.plan
    mechanism = plan.mechanism if isinstance(plan, PrivacyPlan) else DPSGD()
    streams: dict[Noise, Counter[Any]] = {}
    for step, entry in enumerate(record.mechanisms, start=1):
        noise = _noise(entry, mechanism, path, record.line_of(step))
        streams.setdefault(noise, Counter())[stream_of(entry)] += 1
    if record.counted_steps > record.steps:
        streams.setdefault(_costliest(streams, path, planned), Counter())["another"] += 1
    return {
        noise: mechanism.compositions(taken.values()) for noise, taken in sorted(streams.items())
    }


def as_mechanisms(taken: Mapping[Noise, int], delta: float) -> tuple[SampledGaussian, ...]:
    """Returns steps taken as mechanisms to account for at what thresholds leave of ``delta``.

    Raises:
        InputError: ``delta`` is out of range, or thresholds leave nothing of it.
    """
    thresholds = thresholds_delta(taken)
    if thresholds >= delta:
        raise InputError(
            f"delta must be above {thresholds:.4g}, which the thresholds of tokenizers take of it,"
            f" got {delta:.4g}; give a larger one."
        )
    return tuple(
        SampledGaussian(
            noise_multiplier=noise.noise_multiplier,
            sample_rate=noise.sample_rate,
            steps=steps,
            delta=delta - thresholds,
        )
        for noise, steps in taken.items()
    )


def added_up(*taken: Mapping[Noise, int]) -> dict[Noise, int]:
    """Returns the steps of several runs together; those of equal noise add up."""
    counts: Counter[Noise] = Counter()
    for steps in taken:
        counts.update(steps)
    return dict(sorted(counts.items()))


def thresholds_delta(taken: Mapping[Noise, int]) -> float:
    """Returns what the thresholds of histograms among these steps take of delta."""
    return math.fsum(noise.threshold_delta * steps for noise, steps in taken.items())


def _noise(entry: Mapping[str, Any], mechanism: Mechanism, path: Path, line: int) -> Noise:
    if entry.get("name") in (HISTOGRAM, COUNTS):
        return _noise_of_histogram(entry, path, line)
    noise, rate = (_number(entry.get(name)) for name in ("noise_multiplier", "sample_rate"))
    if entry.get("name") == mechanism.entry_name and 0 < noise < math.inf and 0 < rate <= 1:
        return Noise(noise_multiplier=noise, sample_rate=rate)
    raise StateError(
        f"{path}, line {line}: expected a {mechanism.entry_name} with noise_multiplier above 0 and"
        " sample_rate in (0, 1], got another mechanism, which no accountant here can bound. Put the"
        " ledger back as it was."
    )


def _noise_of_histogram(mechanism: Mapping[str, Any], path: Path, line: int) -> Noise:
    try:
        if mechanism["name"] == COUNTS:
            return Noise(noise_multiplier=counts_of(mechanism).noise_multiplier, sample_rate=1.0)
        histogram = histogram_of(mechanism)
    except (ArithmeticError, InputError, KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{path}, line {line}: expected a {mechanism['name']} whose numbers go together, got"
            " another one. Put the ledger back as it was."
        ) from error
    return Noise(
        noise_multiplier=histogram.noise_multiplier,
        sample_rate=1.0,
        threshold_delta=histogram.threshold_delta,
    )


def _number(value: Any) -> float:
    """Returns a number as float; not a number where it is none, infinity where it is too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _costliest(counts: Collection[Noise], path: Path, planned: Noise | None) -> Noise:
    if counts:
        return Noise(
            noise_multiplier=min(noise.noise_multiplier for noise in counts),
            sample_rate=max(noise.sample_rate for noise in counts),
            threshold_delta=max(noise.threshold_delta for noise in counts),
        )
    if planned is None:
        raise InputError(
            f"{path} must hold one whole step, got none, so that the noise of the one"
            " step that may have been taken is unknown; go on with the run by resume=RUN."
        )
    return planned
