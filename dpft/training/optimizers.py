"""Optimizers and learning rate schedules by name.

Both are post-processing of the private gradient, so they cost no privacy. To add an optimizer, add
a class that registers itself in ``OPTIMIZERS``, a YAML file in conf/optimizer, and a test. Torch is
not imported at the top, because configurations are read before torch is imported. Algorithms and
papers:

- ``adamw``, ``adam``: the optimizers of torch; on the private gradient, DP-Adam (Li et al. 2022,
  section 3.1);
- ``adafactor``: Adafactor as in T5, used by Ponomareva et al. 2022;
- ``sgd``: torch's gradient descent; with private gradients, this is DP-SGD (Abadi et al. 2016).
"""

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from dpft.config.section import Section
from dpft.errors import InputError
from dpft.methods.base import MethodPhase
from dpft.registry import Registry
from dpft.strict_model import AtLeastOne, Count, Fraction, NotNegative, Positive

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR

    from dpft.training.training_state import TrainingState


class OptimizerConfig(Section, ABC):
    """Base class of optimizers; the fields are configured in ``conf/optimizer/<name>.yaml``."""

    works_on_shards: ClassVar[bool] = True
    """Whether the optimizer updates each element of a parameter using only the gradient and moments
    of that element."""

    name: str
    """Name of the optimizer, set with optimizer=NAME."""

    @property
    def decay_of_mean(self) -> float:
        """The share of the mean of gradients (momentum) that is kept from one step to the next."""
        return 0.0

    @abstractmethod
    def make(
        self, parameters: "Iterable[nn.Parameter]", learning_rate: float, weight_decay: float
    ) -> "Optimizer":
        """Return the optimizer over ``parameters``."""

    def state_numbers(self, shape: Sequence[int]) -> int:
        """Return the number of state elements of a parameter; by default two per element."""
        return 2 * prod(shape)


OPTIMIZERS: Registry[type[OptimizerConfig]] = Registry(
    "dpft.training.optimizers", key="optimizer.name"
)
"""Registry of optimizers by name; this module registers their configurations."""


def check_works_on_shards(config: OptimizerConfig) -> None:
    """Reject an optimizer that reads more of a parameter than the shard on this process.

    Raises:
        InputError: The optimizer needs whole matrices, like Adafactor for sums over rows and
            columns.
    """
    if config.works_on_shards:
        return
    able = [name for name, kind in OPTIMIZERS.entries().items() if kind.works_on_shards]
    raise InputError(
        f"optimizer={config.name} needs whole parameters, but parallel=fsdp splits them into"
        f" shards. Use parallel=ddp, or optimizer={', '.join(able[:-1])} or {able[-1]}.",
        key="optimizer",
        value=config.name,
        hint="parallel=ddp",
    )


@OPTIMIZERS.register("adamw")
class AdamW(OptimizerConfig):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    name: str = "adamw"
    beta1: Fraction = 0.9
    """Decay rate of the mean of gradients."""
    beta2: Fraction = 0.999
    """Decay rate of the mean of squared gradients."""
    eps: Positive = 1e-8
    """Constant added to the square root of the mean of squared gradients."""

    @property
    def decay_of_mean(self) -> float:
        """The value of ``beta1``."""
        return self.beta1

    def make(
        self, parameters: "Iterable[nn.Parameter]", learning_rate: float, weight_decay: float
    ) -> "Optimizer":
        """Return ``torch.optim.AdamW``."""
        from torch.optim import AdamW as TorchAdamW

        return TorchAdamW(parameters, **self._arguments(learning_rate, weight_decay))

    def _arguments(self, learning_rate: float, weight_decay: float) -> dict[str, Any]:
        return {
            "lr": learning_rate,
            "betas": (self.beta1, self.beta2),
            "eps": self.eps,
            "weight_decay": weight_decay,
        }


@OPTIMIZERS.register("adam")
class Adam(AdamW):
    """Adam as first published, with weight decay added to the gradient (Kingma and Ba 2015)."""

    name: str = "adam"

    def make(
        self, parameters: "Iterable[nn.Parameter]", learning_rate: float, weight_decay: float
    ) -> "Optimizer":
        """Return ``torch.optim.Adam``."""
        from torch.optim import Adam as TorchAdam

        return TorchAdam(parameters, **self._arguments(learning_rate, weight_decay))


