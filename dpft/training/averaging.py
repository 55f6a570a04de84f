"""Averages of the weights over a run's iterates: post-processing, which costs no privacy.

Every iterate is an output of the noisy steps before it, and its share in the average follows from
the number of the step and of all steps alone, so the average is an output of the same mechanism
(Dwork and Roth 2014, proposition 2.1). Which of the two is released, the average or the last
iterate, stands in the configuration: a choice by scores would be one by data.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from dpft.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

EMA, TAIL = "ema", "tail"
AVERAGES = ("none", EMA, TAIL)


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """Which average is taken of the iterates w_1, w_2, …, and whether it is what is released.

    With s the share of step t (``share``), the average is ``a <- a + s (w_t - a)``. ema: s is
    ``1 - min(decay, (1 + t) / (10 + t))``, so that early iterates fade while the run is short of
    ``1 / (1 - decay)`` steps, as De et al. 2022 (arXiv 2204.13650) average private models. tail:
    the mean of the last ``tail`` of the iterates (Jain et al. 2018, arXiv 1610.03774); before
    them it is the iterate itself.
    """

    kind: str
    decay: float
    tail: float
    released: bool

    def share(self, step: int, steps: int) -> float:
        """Returns the share of the iterate after ``step`` of ``steps`` steps, counted from 1.

        >>> mean = Averaging(kind="tail", decay=0.9, tail=0.5, released=True)
        >>> [mean.share(step, 6) for step in (1, 3, 4, 5)]
        [1.0, 1.0, 1.0, 0.5]
        """
        if step == 1:
            return 1.0
        if self.kind == EMA:
            return 1 - min(self.decay, (1 + step) / (10 + step))
        first = steps - max(1, round(self.tail * steps)) + 1
        return 1 / max(1, step - first + 1)

    @property
    def stage(self) -> Literal["last", "average"]:
        """What the scores of the weights that are not released are called."""
        return "last" if self.released else "average"

    def describe(self) -> dict[str, Any]:
        """Returns what a checkpoint says of it, ready for JSON."""
        own = {EMA: "tail", TAIL: "decay"}[self.kind]
        return {name: value for name, value in asdict(self).items() if name != own}


class WeightAverage:
    """The average of what an optimizer moves, kept in step with it.

    It has a tensor of each parameter's size, cut into shards as the parameter is.
    """

    def __init__(self, averaging: Averaging, parameters: "Iterable[nn.Parameter]", steps: int):
        """Begins before the first step.

        Args:
            averaging: How.
            parameters: What the optimizer moves, in whichever phase.
            steps: How many steps are planned.
        """
        self.averaging = averaging
        self.tensors: dict[nn.Parameter, Tensor] = {}
        """By parameter; none before the first step."""
        self._parameters, self._steps = list(parameters), steps

    def update(self, step: int) -> None:
        """Takes the weights in as they are after step ``step`` (counted from 1)."""
        from dpft.parallel.cutting import local

        share = self.averaging.share(step, self._steps)
        for parameter in self._parameters:
            if parameter not in self.tensors:
                self.tensors[parameter] = parameter.detach().clone()
            mean, now = local(self.tensors[parameter]), local(parameter.detach())
            if share == 1:
                mean.copy_(now)
            else:
                mean.lerp_(now, share)

    def swap(self) -> None:
        """Puts the average into the model, and the model's weights in its own place; or back.

        Before the first step there is no average, and the model stays as it is.
        """
        from dpft.parallel.cutting import local

        for parameter, tensor in self.tensors.items():
            mean, now = local(tensor), local(parameter.detach())
            before = now.clone()
            now.copy_(mean)
            mean.copy_(before)


def check_averaging(
    own: "WeightAverage | None", began: Mapping[str, Any] | None, checkpoint: object
) -> None:
    """Refuses to go on with another average than the run began with.

    Args:
        own: Of the configuration.
        began: What the checkpoint says, as ``Averaging.describe`` wrote it; None: there is none.
        checkpoint: What a message calls the checkpoint.

    Raises:
        InputError: They differ.
    """
    now = None if own is None else own.averaging.describe()
    if now != began:
        raise InputError(
            f"resume must go on with the average of weights that the run began with,"
            f" {_in_words(began)} in {checkpoint}, got {_in_words(now)}; put train.average and its"
            " like in the run's config.yaml back as they were."
        )


def _in_words(described: Mapping[str, Any] | None) -> str:
    if described is None:
        return "none"
    return " ".join(f"{name}={described[name]}" for name in sorted(described))
