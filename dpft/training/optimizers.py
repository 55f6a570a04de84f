"""Optimizers and learning rate schedules by name.

Both are post-processing of the private gradient, which costs no privacy. Adding an optimizer is a
class here that registers itself in ``OPTIMIZERS``, a YAML in conf/optimizer and a test.
Configurations are read before torch is imported. Algorithms and papers:

- ``adamw``, ``adam``: torch's; on the private gradient DP-Adam (Li et al. 2022, section 3.1);
- ``adafactor``: as T5 has it, of Ponomareva et al. 2022;
- ``sgd``: torch's gradient descent, DP-SGD (Abadi et al. 2016).
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
    """Base of every optimizer; its fields are its configuration, ``conf/optimizer/<name>.yaml``."""

    works_on_shards: ClassVar[bool] = True
    """Whether it moves each number of a parameter by that number's own gradient and moments."""

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
        """Return the optimizer over ``parameters``."""

    def state_numbers(self, shape: Sequence[int]) -> int:
        """Return how many numbers are kept for a parameter: two moments of each of its own."""
        return 2 * prod(shape)


OPTIMIZERS: Registry[type[OptimizerConfig]] = Registry(
    "dpft.training.optimizers", key="optimizer.name"
)
"""Every optimizer by name; a module of this package registers its configuration."""


