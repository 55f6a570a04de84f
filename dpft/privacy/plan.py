"""The plan a private run is bound to before it sees a record.

Sampler, noise, ledger, accountants and reports all take their numbers from its one ``mechanism``,
so what is reported is what was run (docs/design.md, rule 1). Its fields are public configuration;
nothing here depends on data.
"""

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from dpft.errors import InputError
from dpft.kinds import PUBLISHED

if TYPE_CHECKING:
    from dpft.privacy.accounting.mechanism import SampledGaussian

NEIGHBORING_RELATION = "add_or_remove_one"
SAMPLER = "poisson"
NO_SAMPLING = "none"
"""Every unit takes part, as in a histogram."""
EXAMPLE = "example"
"""The unit of privacy where each record is one of its own."""
CHUNK = "chunk"
"""The unit of privacy where a record is cut into chunks, and each is one of its own."""
GIVEN = "given"
"""The source of a delta that the configuration gives."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of steps under one method and one clipping norm."""

    method: str
    steps: int
    max_grad_norm: float
    sensitivity: float
    """Most that one unit can move the clipped sum, in L2 norm."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What chose the noise multiplier, so that any machine reports the same epsilon."""

    accountant: str
    epsilon: float
    """Reported upper bound for exactly the planned steps."""
    grid: str
    """Precision the accountant ran at, in words."""


@dataclass(frozen=True, kw_only=True)
class ClippingPlan:
    """What a run draws and how it clips that, step by step: a mechanism but for its noise.

    Alone it is the plan of a run with ``privacy=none`` and a clipping norm, and promises nothing.
    """

    sample_rate: float
    steps: int
    num_examples: int
    expected_batch_size: int
    clipping: str
    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        if sum(phase.steps for phase in self.phases) != self.steps:
            raise ValueError(f"phases must add up to steps={self.steps}, got {self.phases}.")
        if not 0 < self.sample_rate <= 1:
            raise ValueError(f"sample_rate must be in (0, 1], got {self.sample_rate}.")

    @property
    def drawn_rate(self) -> float:
        """The chance with which each unit joins a step."""
        return self.sample_rate

    @property
    def one_max_grad_norm(self) -> float | None:
        """The norm above which a gradient is clipped, where all phases share one."""
        norms = {phase.max_grad_norm for phase in self.phases}
        return norms.pop() if self.clipping == "flat" and len(norms) == 1 else None

    def phase_at(self, step: int) -> Phase:
        """Returns the phase that step ``step`` (counted from 0) belongs to."""
        return self.phases[self.phase_number_at(step)]

    def phase_number_at(self, step: int) -> int:
        """Returns which of ``phases`` step ``step`` belongs to, both counted from 0."""
        end = 0
        for number, phase in enumerate(self.phases):
            end += phase.steps
            if step < end:
                return number
        raise IndexError(f"step must be below {self.steps}, got {step}.")

    def phase_starts(self) -> tuple[int, ...]:
        """Returns the first step of each of ``phases``, counted from 0."""
        return tuple(accumulate((phase.steps for phase in self.phases[:-1]), initial=0))


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan(ClippingPlan):
    """The sampled Gaussian mechanism a run will take, step by step.

    Guarantees:
        ``mechanism`` is what the sampler and the noise do, and what is accounted for: each of
        ``num_examples`` public units joins a step independently with its ``sample_rate``, and the
        sum, of the phase's sensitivity, gets Gaussian noise of its ``noise_multiplier`` times that.
    """

    noise_multiplier: float
    delta: float
    unit: str = EXAMPLE
    """example, or the column whose value says whose record a row is."""
    unit_definition: str = "one example"
    """What the unit is, in words that follow "the unit is"."""
    neighboring_relation: str = NEIGHBORING_RELATION
    sampler: str = SAMPLER
    calibration: Calibration | None = None
    delta_source: str = GIVEN
    """``GIVEN``, or the rule of ``DELTA_RULES`` that delta follows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.noise_multiplier > 0:
            raise ValueError(f"noise_multiplier must be positive, got {self.noise_multiplier}.")

    @property
    def drawn_rate(self) -> float:
        """The mechanism's, so that units are drawn as they are accounted for."""
        return self.mechanism().sample_rate

    def mechanism(self, steps: int | None = None) -> "SampledGaussian":
        """Returns ``steps`` steps (default: all) as what is carried out and accounted for.

        The noise of every phase is the same multiple of its sensitivity, so phases compose as
        one run. Nobody else makes a mechanism of a plan's fields.
        """
        # here, since calibration gives what a plan holds
        from dpft.privacy.accounting.mechanism import SampledGaussian

        return SampledGaussian(
            noise_multiplier=self.noise_multiplier,
            sample_rate=self.sample_rate,
            steps=self.steps if steps is None else steps,
            delta=self.delta,
        )

    def mechanism_at(self, step: int) -> dict[str, str | float]:
        """Returns what the ledger says of step ``step`` (counted from 0)."""
        mechanism = self.mechanism()
        return {
            "name": "poisson_sampled_gaussian",
            "noise_multiplier": mechanism.noise_multiplier,
            "sample_rate": mechanism.sample_rate,
            "sensitivity": self.phase_at(step).sensitivity,
        }


def planned_steps(*, epochs: float, num_examples: int, expected_batch_size: float) -> int:
    """Returns ``max(1, floor(epochs * num_examples / expected_batch_size))``, the one formula."""
    return max(1, math.floor(epochs * num_examples / expected_batch_size))


def default_delta(num_examples: int, rule: str) -> float:
    """Returns the delta of a run whose configuration gives none.

    >>> default_delta(42061, "published") == 1 / 84122
    True
    >>> default_delta(42061, "own_data"), default_delta(1000, "own_data")
    (2e-06, 0.0001)

    Args:
        num_examples: The public number of units, n.
        rule: ``PUBLISHED``, 1/(2n), as in the papers (Li et al. 2022, section 2); or ``OWN_DATA``,
            1/(10n) rounded down to one significant digit.

    """
    if rule == PUBLISHED:
        return 1 / (2 * num_examples)
    # In integers: floats would round some n, as 1/(10 * 3) does, up to the next digit.
    least = 10 * num_examples
    exponent = len(str(least - 1))  # 10 ** exponent is the least power of ten that reaches it
    return float(f"{10**exponent // least}e-{exponent}")


def check_delta(delta: float, *, num_examples: int, allow_large: bool) -> None:
    """Refuses a delta above 1/num_examples, under which publishing one record would be private.

    Raises:
        InputError: delta is not in (0, 1), or exceeds 1/num_examples and ``allow_large`` is off.
    """
    if not 0 < delta < 1:
        raise InputError(f"privacy.delta must be in (0, 1), got {delta}.")
    if delta > 1 / num_examples and not allow_large:
        raise InputError(
            f"privacy.delta must be at most 1/num_examples = {1 / num_examples:.3g}, got "
            f"{delta:.3g}; lower it, or set privacy.allow_large_delta=true."
        )
