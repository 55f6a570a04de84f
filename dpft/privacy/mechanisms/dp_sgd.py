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
    """Every unit may be in every step; a step costs one Poisson-sampled Gaussian."""

    name: str = "dp_sgd"
    sampler_name: ClassVar[Literal["poisson", "cyclic_poisson"]] = "poisson"
    entry_name: ClassVar[str] = "poisson_sampled_gaussian"

    def compositions(self, streams: Iterable[int]) -> int:
        """Return all steps there are."""
        return sum(streams)

    def steps_within(self, compositions: int) -> int:
        """Return as many."""
        return compositions

    def sampler(self, rate: float, randomness: "Randomness") -> Sampler:
        """Return the sampler of Poisson draws."""
        from dpft.privacy.sampling import PoissonSampler

        return PoissonSampler(rate, randomness.sampling)

    def noise(self, randomness: "Randomness", history: "Mapping[str, Tensor]") -> StepNoise:
        """Return the noise of ``noise.add_noise``."""
        from dpft.privacy.noise import IndependentNoise

        return IndependentNoise(randomness.noise)


@MECHANISMS.register("dp_sgd")
class DPSGDConfig(MechanismConfig):
    """``mechanism=dp_sgd``, conf/mechanism/dp_sgd.yaml: nothing is to be chosen."""

    makes: ClassVar[type[Mechanism]] = DPSGD
    name: str = "dp_sgd"
    """dp_sgd or banded; chosen by mechanism=NAME."""

    def choose(self, numbers: Numbers) -> Mechanism:
        """Return the one there is."""
        return DPSGD()
