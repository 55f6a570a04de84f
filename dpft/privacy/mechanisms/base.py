"""Base class of mechanisms, and their registry.

A run's plan holds one ``Mechanism`` beside the numbers that all have: noise multiplier, the rate of
a draw, steps and delta. The engine asks it for a sampler and for the noise of a step; accountants
ask for ``compositions``, how many Poisson-sampled Gaussians cost as much as the steps taken; the
ledger asks for a step's ``entry``. A mechanism that no ``SampledGaussian`` bounds has no place
here: it would have no accountant.

The part of a run that shares one history of noise is called a stream. A run is one stream, unless
it broke off and cannot draw again what it drew: then a new stream begins, with new keys.
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
    """Standard deviation of the fresh noise over the sensitivity."""
    sample_rate: Rate
    """Probability with which each unit, or each unit of the step's group, is in the step."""
    sensitivity: Positive
    """By how much one unit moves the sum at most."""
    bands: AtLeastOne | None = None
    """Steps over which noise hangs together, and number of groups."""
    stream: Count | None = None
    """How many steps were in the ledger when the step's stream of noise began."""


class Sampler(Protocol):
    """Draws the logical batch of a step."""

    def draw(self, num_units: int, *, step: int) -> list[int]:
        """Return the indices of the units drawn, ascending; private, maybe none."""


class StepNoise(Protocol):
    """The noise of a stream's steps, in their order."""

    def add(
        self,
        sums: "StepSums | Mapping[str, Any]",
        noise_std: float,
        *,
        step: int,
        meter: "SignalMeter | None",
        ranks: "Ranks",
    ) -> None:
        """Add a step's noise to every sum, once, as ``noise.add_noise`` does.

        Args:
            sums: As ``add_noise``.
            noise_std: noise_multiplier times the sensitivity.
            step: The run's step, counted from 0.
            meter: As ``add_noise``.
            ranks: As ``add_noise``.
        """

    def history(self) -> "dict[str, Tensor]":
        """Return what of earlier noise the next step's depends on, this rank's share; secret."""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The public numbers that a mechanism is chosen by."""

    num_examples: float
    expected_batch_size: float
    steps: int
    delta: float
    eps: float | None = None
    """The target; None where the noise is given."""
    weights: Callable[[], Sequence[float]] | None = None
    """How much of each step's gradient is in the last weights, by schedule and momentum; None:
    there is no schedule here."""

    @property
    def sample_rate(self) -> float:
        """The expected batch over the number of units."""
        return self.expected_batch_size / self.num_examples


class Mechanism(StrictModel, ABC):
    """How the draws and the noise of a run's steps hang together; in its plan, and so public."""

    name: str
    """What conf/mechanism/ calls it."""
    sampler_name: ClassVar[Literal["poisson", "cyclic_poisson"]]
    """How units are drawn, in reports."""
    entry_name: ClassVar[str]
    """What a line of the ledger calls one of its steps."""
    has_streams: ClassVar[bool] = False
    """Whether a step's noise depends on those before, so that a ledger's lines name their stream.
    What trains then stays the same throughout a run."""

    def rate(self, sample_rate: float) -> float:
        """Return the chance with which a unit that can be in a step is in it.

        Args:
            sample_rate: The expected batch over the number of units.
        """
        return sample_rate

    @abstractmethod
    def compositions(self, streams: Iterable[int]) -> int:
        """Return how many Poisson-sampled Gaussians of ``rate`` bound streams of so many steps."""

    @abstractmethod
    def steps_within(self, compositions: int) -> int:
        """Return the most steps of one stream that so many compositions bound."""

    @abstractmethod
    def sampler(self, rate: float, randomness: "Randomness") -> Sampler:
        """Return what draws each step's units.

        Args:
            rate: As ``rate`` returns it.
            randomness: Its ``sampling`` ages with the steps; its ``group_key`` stays for a stream.
        """

    @abstractmethod
    def noise(self, randomness: "Randomness", history: "Mapping[str, Tensor]") -> StepNoise:
        """Return what adds each step's noise.

        Args:
            randomness: Its ``noise`` ages with the steps.
            history: As ``StepNoise.history`` returned it; empty: a stream begins.
        """

    def last_noise(self, weights: Sequence[float]) -> float:
        """Return the noise in the last weights over that of independent noise, same multiplier."""
        return 1.0

    def in_words(self, steps: int) -> str:
        """Return so many steps in words, and in how many of them a unit is, if not in all."""
        cost = self.compositions((steps,))
        if cost == steps:
            return f"{steps} steps"
        return f"{steps} steps, of which a unit is in {cost} at most"


class MechanismConfig(Section, ABC):
    """Base of the section ``mechanism``; one of your own has its name first."""

    makes: ClassVar[type[Mechanism]]
    """What ``choose`` returns one of."""
    name: str
    """dp_sgd or banded; chosen by mechanism=NAME."""

    @abstractmethod
    def choose(self, numbers: Numbers) -> Mechanism:
        """Return the mechanism of a run; read no record.

        Raises:
            InputError: The numbers do not allow it.
        """

    @property
    def is_resolved(self) -> bool:
        """Whether the configuration gives each number, so that ``choose`` searches for none."""
        return True

    @property
    def history_numbers(self) -> int:
        """Most float64 numbers of earlier noise that are kept for each that trains."""
        return 0

    @property
    def refuses(self) -> Mapping[str, str]:
        """Methods that it does not go with, by name, and why."""
        return {}

    def resolved(self, mechanism: Mechanism) -> "MechanismConfig":
        """Return the configuration that chooses this mechanism whatever the numbers."""
        return self


class Chosen(MechanismConfig):
    """Chooses the one that a plan has already."""

    name: str
    mechanism: Mechanism

    def choose(self, numbers: Numbers) -> Mechanism:
        """Return it."""
        return self.mechanism


MECHANISMS: Registry[type[MechanismConfig]] = Registry(
    "dpft.privacy.mechanisms", key="mechanism.name"
)
"""The configurations, by name; each tenant registers its own."""


def _mechanism(value: Any) -> Any:
    """Return the mechanism of a plan in a file; anything else is for pydantic to judge."""
    if not isinstance(value, Mapping):
        return value
    return parse(value, MECHANISMS.named(str(value.get("name"))).makes)


AnyMechanism = Annotated[SerializeAsAny[Mechanism], BeforeValidator(_mechanism)]
"""The mechanism of a plan, an instance of the class that its name stands for."""


def stream_lengths(steps: Iterable[Any]) -> tuple[int, ...]:
    """Return how many steps each stream of noise has, in the order in which streams begin.

    Args:
        steps: The ledger's steps in their order.
    """
    return tuple(Counter(getattr(step, "stream", None) for step in steps).values())


def check_stream(step: GaussianStep, before: Sequence[GaussianStep]) -> None:
    """Reject a step whose stream neither goes on nor begins where it stands.

    Raises:
        ValueError: It does not, which would bound fewer steps than were taken.
    """
    allowed = (before[-1].stream, len(before)) if before else (0,)
    if step.stream not in allowed:
        raise ValueError(f"its stream must be one of {allowed}, got {step.stream!r}.")
