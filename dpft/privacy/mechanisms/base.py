"""Base class of mechanisms, and their registry.

A run's plan contains one ``Mechanism`` in addition to the numbers that all mechanisms have: noise
multiplier, sample rate of a draw, steps and delta. The mechanism gives the engine a sampler and the
noise of a step. For accountants, ``compositions`` returns the number of Poisson-sampled Gaussians
that cost as much as the steps taken. ``entry_name`` and ``has_streams`` define the ledger entry of
a step. A mechanism whose cost no ``SampledGaussian`` bounds is not supported, because there would
be no accountant for it.

A stream is the part of a run that shares one history of noise. A run is one stream, unless it was
interrupted and cannot repeat its draws. A new stream with new keys then begins.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol

from pydantic import BeforeValidator, SerializeAsAny

from dpft.config.section import Section
from dpft.registry import Registry
from dpft.strict_model import AtLeastOne, Count, Positive, Rate, StrictModel, parse

if TYPE_CHECKING:
    from torch import Tensor

    from dpft.parallel.rank_sums import StepSums
    from dpft.parallel.ranks import Ranks
    from dpft.privacy.noise import SignalMeter
    from dpft.privacy.randomness import Randomness


class GaussianStep(StrictModel):
    """A noisy step of training, as a line of the ledger contains it."""

    name: str
    """Name of the mechanism: poisson_sampled_gaussian or banded_gaussian."""
    noise_multiplier: Positive
    """Standard deviation of the fresh noise divided by the sensitivity."""
    sample_rate: Rate
    """Probability with which each unit, or each unit of the step's group, takes part in the
    step."""
    sensitivity: Positive
    """Maximum L2 norm by which one unit can change the sum."""
    bands: AtLeastOne | None = None
    """Number of steps over which noise is correlated, and number of groups."""
    stream: Count | None = None
    """Number of steps in the ledger when the step's stream of noise began."""


class Sampler(Protocol):
    """Sampler that draws the logical batch of a step."""

    def draw(self, num_units: int, *, step: int) -> list[int]:
        """Return the indices of the units drawn, in ascending order; private, possibly empty."""


class StepNoise(Protocol):
    """Noise of a stream's steps, in their order."""

    def add(
        self,
        sums: "StepSums | Mapping[str, Any]",
        noise_std: float,
        *,
        step: int,
        meter: "SignalMeter | None",
        ranks: "Ranks",
    ) -> None:
        """Add the noise of a step to every sum, once, as ``noise.add_noise`` does.

        Args:
            sums: As for ``add_noise``.
            noise_std: noise_multiplier times the sensitivity.
            step: Step of the run, counted from 0.
            meter: As for ``add_noise``.
            ranks: As for ``add_noise``.
        """

    def history(self) -> "dict[str, Tensor]":
        """Return this rank's part of the earlier noise that the next step depends on; secret."""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Public numbers of a run, from which ``MechanismConfig.choose`` derives the mechanism."""

    num_examples: float
    expected_batch_size: float
    steps: int
    delta: float
    eps: float | None = None
    """Target epsilon; None if the noise is given."""
    weights: Callable[[], Sequence[float]] | None = None
    """Function that returns the factor with which each step's gradient enters the final weights,
    which follows from the learning rate schedule and the momentum. None if these are not known."""

    @property
    def sample_rate(self) -> float:
        """Expected batch size divided by the number of units."""
        return self.expected_batch_size / self.num_examples


class Mechanism(StrictModel, ABC):
    """Relation between the draws and the noise of a run's steps; public, as a part of the plan."""

    name: str
    """Name of the mechanism in conf/mechanism/."""
    sampler_name: ClassVar[Literal["poisson", "cyclic_poisson"]]
    """Name of the sampler in reports."""
    entry_name: ClassVar[str]
    """Name of a step of this mechanism in the ledger."""
    has_streams: ClassVar[bool] = False
    """Whether the noise of a step depends on previous steps, so that ledger lines state their
    stream. The trainable parameters then stay the same for the whole run."""

    def rate(self, sample_rate: float) -> float:
        """Return the probability with which each eligible unit takes part in a step.

        By default every unit is eligible in every step.

        Args:
            sample_rate: Expected batch size divided by the number of units.
        """
        return sample_rate

    @abstractmethod
    def compositions(self, streams: Iterable[int]) -> int:
        """Return the number of Poisson-sampled Gaussians that bound streams of these lengths.

        Each of them has the sample rate ``rate``.
        """

    @abstractmethod
    def steps_within(self, compositions: int) -> int:
        """Return the maximum number of steps in one stream that ``compositions`` bound."""

    @abstractmethod
    def sampler(self, rate: float, randomness: "Randomness") -> Sampler:
        """Return the sampler that draws the units of each step.

        Args:
            rate: Value that the method ``rate`` returns.
            randomness: Secret keys. The key for ``sampling`` changes with each step; ``group_key``
                is the same for all steps of a stream.
        """

    @abstractmethod
    def noise(self, randomness: "Randomness", history: "Mapping[str, Tensor]") -> StepNoise:
        """Return the noise that is added in each step.

        Args:
            randomness: Secret keys. The key for ``noise`` changes with each step.
            history: Value that ``StepNoise.history`` returned; empty: a new stream.
        """

    def last_noise(self, weights: Sequence[float]) -> float:
        """Return the standard deviation of the noise in the final weights of the model.

        The unit is the standard deviation that independent noise with the same noise multiplier
        would have there.

        Args:
            weights: The factor with which each step's gradient enters the final weights.
        """
        return 1.0

    def in_words(self, steps: int) -> str:
        """Return the number of steps as text and, if it is smaller, the number a unit can be in."""
        cost = self.compositions((steps,))
        if cost == steps:
            return f"{steps} steps"
        return f"{steps} steps; each unit is in at most {cost} of them"