def check_works_on_shards(config: OptimizerConfig) -> None:
    """Reject an optimizer that reads more of a parameter than the shard that lies here.

    Raises:
        InputError: It reads whole matrices, as Adafactor does for sums over rows and columns.
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
    """Adam whose weight decay is apart from the gradient (Loshchilov and Hutter 2019)."""

    name: str = "adamw"
    beta1: Fraction = 0.9
    """Decay of the mean of gradients."""
    beta2: Fraction = 0.999
    """Decay of the mean of squared gradients."""
    eps: Positive = 1e-8
    """Added to the root of that mean."""

    @property
    def decay_of_mean(self) -> float:
        """``beta1``."""
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
    """Adam as first published, weight decay a part of the gradient (Kingma and Ba 2015)."""

    name: str = "adam"

    def make(
        self, parameters: "Iterable[nn.Parameter]", learning_rate: float, weight_decay: float
    ) -> "Optimizer":
        """Return ``torch.optim.Adam``."""
        from torch.optim import Adam as TorchAdam

        return TorchAdam(parameters, **self._arguments(learning_rate, weight_decay))


@OPTIMIZERS.register("adafactor")
class Adafactor(OptimizerConfig):
    """Adam with second moments by rows and columns (Shazeer and Stern 2018, arXiv 1804.04235).

    That of transformers, which is Algorithms 4 and 5 as T5X has them: the learning rate, by default
    times the tensor's own root mean square; no momentum. torch's is another: it takes no learning
    rate above one over the root of the number of steps, and it keeps second moments from falling
    below 1e-14, while a private gradient's are often smaller (noise 0.4, clipping norm 0.001 and a
    batch of 8,192, as in Ponomareva et al. 2022, give 2e-15).

    What differs from T5X: of a tensor of three dimensions or more the last two are factored, T5X
    takes the two largest (T5 has none); weight decay, off by default, is times the tensor's own
    step size (T5X's is times nothing), and its value is unpublished.
    """

    works_on_shards: ClassVar[bool] = False
    name: str = "adafactor"
    beta2_decay: Annotated[float, Field(le=0)] = -0.8
    """Exponent: at step t, second moments keep a share of 1 - t ** beta2_decay."""
    eps1: NotNegative = 1e-30
    """Added to squared gradients."""
    eps2: NotNegative = 1e-3
    """Least root mean square of a tensor, for one that begins at zero."""
    clip_threshold: Annotated[float, Field(ge=1)] = 1.0
    """Root mean square above which an update is scaled down; not the clipping of examples."""
    scale_parameter: bool = True
    """Whether a tensor moves by the learning rate times its own root mean square."""
    min_dim_size_to_factor: AtLeastOne = 128
    """Least rows and columns of a matrix whose second moments are kept by rows and columns; those
    of a smaller one are kept whole. 1: of every matrix, as first published."""

    def make(
        self, parameters: "Iterable[nn.Parameter]", learning_rate: float, weight_decay: float
    ) -> "Optimizer":
        """Return transformers' Adafactor, which factors what T5X does; weight decay is apart."""
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
        """Return how many numbers are kept for a parameter: of a large matrix rows and columns."""
        from dpft.training.adafactor import is_factored

        if not is_factored(shape, self.min_dim_size_to_factor):
            return prod(shape)
        return prod(shape[:-1]) + prod((*shape[:-2], shape[-1]))


@OPTIMIZERS.register("sgd")
class SGD(OptimizerConfig):
    """Gradient descent; on the private gradient DP-SGD (Abadi et al. 2016)."""

    name: str = "sgd"
    momentum: Fraction = 0.0
    """Share of the last update that stays; 0: none."""
    nesterov: bool = False
    """Look ahead along the momentum."""

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
        """``momentum``."""
        return self.momentum

    def make(
        self, parameters: "Iterable[nn.Parameter]", learning_rate: float, weight_decay: float
    ) -> "Optimizer":
        """Return ``torch.optim.SGD``; weight decay is a part of the gradient."""
        from torch.optim import SGD as TorchSGD

        return TorchSGD(
            parameters,
            lr=learning_rate,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=weight_decay,
        )

    def state_numbers(self, shape: Sequence[int]) -> int:
        """Return how many numbers are kept for a parameter: the momentum, where there is one."""
        return prod(shape) if self.momentum else 0


SCHEDULES = {
    "constant": "constant_with_warmup",
    "linear": "linear",
    "cosine": "cosine",
    "inverse_sqrt": "inverse_sqrt",
    "rsqrt": "constant",
}
"""Our names to those of transformers, which rsqrt is not among."""


class SchedulerConfig(Section):
    """The ``scheduler`` section of the configuration."""

    name: Literal["constant", "linear", "cosine", "rsqrt", "inverse_sqrt"] = "constant"
    """constant, linear, cosine, inverse_sqrt or rsqrt; chosen by scheduler=NAME."""
    warmup_steps: Count = 0
    """Steps in which the learning rate rises linearly from 0, the first of which moves nothing; for
    rsqrt those in which it stays as it is, before it falls as one over the root of the step."""
    timescale: AtLeastOne | None = None
    """For inverse_sqrt: after warm-up it falls as 1 / sqrt(1 + steps since / timescale).

    Null takes the steps of the warm-up, or 10,000 where there is none.
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
    """Return the learning-rate schedule over ``steps`` steps.

    Args:
        optimizer: Whose learning rate it sets.
        config: Which schedule.
        steps: Steps planned.
        factor: Steps taken (0 before the first) to what the schedule's value is multiplied by.
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
    """Return what the learning rate is multiplied by at each of ``steps`` steps."""
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
        step: Counted from 1.
        warmup: Steps before the learning rate falls; there is no ramp.
    """
    return min(1.0, math.sqrt(warmup / step))


def learning_rate_of(training_state: "TrainingState", step: int) -> float:
    """Return the learning rate that step ``step`` (counted from 1) was taken with."""
    scheduler = training_state.scheduler
    return float(scheduler.base_lrs[0] * scheduler.lr_lambdas[0](step - 1))


def learning_rate_factor(
    phases: Sequence[MethodPhase], learning_rate: float
) -> Callable[[int], float] | None:
    """Return what multiplies ``learning_rate`` at each step (counted from 0); None: nothing does.

    Raises:
        InputError: A phase has a rate of its own and ``learning_rate`` is 0.
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
        # The schedule is asked once more after the last step.
        return rates[min(bisect_right(ends, step), len(rates) - 1)] / learning_rate

    return factor
