"""The questions that a mechanism of noisy steps answers, and the registry of those there are.

A run's plan holds one ``Mechanism`` beside the numbers that all have: noise multiplier, the rate of
a draw, steps and delta. The engine asks it for a sampler and for the noise of a step; accountants
ask for ``compositions``, how many Poisson-sampled Gaussians cost as much as the steps taken; the
ledger asks for a step's ``entry``. A mechanism that no ``SampledGaussian`` bounds has no place
here: it would have no accountant.

The part of a run that shares one history of noise is called a stream. A run is one stream, unless
it broke off and cannot draw again what it drew: then a new stream begins, with new keys.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dpft.errors import InputError
from dpft.kinds import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from dpft.parallel.ranks import Ranks
    from dpft.parallel.reductions import StepSums
    from dpft.privacy.noise import SignalMeter
    from dpft.privacy.randomness import Randomness

STREAM = "stream"
"""Key of a ledger's line: how many steps were in the ledger when the step's stream began."""


class Sampler(Protocol):
    """Draws the logical batch of a step."""

    def draw(self, num_units: int, *, step: int) -> list[int]:
        """Returns the indices of the units drawn, ascending; private, maybe none."""


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
        """Adds a step's noise to every sum, once, as ``noise.add_noise`` does.

        Args:
            sums: As ``add_noise``.
            noise_std: noise_multiplier times the sensitivity.
            step: The run's step, counted from 0.
            meter: As ``add_noise``.
            ranks: As ``add_noise``.
        """

    def history(self) -> "dict[str, Tensor]":
        """Returns what of earlier noise the next step's depends on, this rank's share; secret."""


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


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """How the draws and the noise of a run's steps hang together; in its plan, and so public."""

    name: str
    """What conf/mechanism/ calls it."""
    sampler_name: ClassVar[str]
    """How units are drawn, in reports."""
    entry_name: ClassVar[str]
    """What a line of the ledger calls one of its steps."""
    has_streams: ClassVar[bool] = False
    """Whether a step's noise depends on those before, so that a ledger's lines name their stream.
    What trains then stays the same throughout a run."""

    def rate(self, sample_rate: float) -> float:
        """Returns the chance with which a unit that can be in a step is in it.

        Args:
            sample_rate: The expected batch over the number of units.
        """
        return sample_rate

    @abstractmethod
    def compositions(self, streams: Iterable[int]) -> int:
        """Returns how many Poisson-sampled Gaussians of ``rate`` bound streams of so many steps."""

    @abstractmethod
    def steps_within(self, compositions: int) -> int:
        """Returns the most steps of one stream that so many compositions bound."""

    @abstractmethod
    def sampler(self, rate: float, randomness: "Randomness") -> Sampler:
        """Returns what draws each step's units.

        Args:
            rate: As ``rate`` returns it.
            randomness: Its ``sampling`` ages with the steps; its ``group_key`` stays for a stream.
        """

    @abstractmethod
    def noise(self, randomness: "Randomness", history: "Mapping[str, Tensor]") -> StepNoise:
        """Returns what adds each step's noise.

        Args:
            randomness: Its ``noise`` ages with the steps.
            history: As ``StepNoise.history`` returned it; empty: a stream begins.
        """

    def last_noise(self, weights: Sequence[float]) -> float:
        """Returns the noise in the last weights over that of independent noise, same multiplier."""
        return 1.0

    def entry_keys(self) -> dict[str, Any]:
        """Returns what a ledger's line of a step says beyond what that of every mechanism does."""
        return {}

    def facts(self, steps: int) -> dict[str, Any]:
        """Returns what reports say of it beyond sampler, rate and noise, ready for JSON."""
        cost = self.compositions((steps,))
        return {"mechanism": self.written()} | ({} if cost == steps else {"participations": cost})

    def in_words(self, steps: int) -> str:
        """Returns so many steps in words, and in how many of them a unit is, if not in all."""
        cost = self.compositions((steps,))
        if cost == steps:
            return f"{steps} steps"
        return f"{steps} steps, of which a unit is in {cost} at most"

    def written(self) -> dict[str, Any]:
        """Returns its fields as a plan holds them, ready for JSON."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}


class MechanismConfig(ABC):
    """Base of the section ``mechanism``; a tenant's own is a frozen dataclass, its name first."""

    makes: ClassVar[type[Mechanism]]
    """What ``choose`` returns one of."""
    name: str

    @abstractmethod
    def choose(self, numbers: Numbers) -> Mechanism:
        """Returns the mechanism of a run; reads no record.

        Raises:
            InputError: The numbers do not allow it.
        """

    @property
    def is_settled(self) -> bool:
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

    def settled(self, mechanism: Mechanism) -> "MechanismConfig":
        """Returns the configuration that chooses this mechanism whatever the numbers."""
        return self


@dataclass(frozen=True, kw_only=True)
class Chosen(MechanismConfig):
    """Chooses the one that a plan has already."""

    name: str
    mechanism: Mechanism

    def choose(self, numbers: Numbers) -> Mechanism:
        """Returns it."""
        return self.mechanism


MECHANISMS: Registry[type[MechanismConfig]] = Registry(
    "dpft.privacy.mechanisms", key="mechanism.name"
)
"""The configurations, by name; each tenant registers its own."""


def read_mechanism(written: Mapping[str, Any]) -> Mechanism:
    """Returns the mechanism that ``Mechanism.written`` wrote.

    Raises:
        ValueError: It is none, or its numbers do not go together.
    """
    try:
        cls = MECHANISMS.named(str(written["name"])).makes
        names = {entry.name for entry in fields(cls)}
        if set(written) != names:
            raise ValueError(f"its keys must be {', '.join(sorted(names))}.")
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in written.items()
        }
        return cls(**values)
    except (InputError, KeyError, TypeError) as error:
        raise ValueError(f"the mechanism is not one that dpft writes ({error}).") from error


def stream_of(entry: Mapping[str, Any]) -> Any:
    """Returns the stream of noise that a ledger's line of a step names; None where none."""
    return entry.get(STREAM)


def stream_lengths(entries: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    """Returns how many steps each stream has, of the ledger's lines in their order.

    >>> stream_lengths([{"stream": 0}, {"stream": 0}, {"stream": 2}]), stream_lengths([{}, {}])
    ((2, 1), (2,))
    """
    lengths: dict[Any, int] = {}
    for entry in entries:
        stream = stream_of(entry) or 0
        lengths[stream] = lengths.get(stream, 0) + 1
    return tuple(lengths.values())


def check_stream(entry: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> None:
    """Refuses a line whose stream neither goes on nor begins where it stands.

    Raises:
        ValueError: It does not, which would bound fewer steps than were taken.
    """
    stream = stream_of(entry)
    last = stream_of(before[-1]) if before else None
    allowed = (last, len(before)) if before else (0,)
    if type(stream) is not int or stream not in allowed:
        raise ValueError(f"its stream must be one of {allowed}, got {stream!r}.")
