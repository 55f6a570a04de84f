"""The public plan of a private run, fixed before any record is used.

The sampler, noise, ledger, accountants and reports all use the plan's one ``mechanism`` and one
``event``. Reports therefore describe exactly what was run (docs/dev/design.md, rule 1). All fields
are public configuration; nothing depends on data.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dpft.constants import PUBLISHED
from dpft.errors import InputError
from dpft.privacy.accounting.calibration import Calibration
from dpft.privacy.accounting.mechanism import Composition, SampledGaussian
from dpft.privacy.mechanisms.base import AnyMechanism, GaussianStep
from dpft.privacy.mechanisms.dp_sgd import DPSGD
from dpft.privacy.mechanisms.histogram import Histogram
from dpft.strict_model import AtLeastOne, Delta, Positive, Rate, StrictModel

DeltaSource = Literal["given", "own_data", "published"]
Relation = Literal["add_or_remove_one"]
Sampler = Literal["poisson", "cyclic_poisson", "mixed", "none"]
Clipping = Literal["flat", "automatic", "automatic_v", "per_layer"]
NEIGHBORING_RELATION: Relation = "add_or_remove_one"
SAMPLER: Literal["poisson"] = "poisson"
NO_SAMPLING: Literal["none"] = "none"
"""Name of the sampler for a step in which every unit takes part, such as a histogram."""
EXAMPLE = "example"
"""Privacy unit if each record is a unit."""
CHUNK = "chunk"
"""Privacy unit if records are cut into chunks and each chunk is a unit."""
GIVEN: DeltaSource = "given"
"""Source of a delta that the configuration sets."""


class Phase(StrictModel):
    """Consecutive steps with one method and one clipping norm."""

    method: str
    """Name of the method, which determines the trainable parameters."""
    steps: AtLeastOne
    """Number of noisy steps in the phase."""
    max_grad_norm: Positive
    """Clipping norm of the phase."""
    sensitivity: Positive
    """Maximum L2 norm by which one unit can change the clipped sum."""


class StepsPlan(StrictModel):
    """Number of steps, batch size and examples of a run: the plan of non-private training."""

    num_examples: AtLeastOne
    """Number of examples or privacy units, treated as public."""
    expected_batch_size: AtLeastOne
    """Expected number of units per step, and the divisor of each noisy sum."""
    steps: AtLeastOne
    """Number of planned steps."""


class ClippingPlan(StepsPlan):
    """Plan of the draws and the clipping of each step: a mechanism without its noise.

    This class itself is the plan of a run with ``privacy=none`` and a clipping norm, which gives no
    guarantee.
    """

    sample_rate: Rate
    """Probability with which each unit takes part in a step."""
    clipping: Clipping
    """Clipping style: how gradients are scaled."""
    phases: Annotated[tuple[Phase, ...], Field(min_length=1)]
    """Phases in order, each with one method and one clipping norm."""

    def _check_fields(self) -> None:
        if sum(phase.steps for phase in self.phases) != self.steps:
            raise ValueError(f"phases must add up to steps={self.steps}, got {self.phases}.")

    @property
    def one_max_grad_norm(self) -> float | None:
        """Clipping norm of all phases, or None if phases differ or clipping is not flat."""
        norms = {phase.max_grad_norm for phase in self.phases}
        return norms.pop() if self.clipping == "flat" and len(norms) == 1 else None

    def phase_at(self, step: int) -> Phase:
        """Return the phase that contains step ``step`` (counted from 0)."""
        return self.phases[self.phase_number_at(step)]

    def phase_number_at(self, step: int) -> int:
        """Return the index in ``phases`` of the phase that contains step ``step``, both from 0."""
        end = 0
        for number, phase in enumerate(self.phases):
            end += phase.steps
            if step < end:
                return number
        raise IndexError(f"step must be below {self.steps}, got {step}.")

    def phase_starts(self) -> tuple[int, ...]:
        """Return the first step of each of ``phases``, counted from 0."""
        return tuple(accumulate((phase.steps for phase in self.phases[:-1]), initial=0))


class SpentBefore(StrictModel):
    """Privacy that the same records already spent on a histogram, according to its ledger.

    The histogram belongs to the run's tokenizer or to a synthesis.
    """

    run_id: str
    """Run id in the ledger of the histogram."""
    lines: AtLeastOne
    """Number of lines in this ledger."""
    head: str
    """Hash of the last line of this ledger."""
    delta: Delta
    """Delta of the histogram."""
    mechanism: Histogram
    """The one step in this ledger."""

    def _check_fields(self) -> None:
        _check_same("delta", self.delta, self.mechanism.delta)


class WhomItProtects(StrictModel):
    """Privacy unit, delta and further facts that a reader of the guarantee must know."""

    delta: Delta
    """Target delta."""
    delta_source: DeltaSource = GIVEN
    """given if privacy.delta is set; otherwise the rule of task.default_delta: own_data (1/(10n),
    rounded down) or published (1/(2n), as in the papers)."""
    unit: str = EXAMPLE
    """example, or the column whose value identifies the owner of a row."""
    unit_definition: str = "one example"
    """Definition of the privacy unit, as a phrase that follows "the unit is"."""
    neighboring_relation: Relation = NEIGHBORING_RELATION
    """How neighboring data sets differ."""
    reproducible: bool = False
    """Whether a test seed made the randomness predictable, so that nothing is protected."""
    data_id: str | None = None
    """Public name that the owner gave the data. A total over several runs may skip runs with
    another name."""


class PrivacyPlan(ClippingPlan, WhomItProtects):
    """Plan of a private run, step by step.

    Guarantees:
        ``mechanism`` defines how units are drawn and how the noise of different steps is
        correlated, at the plan's ``sample_rate`` and ``noise_multiplier``. ``event`` is the cost of
        exactly these numbers.
    """

    noise_multiplier: Positive
    """Standard deviation of the noise divided by the sensitivity."""
    mechanism: AnyMechanism = DPSGD()
    """Name and numbers of the mechanism, which relates the draws and the noise of different steps.
    Absent: dp_sgd, whose steps are independent."""
    sampler: Sampler = SAMPLER
    """How units are drawn."""
    calibration: Calibration | None = None
    """How the noise multiplier was calibrated; absent if the noise multiplier was given."""
    accountant: str = "prv"
    """Accountant whose bound is the headline of a report."""
    is_trial: bool = False
    """Whether the run is one of a secret number of trials of a search. The bound of the search
    covers all trials."""
    tokenizer: SpentBefore | None = None
    """Privacy that the same records already spent on the run's tokenizer, if it adds to that of the
    training.
    """
    counts: SpentBefore | None = None
    """Histogram of a synthesis. The run's epsilon covers both the histogram and the training."""

    def _check_fields(self) -> None:
        super()._check_fields()
        if self.counts is not None:
            _check_same("delta", self.delta, self.counts.delta)
            _check_same("num_examples", self.num_examples, self.counts.mechanism.num_examples)
        if self.counts is not None and self.calibration is not None:
            raise ValueError("counts need a given noise: a calibration is of the steps alone.")
        if self.mechanism.has_streams:
            if len(self.phases) > 1:
                raise ValueError(f"mechanism={self.mechanism.name} must be of one phase.")
            rate = self.mechanism.rate(self.expected_batch_size / self.num_examples)
            if not math.isclose(self.sample_rate, rate, rel_tol=1e-9):
                raise ValueError(f"sample_rate must be {rate}, got {self.sample_rate}.")

    def event(self, streams: Iterable[int] | None = None) -> SampledGaussian:
        """Return the Poisson-sampled Gaussians that cost as much as the steps.

        The noise of every phase is the same multiple of the phase's sensitivity, so all phases
        compose as one run. No other code builds this event from the fields of a plan.

        Args:
            streams: Number of steps taken in each stream of noise; None: all planned steps in one
                stream.
        """
        return SampledGaussian(
            noise_multiplier=self.noise_multiplier,
            sample_rate=self.sample_rate,
            steps=self.mechanism.compositions((self.steps,) if streams is None else streams),
            delta=self.delta,
        )

    def cost(self, streams: Iterable[int] | None = None) -> SampledGaussian | Composition:
        """Return the total cost of the run: ``event`` and, for a synthesis, its histogram."""
        event = self.event(streams)
        if self.counts is None:
            return event
        noise = self.counts.mechanism.noise_multiplier
        histogram = replace(event, noise_multiplier=noise, sample_rate=1.0, steps=1)
        return Composition(parts=(event, histogram))

    def may_end_after(self, streams: Sequence[int]) -> bool:
        """Return whether a run with these numbers of steps per stream is complete.

        An interrupted run may end with fewer steps than planned if they cost as much as the plan.
        """
        cost, planned = map(self.mechanism.compositions, (streams, (self.steps,)))
        return cost >= planned

    def as_independent(self) -> SampledGaussian:
        """Return the mechanism of independent noise with the same noise in the final weights."""
        factor = self.mechanism.last_noise([1.0] * self.steps)
        return SampledGaussian(
            noise_multiplier=self.noise_multiplier * factor,
            sample_rate=self.expected_batch_size / self.num_examples,
            steps=self.steps,
            delta=self.delta,
        )

    def entry_at(self, step: int, *, stream: int = 0) -> GaussianStep:
        """Return the ledger entry of step ``step`` (counted from 0).

        Args:
            step: Step of the run.
            stream: Number of steps in the ledger when the stream of this step began.
        """
        event = self.event()
        return GaussianStep(
            name=self.mechanism.entry_name,
            noise_multiplier=event.noise_multiplier,
            sample_rate=event.sample_rate,
            sensitivity=self.phase_at(step).sensitivity,
            bands=getattr(self.mechanism, "bands", None),
            stream=stream if self.mechanism.has_streams else None,
        )


