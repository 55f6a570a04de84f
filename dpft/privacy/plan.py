"""The public plan of a private run; it is fixed before any record is used.

Sampler, noise, ledger, accountants and reports all ask its one ``mechanism`` and its one ``event``,
so what is reported is what was run (docs/dev/design.md, rule 1). Its fields are public
configuration; nothing here depends on data.
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
"""Every unit takes part, as in a histogram."""
EXAMPLE = "example"
"""The unit of privacy where each record is one of its own."""
CHUNK = "chunk"
"""The unit of privacy where a record is cut into chunks, and each is one of its own."""
GIVEN: DeltaSource = "given"
"""The source of a delta that the configuration gives."""


class Phase(StrictModel):
    """A stretch of steps under one method and one clipping norm."""

    method: str
    """What trains in it."""
    steps: AtLeastOne
    """Noisy steps of the phase."""
    max_grad_norm: Positive
    """Clipping norm of the phase."""
    sensitivity: Positive
    """Most that one unit can move the clipped sum, in L2 norm."""


class StepsPlan(StrictModel):
    """How often a run trains on how many of its examples: the plan of ordinary training."""

    num_examples: AtLeastOne
    """Number of examples, or of units, taken as public."""
    expected_batch_size: AtLeastOne
    """Units of a step in expectation, the divisor of each noisy sum."""
    steps: AtLeastOne
    """Planned steps."""


class ClippingPlan(StepsPlan):
    """What a run draws and how it clips that, step by step: a mechanism but for its noise.

    Alone it is the plan of a run with ``privacy=none`` and a clipping norm, and promises nothing.
    """

    sample_rate: Rate
    """Probability with which each unit is in a step."""
    clipping: Clipping
    """How gradients are clipped."""
    phases: Annotated[tuple[Phase, ...], Field(min_length=1)]
    """Stretches of steps under one method and one clipping norm."""

    def _check_fields(self) -> None:
        if sum(phase.steps for phase in self.phases) != self.steps:
            raise ValueError(f"phases must add up to steps={self.steps}, got {self.phases}.")

    @property
    def one_max_grad_norm(self) -> float | None:
        """The norm above which a gradient is clipped, where all phases share one."""
        norms = {phase.max_grad_norm for phase in self.phases}
        return norms.pop() if self.clipping == "flat" and len(norms) == 1 else None

    def phase_at(self, step: int) -> Phase:
        """Return the phase that step ``step`` (counted from 0) belongs to."""
        return self.phases[self.phase_number_at(step)]

    def phase_number_at(self, step: int) -> int:
        """Return which of ``phases`` step ``step`` belongs to, both counted from 0."""
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
    """What the same records spent before on a histogram, as that one's ledger has it.

    It is the histogram of the run's tokenizer, or that of a synthesis.
    """

    run_id: str
    """What names the histogram's ledger."""
    lines: AtLeastOne
    """Lines of it."""
    head: str
    """Hash of the last of them."""
    delta: Delta
    """Delta of the histogram."""
    mechanism: Histogram
    """The ledger's one step."""

    def _check_fields(self) -> None:
        _check_same("delta", self.delta, self.mechanism.delta)


class WhomItProtects(StrictModel):
    """Whose contribution a private run hides, at which delta, and what a reader must know of it."""

    delta: Delta
    """The promised delta."""
    delta_source: DeltaSource = GIVEN
    """given, by privacy.delta; or the rule of task.default_delta: own_data, 1/(10n) rounded down,
    or published, the papers' 1/(2n)."""
    unit: str = EXAMPLE
    """example, or the column whose value says whose record a row is."""
    unit_definition: str = "one example"
    """What the unit is, in words that follow "the unit is"."""
    neighboring_relation: Relation = NEIGHBORING_RELATION
    """How neighboring data sets differ."""
    reproducible: bool = False
    """Whether a seed for tests made the randomness predictable, so that nothing is protected."""
    data_id: str | None = None
    """The owner's public name of the data; runs of different names may be left out of a total."""