class MechanismConfig(Section, ABC):
    """Base of the section ``mechanism``. In your own subclass, declare ``name`` first."""

    makes: ClassVar[type[Mechanism]]
    """Class of the mechanism that ``choose`` returns."""
    name: str
    """dp_sgd or banded; chosen by mechanism=NAME."""

    @abstractmethod
    def choose(self, numbers: Numbers) -> Mechanism:
        """Return the mechanism of a run, without reading any record.

        Raises:
            InputError: The numbers do not allow this mechanism.
        """

    @property
    def is_resolved(self) -> bool:
        """Whether the configuration sets each number, so that ``choose`` needs no search."""
        return True

    @property
    def history_numbers(self) -> int:
        """Maximum number of float64 values of earlier noise to keep per trainable number."""
        return 0

    @property
    def refuses(self) -> Mapping[str, str]:
        """Methods that the mechanism does not support, by name, with the reason."""
        return {}

    def resolved(self, mechanism: Mechanism) -> "MechanismConfig":
        """Return the configuration that always chooses this mechanism."""
        return self


class Chosen(MechanismConfig):
    """Configuration that returns the mechanism of an existing plan."""

    name: str
    mechanism: Mechanism

    def choose(self, numbers: Numbers) -> Mechanism:
        """Return the mechanism of the plan."""
        return self.mechanism


MECHANISMS: Registry[type[MechanismConfig]] = Registry(
    "dpft.privacy.mechanisms", key="mechanism.name"
)
"""Registry of the configuration classes by name; each module of a mechanism registers its class."""


def _mechanism(value: Any) -> Any:
    """Return the mechanism of a plan in a file; leave other values to pydantic."""
    if not isinstance(value, Mapping):
        return value
    return parse(value, MECHANISMS.named(str(value.get("name"))).makes)


AnyMechanism = Annotated[SerializeAsAny[Mechanism], BeforeValidator(_mechanism)]
"""The mechanism of a plan, as an instance of the class with the mechanism's name."""


def stream_lengths(steps: Iterable[Any]) -> tuple[int, ...]:
    """Return the number of steps in each stream of noise, in the order in which streams begin.

    Args:
        steps: Steps of the ledger, in their order.
    """
    return tuple(Counter(getattr(step, "stream", None) for step in steps).values())


def check_stream(step: GaussianStep, before: Sequence[GaussianStep]) -> None:
    """Reject a step whose stream neither continues the previous one nor begins at this step.

    Raises:
        ValueError: The stream is not allowed. Accepting it would bound fewer steps than were taken.
    """
    allowed = (before[-1].stream, len(before)) if before else (0,)
    if step.stream not in allowed:
        raise ValueError(f"its stream must be one of {allowed}, got {step.stream!r}.")
