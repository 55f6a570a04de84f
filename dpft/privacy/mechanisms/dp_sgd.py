"""DP-SGD (Abadi et al. 2016): Poisson sampling and independent noise in each step."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from dpft.privacy.mechanisms.base import (
    MECHANISMS,
    Mechanism,
    MechanismConfig,
    Numbers,
    Sampler,
    StepNoise,
)

if TYPE_CHECKING:
    from torch import Tensor

    from dpft.privacy.randomness import Randomness


class DPSGD(Mechanism):
    """DP-SGD, in which every unit can be in every step.

    Each step is accounted as one Poisson-sampled Gaussian mechanism.
    """

    name: str = "dp_sgd"
    sampler_name: ClassVar[Literal["poisson", "cyclic_poisson"]] = "poisson"
    entry_name: ClassVar[str] = "poisson_sampled_gaussian"

    def compositions(self, streams: Iterable[int]) -> int:
        """Return the number of all steps."""
        return sum(streams)

    def steps_within(self, compositions: int) -> int:
        """Return ``compositions``."""
        return compositions

    def sampler(self, rate: float, randomness: "Randomness") -> Sampler:
        """Return the sampler of Poisson draws."""
        from dpft.privacy.sampling import PoissonSampler

        return PoissonSampler(rate, randomness.sampling)

    def noise(self, randomness: "Randomness", history: "Mapping[str, Tensor]") -> StepNoise:
        """Return independent noise, as ``noise.add_noise`` adds it."""
        from dpft.privacy.noise import IndependentNoise

        return IndependentNoise(randomness.noise)


@MECHANISMS.register("dp_sgd")
class DPSGDConfig(MechanismConfig):
    """Configuration ``mechanism=dp_sgd``, conf/mechanism/dp_sgd.yaml, without options."""

    makes: ClassVar[type[Mechanism]] = DPSGD
    name: str = "dp_sgd"
    """dp_sgd or banded; chosen by mechanism=NAME."""

    def choose(self, numbers: Numbers) -> Mechanism:
        """Return DP-SGD."""
        return DPSGD()
