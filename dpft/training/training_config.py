"""How a run trains: the public recipe, and what only changes its speed, such as its precision.

``train.precision`` is what the model computes in, by autocast over float32 parameters: norms, clip
factors, sums and the optimizer's state are float32 whatever it says; noise is float64. Half
precision has a limit (docs/design.md, rule 2): a longer record pads the others of its micro-batch,
whose losses then round otherwise. In bf16 on a CPU the others' sum was measured to move by up to
2.6e-3 * privacy.max_grad_norm, and the whole sum by up to 1.0001 times it; in fp32 the clip factors
leave room for what rounding does (``CompensatedSums``). What counts for epsilon is the whole sum,
and the excess is measured on small models, not bounded by proof: the report says so beside the
precision.

``train.average`` is an average of the weights over the run's iterates: post-processing, which costs
no privacy. Every iterate is an output of the noisy steps before it, and its share in the average
follows from the number of the step and of all steps alone, so the average is an output of the same
mechanism (Dwork and Roth 2014, proposition 2.1). Which of the two is released, the average or the
last iterate, stands in the configuration: a choice by scores would be one by data.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from dpft.errors import InputError
from dpft.privacy.clipping.choices import check_loss_scale
from dpft.privacy.plan import planned_steps

if TYPE_CHECKING:
    import torch
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
        """Begins before the first step."""
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
    """Refuses to go on with another average than the run began with, as its checkpoint says.

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


PRECISIONS = ("fp32", "bf16", "fp16")

logger = logging.getLogger(__name__)


def autocast(precision: str, device: "torch.device") -> AbstractContextManager[object]:
    """Returns the context to compute losses in; leave it before the backward pass."""
    if precision == "fp32":
        return nullcontext()
    import torch

    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
    return torch.autocast(device.type, dtype=dtypes[precision])


def warn_if_slow(precision: str, device: "torch.device") -> None:
    """Warns of float16 on a CPU, which is for tests."""
    if precision == "fp16" and device.type == "cpu":
        logger.warning(
            "train.precision=fp16 is some 40 times slower than fp32 on a CPU; "
            "use train.precision=bf16 or fp32 there."
        )