@OPTIMIZERS.register("adafactor")
class Adafactor(OptimizerConfig):
    """Adam that stores second moments as sums over rows and columns (Shazeer and Stern 2018).

    This is the optimizer of Transformers, with Algorithms 4 and 5 of the paper (arXiv 1804.04235)
    as in T5X. By default the learning rate is multiplied by the root mean square of the tensor.
    There is no momentum. The Adafactor of torch differs in two ways. It limits the learning rate to
    1 / sqrt(steps taken). It also raises second moments to at least 1e-14, while those of a private
    gradient are often smaller. For example, a noise multiplier of 0.4, a clipping norm of 0.001 and
    a batch size of 8,192 give 2e-15 (Ponomareva et al. 2022).

    There are two differences from T5X. For a tensor with three or more dimensions, the last two are
    factored; T5X factors the two largest (T5 has no such tensors). Weight decay is off by default
    and is multiplied by the step size of the tensor. T5X does not multiply weight decay, and its
    value is unpublished.
    """

    works_on_shards: ClassVar[bool] = False
    name: str = "adafactor"
    beta2_decay: Annotated[float, Field(le=0)] = -0.8
    """Exponent of the second-moment decay: at step t, second moments keep a share of 1 - t **
    beta2_decay."""
    eps1: NotNegative = 1e-30
    """Constant added to squared gradients."""
    eps2: NotNegative = 1e-3
    """Minimum root mean square of a tensor in the step size, for tensors that start at zero."""
    clip_threshold: Annotated[float, Field(ge=1)] = 1.0
    """Root mean square above which an update is scaled down. This is not the clipping
    of examples."""
    scale_parameter: bool = True
    """Whether the learning rate is multiplied by the root mean square of each tensor."""
    min_dim_size_to_factor: AtLeastOne = 128
    """Minimum rows and columns of a matrix for storing second moments by rows and columns. Smaller
    matrices store them whole. 1 factors every matrix, as first published."""

    def make(
        self, parameters: "Iterable[nn.Parameter]", learning_rate: float, weight_decay: float
    ) -> "Optimizer":
        """Return Transformers' Adafactor, factored as in T5X, with decoupled weight decay."""
        from dpft.training.adafactor import T5Adafactor

        return T5Adafactor(
            parameters,
            min_dim_size_to_factor=self.min_dim_size_to_factor,
            lr=learning_rate,
            decay_rate=self.beta2_decay,
            eps=(self.eps1, self.eps2),
            clip_threshold=self.clip_threshold,
            weight_decay=weight_decay,
            scale_parameter=self.scale_parameter,
            relative_step=False,
            warmup_init=False,
        )

    def state_numbers(self, shape: Sequence[int]) -> int:
        """Return the number of state elements: rows plus columns for a large matrix."""
        from dpft.training.adafactor import is_factored

        if not is_factored(shape, self.min_dim_size_to_factor):
            return prod(shape)
        return prod(shape[:-1]) + prod((*shape[:-2], shape[-1]))


@OPTIMIZERS.register("sgd")
class SGD(OptimizerConfig):
    """Gradient descent, which is DP-SGD on the private gradient (Abadi et al. 2016)."""

    name: str = "sgd"
    momentum: Fraction = 0.0
    """Share of the last update that is kept; 0 disables momentum."""
    nesterov: bool = False
    """Whether to use Nesterov momentum."""

    def _check_fields(self) -> None:
        if self.nesterov and not self.momentum:
            raise InputError(
                f"optimizer.nesterov=true needs optimizer.momentum above 0, got {self.momentum}.",
                key="optimizer.momentum",
                value=self.momentum,
                hint="optimizer.momentum=0.9",
            )

    @property
    def decay_of_mean(self) -> float:
        """The value of ``momentum``."""
        return self.momentum

    def make(
        self, parameters: "Iterable[nn.Parameter]", learning_rate: float, weight_decay: float
    ) -> "Optimizer":
        """Return ``torch.optim.SGD``, which adds weight decay to the gradient."""
        from torch.optim import SGD as TorchSGD

        return TorchSGD(
            parameters,
            lr=learning_rate,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=weight_decay,
        )

    def state_numbers(self, shape: Sequence[int]) -> int:
        """Return the number of state elements: the momentum, if there is any."""
        return prod(shape) if self.momentum else 0


SCHEDULES = {
    "constant": "constant_with_warmup",
    "linear": "linear",
    "cosine": "cosine",
    "inverse_sqrt": "inverse_sqrt",
    "rsqrt": "constant",
}
"""Our schedule names mapped to those of Transformers, which has no rsqrt."""