class HistogramPlan(WhomItProtects):
    """Plan with one step, Gaussian noise on a histogram of words or of public cells."""

    histogram: Histogram
    """The step in the ledger."""
    num_examples: AtLeastOne
    """Number of examples or privacy units, treated as public."""
    sampler: Literal["none"] = NO_SAMPLING
    """Sampler; every unit takes part."""

    steps: ClassVar[int] = 1
    accountant: ClassVar[str] = "prv"
    is_trial: ClassVar[bool] = False
    tokenizer: ClassVar[None] = None
    counts: ClassVar[None] = None
    calibration: ClassVar[None] = None

    def _check_fields(self) -> None:
        for name in ("delta", "num_examples"):
            _check_same(name, getattr(self, name), getattr(self.histogram, name))

    @property
    def expected_batch_size(self) -> int:
        """Number of units in the step: every unit takes part."""
        return self.num_examples

    def phase_starts(self) -> tuple[int, ...]:
        """Return the first step of the only phase."""
        return (0,)

    def entry_at(self, step: int) -> Histogram:
        """Return the ledger entry of the only step."""
        return self.histogram


Plan = PrivacyPlan | HistogramPlan
"""A plan that the first line of a ledger can contain."""


def _check_same(name: str, planned: float, of_histogram: float | None) -> None:
    if planned != of_histogram:
        raise ValueError(f"the plan's {name} must be its histogram's, got {planned!r}.")