DEVICES = ("auto", "cpu", "accelerator", "cuda", "xpu", "mps")
LARGEST_DEFAULT_BATCH = 1024
DEFAULT_BATCHES = 4
"""Batches that few examples make where no batch size is configured."""
FEW_EXAMPLES = 5_000
"""Up to so many, half of a user's own records are drawn in a step: noise is spread over more of
them, and of the fewer steps each has less."""
OWN_EPOCHS = 10
OWN_LEARNING_RATES = {"linear_probe": 5e-2}
"""By method. A head alone has few parameters, and so little noise beside its signal."""
SMALL_LEARNING_RATE, LARGE_LEARNING_RATE = 2e-3, 1e-2
"""Of a method that trains the model's own weights, and of one that adds or chooses a few."""
OF_ALL_WEIGHTS = frozenset(("full", "retrain", "top2", "two_phase", "rgp"))
AUTO = "auto"
HALF_BUCKET, BUCKET = 16, 8
"""Tokens that an accelerator's matrix units take at a time, in half precision and in float32."""
MOST_THREADS = 1024
"""Torch starts as many as it is told to, until the memory is gone."""


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Where a command computes."""

    device: str = "auto"
    """cpu; accelerator, or a kind of one, such as cuda; or auto, which takes an accelerator where
    there is one."""
    num_threads: int | None = None
    """CPU threads; null leaves torch's choice."""

    def __post_init__(self) -> None:
        if self.num_threads is not None:
            _at_least_1("or null for torch's choice", num_threads=self.num_threads)
            if self.num_threads > MOST_THREADS:
                raise InputError(
                    f"train.num_threads must be at most {MOST_THREADS}, got {self.num_threads}."
                )
        if self.device not in DEVICES:
            raise InputError(
                f"train.device must be one of {', '.join(DEVICES)}, got {self.device!r}."
            )

    def prepare(self) -> "torch.device":
        """Sets the number of threads and returns the device to compute on.

        Raises:
            InputError: A kind of accelerator is asked for and there is none.
        """
        import torch

        from dpft.devices import accelerator, add_in_one_order, chosen_device, only_whole_precision

        if self.num_threads is not None:
            torch.set_num_threads(self.num_threads)
        only_whole_precision()
        device, there = chosen_device(self.device), accelerator()
        if device is None:
            has, other = ("none", "cpu") if there is None else (there.type, there.type)
            raise InputError(
                f"train.device={self.device} needs an accelerator of that kind, got {has}; use"
                f" train.device={other}."
            )
        add_in_one_order(device)
        return device


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(DeviceConfig):
    """The ``train`` section of the configuration."""

    expected_batch_size: int | None = None
    """Sample rate times the public number of examples, and the divisor of every gradient; null
    takes 1024, or a quarter of that number where it is less."""
    transfer_sample_rate_from: str | None = None
    """A task that expected_batch_size is meant for; this one then gets the batch size of the same
    sample rate (Li et al. 2022, Appendix L). Null: expected_batch_size as it stands."""
    micro_batch_size: int | Literal["auto"] = 32
    """Most examples in memory at once; changes speed and memory, never the gradient. auto takes
    the most records of task.max_length that the device's memory holds by dpft plan's estimate,
    never by the records; it is fixed when the run begins."""
    micro_batch_tokens: int | None = None
    """Most tokens in memory at once, records times the padded length of the longest, beside
    micro_batch_size: a micro-batch ends where either is reached, so raise micro_batch_size to let
    short records fill it. Changes speed and memory, never the gradient. Null: no limit."""
    pad_to_multiple_of: int | None = None
    """Micro-batches are padded to a length that is a multiple of it, at most task.max_length;
    changes speed, never the gradient. Null: 1 on a CPU; on an accelerator, or with train.compile,
    8, or 16 in half precision."""
    compile: bool = False
    """Whether whole micro-batches run under torch.compile; what is left over of a draw runs as it
    is. With privacy all of them are padded to task.max_length, since what is compiled, and when,
    would tell of the records; without it each length is a compilation of minutes. Changes speed,
    never the gradient."""
    fused_head: bool | Literal["auto"] = "auto"
    """Whether losses are taken of a language model's head some positions at a time, so that its
    logits never exist whole. auto does on a CPU for a large vocabulary's plain dense head, with
    the whole model in each process, one record a unit and no fp16; true also on an accelerator.
    Changes memory and speed, never the gradient."""
    epochs: float | None = 10
    """Passes over the data in expectation; sets the number of steps where steps is null. Null takes
    10."""
    steps: int | None = None
    """Noisy steps; where given, replaces epochs."""
    learning_rate: float | None = 2e-3
    """Learning rate, that of the schedule's full height; null takes one for the method."""
    weight_decay: float = 0.0
    """Weight decay of the optimizer; reads no record."""
    seed: int = 0
    """Seed of the initialization of new weights; sampling, noise and dropout do not use it."""
    precision: str = "fp32"
    """What the model computes in, over float32 parameters: fp32, bf16 or fp16."""
    loss_scale: float = 1024.0
    """For fp16: the backward pass runs on losses times this, and its results are divided by it in
    float32, so that small gradients survive. Public; never adapted to what a record overflows."""
    adaptive_loss_scale: bool = False
    """For fp16 with privacy, the whole model in each process: loss_scale is where the scale starts,
    and noisy gradients, which epsilon covers, move it where they say that fewer are lost."""
    average: str = "none"
    """Average of the weights over the steps, scored beside the last ones: none, ema (recent steps
    count more) or tail (the mean over the last steps). Costs no privacy, and memory for the
    weights that train once more."""
    average_released: bool = True
    """Whether the average is what is released, where there is one; false: the last weights are.
    Chosen before training: a choice by private scores would be one by data."""
    average_decay: float = 0.9999
    """For ema: the most that stays of the average at a step; at step t at most (1 + t) / (10 + t)
    does, so that a short run forgets its beginning."""
    average_tail: float = 0.5
    """For tail: the share of all steps, the last ones, over which the mean is taken."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; null means one at the start and one at the end."""
    keep: int = 1
    """Checkpoints kept, the newest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        batch = self.expected_batch_size
        _at_least_1("and at most the number of examples, or null", expected_batch_size=batch)
        _at_least_1("or auto", micro_batch_size=self.micro_batch_size)
        _at_least_1(keep=self.keep)
        for name in ("micro_batch_tokens", "pad_to_multiple_of", "checkpoint_every"):
            _at_least_1("or null", **{name: getattr(self, name)})
        _at_least_1("or null to follow train.epochs", steps=self.steps)
        if not 0 <= self.seed < 2**63:
            raise InputError(f"train.seed must be in [0, 2^63), got {self.seed}.")
        given = {name: getattr(self, name) for name in ("epochs", "learning_rate")}
        given = {name: value for name, value in given.items() if value is not None}
        _finite(weight_decay=self.weight_decay, **given)
        check_loss_scale(self.loss_scale)
        if self.precision not in PRECISIONS:
            raise InputError(
                f"train.precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}."
            )
        if self.average not in AVERAGES:
            raise InputError(
                f"train.average must be one of {', '.join(AVERAGES)}, got {self.average!r}."
            )
        if not 0 <= self.average_decay < 1:
            raise InputError(f"train.average_decay must be in [0, 1), got {self.average_decay}.")
        if not 0 < self.average_tail <= 1:
            raise InputError(f"train.average_tail must be in (0, 1], got {self.average_tail}.")
        if self.adaptive_loss_scale and self.precision != "fp16":
            raise InputError(
                "train.adaptive_loss_scale=true needs train.precision=fp16, got"
                f" {self.precision}; set it to false."
            )
        if self.epochs is not None and self.epochs <= 0:
            raise InputError(
                f"train.epochs must be positive, got {self.epochs}; a part of one, such as 0.5, "
                "is allowed, and train.steps counts steps instead."
            )
        for name in ("learning_rate", "weight_decay"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InputError(f"train.{name} must be at least 0, got {value}.")

    def for_own_data(self, num_examples: int, *, method: str, own: bool) -> Self:
        """Returns it with the values that null stands for, chosen by a public number of examples.

        Args:
            num_examples: The number that counts as public.
            method: What trains.
            own: Whether the records are a user's own, for whose number no recipe is published: of
                up to 5,000, a batch is half of them. Of others, and of more, it stays null.
        """
        batch = self.expected_batch_size
        if batch is None and own and num_examples <= FEW_EXAMPLES:
            batch = min(LARGEST_DEFAULT_BATCH, max(1, num_examples // 2))
        usual = SMALL_LEARNING_RATE if method in OF_ALL_WEIGHTS else LARGE_LEARNING_RATE
        rate = OWN_LEARNING_RATES.get(method, usual)
        return replace(
            self,
            expected_batch_size=batch,
            epochs=OWN_EPOCHS if self.epochs is None else self.epochs,
            learning_rate=rate if self.learning_rate is None else self.learning_rate,
        )

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate, once ``for_own_data`` has chosen one where none is given."""
        if self.learning_rate is None:
            raise RuntimeError("peak_learning_rate must follow for_own_data.")
        return self.learning_rate

    @property
    def averaging(self) -> Averaging | None:
        """The average of the weights that is taken; None: there is none."""
        if self.average == "none":
            return None
        return Averaging(
            kind=self.average,
            decay=self.average_decay,
            tail=self.average_tail,
            released=self.average_released,
        )

    @property
    def most_rows(self) -> int:
        """Most examples of a micro-batch; ``auto`` must have been resolved."""
        if not isinstance(self.micro_batch_size, int):
            raise RuntimeError("most_rows must follow with_micro_batch_size.")
        return self.micro_batch_size

    def bucket(self, device: "torch.device") -> int:
        """Returns what the lengths of micro-batches are multiples of on a device."""
        if self.pad_to_multiple_of is not None:
            return self.pad_to_multiple_of
        if device.type == "cpu" and not self.compile:
            return 1
        return BUCKET if self.precision == "fp32" else HALF_BUCKET

    @property
    def backward_scale(self) -> float:
        """What losses are multiplied by before the backward pass; 1 but for fp16."""
        return self.loss_scale if self.precision == "fp16" else 1.0

    def batch_size(self, num_examples: int, *, of: str = "examples") -> int:
        """Returns the expected batch size for a public number of examples.

        Where none is configured it is the published 1024 (Li et al. 2022, Appendix H), or less for
        few examples: at a sample rate of at most a quarter subsampling still lowers epsilon, and an
        epoch has four steps at least.

        Args:
            num_examples: The number that counts as public.
            of: What it is a number of.

        Raises:
            InputError: More are expected in a batch than there are.
        """
        if self.expected_batch_size is None:
            return default_batch_size(num_examples)
        if self.expected_batch_size > num_examples:
            raise InputError(
                f"train.expected_batch_size must be at most the {num_examples} {of}, got"
                f" {self.expected_batch_size}; lower it, or set it to null, which takes"
                f" {default_batch_size(num_examples)}."
            )
        return self.expected_batch_size

    def planned_steps(self, num_examples: int, *, of: str = "examples") -> int:
        """Returns the number of steps for a public number of examples."""
        batch_size = self.batch_size(num_examples, of=of)
        if self.steps is not None:
            return self.steps
        epochs = OWN_EPOCHS if self.epochs is None else self.epochs
        return planned_steps(
            epochs=epochs, num_examples=num_examples, expected_batch_size=batch_size
        )


def default_batch_size(num_examples: int) -> int:
    """Returns the expected batch size where none is configured: 1024, or a quarter if that is less.

    >>> [default_batch_size(number) for number in (42_061, 365, 3)]
    [1024, 91, 1]
    """
    return min(LARGEST_DEFAULT_BATCH, max(1, num_examples // DEFAULT_BATCHES))


def _at_least_1(alternative: str = "", **values: int | str | None) -> None:
    """Refuses a number below 1; ``alternative`` is what may stand in a number's place."""
    allowed = f"1, {alternative}," if alternative else "1,"
    for name, value in values.items():
        if isinstance(value, int) and value < 1:
            raise InputError(f"train.{name} must be at least {allowed} got {value}.")


def _finite(**values: float) -> None:
    for name, value in values.items():
        if not math.isfinite(value):
            raise InputError(f"train.{name} must be finite, got {value}.")