class SchedulerConfig(Section):
    """The ``scheduler`` section of the configuration."""

    name: Literal["constant", "linear", "cosine", "rsqrt", "inverse_sqrt"] = "constant"
    """Learning rate schedule: constant, linear, cosine, inverse_sqrt or rsqrt. Set it with
    scheduler=NAME."""
    warmup_steps: Count = 0
    """Number of steps in which the learning rate rises linearly from 0; the first of them changes
    nothing. For rsqrt, number of steps with a constant learning rate, before it falls as 1 /
    sqrt(step)."""
    timescale: AtLeastOne | None = None
    """For inverse_sqrt: after the warm-up, the rate falls as 1 / sqrt(1 + steps since / timescale).

    null: the number of warm-up steps, or 10,000 without a warm-up.
    """

    def _check_fields(self) -> None:
        if self.name == "rsqrt" and self.warmup_steps < 1:
            raise InputError(
                "scheduler.warmup_steps must be at least 1 with scheduler=rsqrt, which is"
                f" constant during the warm-up, got {self.warmup_steps}. T5 has 10000.",
                key="scheduler.warmup_steps",
                value=self.warmup_steps,
                hint="scheduler.warmup_steps=10000",
            )
        if self.timescale is not None and self.name != "inverse_sqrt":
            raise InputError(
                f"scheduler.timescale={self.timescale} has no effect with scheduler={self.name},"
                " only with scheduler=inverse_sqrt.",
                key="scheduler.timescale",
                value=self.timescale,
                hint="scheduler.timescale=null",
            )


def make_scheduler(
    optimizer: "Optimizer",
    config: SchedulerConfig,
    *,
    steps: int,
    factor: Callable[[int], float] | None = None,
) -> "LambdaLR":
    """Return the learning rate schedule over ``steps`` steps.

    Args:
        optimizer: The optimizer that the schedule controls.
        config: Configuration of the schedule.
        steps: Number of planned steps.
        factor: Maps the number of steps taken (0 before the first) to a factor for the schedule.
    """
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import get_scheduler

    if config.name == "rsqrt":
        times = factor or (lambda step: 1.0)
        return LambdaLR(optimizer, lambda step: rsqrt(step + 1, config.warmup_steps) * times(step))
    settings = {"timescale": config.timescale} if config.name == "inverse_sqrt" else None
    schedule: LambdaLR = get_scheduler(
        SCHEDULES[config.name],
        optimizer,
        num_warmup_steps=config.warmup_steps,
        num_training_steps=steps,
        scheduler_specific_kwargs=settings,
    )
    if factor is None:
        return schedule
    shape = schedule.lr_lambdas[0]
    return LambdaLR(optimizer, lambda step: shape(step) * factor(step))


def schedule_factors(config: SchedulerConfig, steps: int) -> list[float]:
    """Return the factor for the learning rate at each of ``steps`` steps."""
    from torch import nn, zeros
    from torch.optim import SGD as TorchSGD

    unmoved = TorchSGD([nn.Parameter(zeros(1))], lr=1.0)
    factor = make_scheduler(unmoved, config, steps=steps).lr_lambdas[0]
    return [float(factor(step)) for step in range(steps)]


def rsqrt(step: int, warmup: int) -> float:
    """Return T5's schedule, min(1, sqrt(warmup / step)) (Raffel et al. 2020, section 3.1.2).

    >>> rsqrt(1, 100), rsqrt(100, 100), rsqrt(400, 100)
    (1.0, 1.0, 0.5)

    Args:
        step: Step number, counted from 1.
        warmup: Number of steps before the learning rate falls; the rate does not rise from 0.
    """
    return min(1.0, math.sqrt(warmup / step))


def learning_rate_of(training_state: "TrainingState", step: int) -> float:
    """Return the learning rate of step ``step``, counted from 1."""
    scheduler = training_state.scheduler
    return float(scheduler.base_lrs[0] * scheduler.lr_lambdas[0](step - 1))


def learning_rate_factor(
    phases: Sequence[MethodPhase], learning_rate: float
) -> Callable[[int], float] | None:
    """Return the factor of ``learning_rate`` by step, counted from 0; None if it is always 1.

    Raises:
        InputError: A phase has its own learning rate and ``learning_rate`` is 0.
    """
    given = [phase.learning_rate for phase in phases if phase.learning_rate is not None]
    if not given:
        return None
    if learning_rate == 0:
        raise InputError(
            "train.learning_rate must be positive if a phase has its own learning rate, got 0 and"
            f" {given[0]:g}. Set both or neither.",
            key="train.learning_rate",
            value=learning_rate,
        )
    rates = [learning_rate if p.learning_rate is None else p.learning_rate for p in phases]
    ends = list(accumulate(phase.steps for phase in phases))

    def factor(step: int) -> float:
        # The schedule is evaluated once more after the last step.
        return rates[min(bisect_right(ends, step), len(rates) - 1)] / learning_rate

    return factor
