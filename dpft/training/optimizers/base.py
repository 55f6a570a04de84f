"""What every optimizer is: post-processing of the private gradient, which costs no privacy.

Adding one is a module here whose configuration registers itself in ``OPTIMIZERS``, a YAML in
conf/optimizer and a test. Configurations are read before torch is imported, so an algorithm that
torch does not have stands in a module of dpft.training beside it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

from dpft.errors import InputError
from dpft.kinds import Registry

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(ABC):
    """Base of every optimizer; its fields are its configuration, ``conf/optimizer/<name>.yaml``."""

    works_on_shards: ClassVar[bool] = True
    """Whether it moves each number of a parameter by that number's own gradient and moments."""

    needs_noise_std: ClassVar[bool] = False
    """Whether its steps need to know the noise in each number of the gradient, which is public."""

    name: str
    """Which optimizer; chosen by optimizer=NAME."""

    @property
    def decay_of_mean(self) -> float:
        """How much of a step's gradient the next step still has, by momentum."""
        return 0.0

    @abstractmethod
    def make(
        self, parameters: "Iterable[nn.Parameter]", learning_rate: float, weight_decay: float
    ) -> "Optimizer":
        """Returns the optimizer over ``parameters``."""

    def make_for(
        self,
        model: "nn.Module",
        parameters: "Iterable[nn.Parameter]",
        learning_rate: float,
        weight_decay: float,
    ) -> "Optimizer":
        """Returns the optimizer over ``parameters`` of ``model``, of which most ask nothing."""
        return self.make(parameters, learning_rate, weight_decay)

    def check_model(self, model: "nn.Module") -> None:
        """Refuses a model that has nothing to train which it is for.

        Args:
            model: After ``Method.prepare``; it may be on the meta device.

        Raises:
            InputError: It has not.
        """
        return

    def state_numbers(self, shape: Sequence[int]) -> int:
        """Returns how many numbers are kept for a parameter: two moments of each of its own."""
        return 2 * prod(shape)


OPTIMIZERS: Registry[type[OptimizerConfig]] = Registry(
    "dpft.training.optimizers", key="optimizer.name"
)
"""Every optimizer by name; a module of this package registers its configuration."""


def optimizer_class(name: str) -> type[OptimizerConfig]:
    """Returns the configuration of the optimizer called ``name``.

    Raises:
        InputError: There is no such optimizer.
    """
    return OPTIMIZERS.named(name)


def check_works_on_shards(config: OptimizerConfig) -> None:
    """Refuses an optimizer that reads more of a parameter than the shard that lies here.

    Raises:
        InputError: It reads whole matrices, as Adafactor does for sums over rows and columns.
    """
    if config.works_on_shards:
        return
    able = [name for name, kind in OPTIMIZERS.entries().items() if kind.works_on_shards]
    raise InputError(
        f"optimizer={config.name} needs whole parameters, got parallel=fsdp, which cuts them"
        f" into shards; choose optimizer={', '.join(able[:-1])} or {able[-1]}, or parallel=ddp."
    )


def make_optimizer(
    parameters: "Iterable[nn.Parameter]",
    config: OptimizerConfig,
    *,
    learning_rate: float,
    weight_decay: float,
    model: "nn.Module | None" = None,
) -> "Optimizer":
    """Returns the optimizer that the configuration names, over ``parameters``, of ``model``."""
    if model is None:
        return config.make(parameters, learning_rate, weight_decay)
    return config.make_for(model, parameters, learning_rate, weight_decay)


def check_unit_interval(**values: float) -> None:
    """Refuses a value of the configuration that is no share.

    Raises:
        InputError: It is not in [0, 1).
    """
    for name, value in values.items():
        if not 0 <= value < 1:
            raise InputError(f"optimizer.{name} must be in [0, 1), got {value}.")