class PrivacyPlan(ClippingPlan, WhomItProtects):
    """What a private run will do, step by step.

    Guarantees:
        ``mechanism`` says how units are drawn and how the noise of steps hangs together, at the
        plan's ``sample_rate`` and ``noise_multiplier``; ``event`` is what that costs, of the same
        numbers.
    """

    noise_multiplier: Positive
    """Standard deviation of the noise over the sensitivity."""
    mechanism: AnyMechanism = DPSGD()
    """How draws and noise of steps hang together, by name, and its numbers. Absent: dp_sgd, where
    no step knows another's."""
    sampler: Sampler = SAMPLER
    """How units are drawn."""
    calibration: Calibration | None = None
    """What chose the noise multiplier; absent if it was given."""
    accountant: str = "prv"
    """Whose bound leads a report."""
    is_trial: bool = False
    """Whether it is one of a secret number of trials of a search, whose bound holds for all."""
    tokenizer: SpentBefore | None = None
    """What the same records spent before, on the run's tokenizer, where it adds to the training's.
    """
    counts: SpentBefore | None = None
    """The histogram of a synthesis: the run's own epsilon is of it and of the training."""

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
        """Return what accountants judge: Poisson-sampled Gaussians that cost as much as steps.

        The noise of every phase is the same multiple of its sensitivity, so phases compose as
        one run. Nobody else makes one of a plan's fields.

        Args:
            streams: How many steps were taken in each stream; None: all that are planned, in one.
        """
        return SampledGaussian(
            noise_multiplier=self.noise_multiplier,
            sample_rate=self.sample_rate,
            steps=self.mechanism.compositions((self.steps,) if streams is None else streams),
            delta=self.delta,
        )

    def cost(self, streams: Iterable[int] | None = None) -> SampledGaussian | Composition:
        """Return what the run's epsilon is of: ``event``, and the histogram of its synthesis."""
        event = self.event(streams)
        if self.counts is None:
            return event
        noise = self.counts.mechanism.noise_multiplier
        histogram = replace(event, noise_multiplier=noise, sample_rate=1.0, steps=1)
        return Composition(parts=(event, histogram))

    def may_end_after(self, streams: Sequence[int]) -> bool:
        """Return whether streams of so many steps are a whole run's.

        One that broke off may end with fewer steps than planned, which cost as much.
        """
        cost, planned = map(self.mechanism.compositions, (streams, (self.steps,)))
        return cost >= planned

    def as_independent(self) -> SampledGaussian:
        """Return steps of independent noise that leave as much of it in the last weights."""
        factor = self.mechanism.last_noise([1.0] * self.steps)
        return SampledGaussian(
            noise_multiplier=self.noise_multiplier * factor,
            sample_rate=self.expected_batch_size / self.num_examples,
            steps=self.steps,
            delta=self.delta,
        )

    def entry_at(self, step: int, *, stream: int = 0) -> GaussianStep:
        """Return what the ledger says of step ``step`` (counted from 0).

        Args:
            step: Of the run.
            stream: How many steps were in the ledger when the step's stream began.
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
    """The one step of a private vocabulary or of public cells: Gaussian noise on a histogram."""

    histogram: Histogram
    """The ledger's step."""
    num_examples: AtLeastOne
    """Number of examples, or of units, taken as public."""
    sampler: Literal["none"] = NO_SAMPLING
    """Every unit takes part."""

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
        """Every unit takes part."""
        return self.num_examples

    def phase_starts(self) -> tuple[int, ...]:
        """Return the first step of its one phase."""
        return (0,)

    def entry_at(self, step: int) -> Histogram:
        """Return what the ledger says of its one step."""
        return self.histogram


Plan = PrivacyPlan | HistogramPlan
"""What a ledger's first line can hold."""


def _check_same(name: str, planned: float, of_histogram: float | None) -> None:
    if planned != of_histogram:
        raise ValueError(f"the plan's {name} must be its histogram's, got {planned!r}.")


def planned_steps(*, epochs: float, num_examples: int, expected_batch_size: float) -> int:
    """Return ``max(1, floor(epochs * num_examples / expected_batch_size))``, the one formula."""
    return max(1, math.floor(epochs * num_examples / expected_batch_size))


def default_delta(num_examples: int, rule: str) -> float:
    """Return the delta of a run whose configuration gives none.

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
    """Reject a delta above 1/num_examples, under which publishing one record would be private.

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