def planned_steps(*, epochs: float, num_examples: int, expected_batch_size: float) -> int:
    """Return ``max(1, floor(epochs * num_examples / expected_batch_size))``.

    All callers share this function, so that the number of steps is computed in one way.
    """
    return max(1, math.floor(epochs * num_examples / expected_batch_size))


def default_delta(num_examples: int, rule: str) -> float:
    """Return the delta of a run whose configuration does not set delta.

    >>> default_delta(42061, "published") == 1 / 84122
    True
    >>> default_delta(42061, "own_data"), default_delta(1000, "own_data")
    (2e-06, 0.0001)

    Args:
        num_examples: Public number of units, n.
        rule: ``PUBLISHED`` for 1/(2n), as in the papers (Li et al. 2022, section 2), or
            ``OWN_DATA`` for 1/(10n) rounded down to one significant digit.
    """
    if rule == PUBLISHED:
        return 1 / (2 * num_examples)
    # Integer arithmetic, because floats round up to the next digit for some n, such as 1/(10 * 3).
    least = 10 * num_examples
    exponent = len(str(least - 1))  # 10 ** exponent: the least power of ten that is >= least
    return float(f"{10**exponent // least}e-{exponent}")


def check_delta(delta: float, *, num_examples: int, allow_large: bool) -> None:
    """Reject a delta above 1/num_examples, with which publishing one record would count as private.

    Raises:
        InputError: delta is not in (0, 1), or exceeds 1/num_examples and ``allow_large`` is off.
    """
    if not 0 < delta < 1:
        raise InputError(
            f"privacy.delta must be in (0, 1), got {delta}.", key="privacy.delta", value=delta
        )
    if delta > 1 / num_examples and not allow_large:
        raise InputError(
            f"privacy.delta must be at most 1/num_examples = {1 / num_examples:.3g}, got "
            f"{delta:.3g}. Lower it, or allow it with privacy.allow_large_delta=true.",
            key="privacy.delta",
            value=delta,
        )
