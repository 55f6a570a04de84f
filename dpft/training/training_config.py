"""The configuration section ``train``: epochs, batch size, learning rate, precision, threads.

``train.precision`` is what the model computes in, by autocast over float32 parameters: norms, clip
factors, sums and the optimizer's state are float32 whatever it says; noise is float64. Half
precision has a limit (docs/dev/design.md, rule 2): a longer record pads the others of its
micro-batch, whose losses then round otherwise. In bf16 on a CPU the others' sum was measured to
move by up to 2.6e-3 * privacy.max_grad_norm, and the whole sum by up to 1.0001 times it; in fp32
the clip factors leave room for what rounding does (``CompensatedSums``). What counts for epsilon is
the whole sum, and the excess is measured on small models, not bounded by proof: the report says so
beside the precision.
"""

import logging
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field

from dpft.config.section import Section
from dpft.errors import InputError
from dpft.privacy.clipping.options import check_loss_scale
from dpft.privacy.plan import planned_steps
from dpft.strict_model import AtLeastOne, NotNegative, Positive

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


def autocast_dtype(precision: str) -> "torch.dtype | None":
    """Return the type that autocast computes in; None if there is no autocast."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)


def autocast(precision: str, device: "torch.device") -> AbstractContextManager[object]:
    """Return the context to compute losses in; leave it before the backward pass."""
    from dpft import devices

    return devices.autocast(device, autocast_dtype(precision))


def warn_if_slow(precision: str, device: "torch.device") -> None:
    """Warn of float16 on a CPU, which is for tests."""
    if precision == "fp16" and device.type == "cpu":
        logger.warning(
            "train.precision=fp16 is some 40 times slower than fp32 on a CPU; "
            "use train.precision=bf16 or fp32 there."
        )


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


class DeviceConfig(Section):
    """Where a command computes."""

    device: Literal["auto", "cpu", "accelerator", "cuda", "xpu", "mps"] = "auto"
    """cpu; accelerator, or a kind of one, such as cuda; or auto, which takes an accelerator where
    there is one."""
    num_threads: Annotated[int, Field(ge=1, le=MOST_THREADS)] | None = None
    """CPU threads; null leaves torch's choice."""

    def prepare(self) -> "torch.device":
        """Set the number of threads and return the device to compute on.

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
                f"train.device={self.device} needs an accelerator of this kind, got {has}.",
                key="train.device",
                value=self.device,
                hint=f"train.device={other}",
            )
        add_in_one_order(device)
        return device


class TrainingConfig(DeviceConfig):
    """The ``train`` section of the configuration."""

    expected_batch_size: AtLeastOne | None = Field(default=None, examples=[64])
    """Sample rate times the public number of examples, and the divisor of every gradient; null
    takes 1024, or a quarter of that number where it is less."""
    transfer_sample_rate_from: str | None = None
    """A task that expected_batch_size is meant for; this one then gets the batch size of the same
    sample rate (Li et al. 2022, Appendix L). Null: expected_batch_size as it stands."""
    micro_batch_size: AtLeastOne | Literal["auto"] = 32
    """Most examples in memory at once; changes speed and memory, never the gradient. auto takes
    the most records of task.max_length that the device's memory holds by dpft plan's estimate,
    never by the records; it is fixed when the run begins."""
    micro_batch_tokens: AtLeastOne | None = None
    """Most tokens in memory at once, records times the padded length of the longest, beside
    micro_batch_size: a micro-batch ends where either is reached, so raise micro_batch_size to let
    short records fill it. Changes speed and memory, never the gradient. Null: no limit."""
    pad_to_multiple_of: AtLeastOne | None = None
    """Micro-batches are padded to a length that is a multiple of it, at most task.max_length;
    changes speed, never the gradient. Null: 1 on a CPU; on an accelerator 8, or 16 in half
    precision."""
    epochs: Positive | None = 10
    """Passes over the data in expectation; sets the number of steps where steps is null. Null takes
    10."""
    steps: AtLeastOne | None = Field(default=None, examples=[100])
    """Noisy steps; where given, replaces epochs."""
    learning_rate: NotNegative | None = 2e-3
    """Learning rate, that of the schedule's full height; null takes one for the method."""
    weight_decay: NotNegative = 0.0
    """Weight decay of the optimizer; reads no record."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the initialization of new weights; sampling, noise and dropout do not use it."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """What the model computes in, over float32 parameters: fp32, bf16 or fp16."""
    loss_scale: float = 1024.0
    """For fp16: the backward pass runs on losses times this, and its results are divided by it in
    float32, so that small gradients survive. Public; never adapted to what a record overflows."""
    adaptive_loss_scale: bool = False
    """For fp16 with privacy, the whole model in each process: loss_scale is where the scale starts,
    and noisy gradients, which epsilon covers, move it where they say that fewer are lost."""
    checkpoint_every: AtLeastOne | None = None
    """Steps between checkpoints; null means one at the start and one at the end."""
    keep: AtLeastOne = 1
    """Checkpoints kept, the newest."""

    def _check_fields(self) -> None:
        check_loss_scale(self.loss_scale)
        if self.adaptive_loss_scale and self.precision != "fp16":
            raise InputError(
                f"train.adaptive_loss_scale=true needs train.precision=fp16, got {self.precision}.",
                key="train.adaptive_loss_scale",
                value=True,
                hint="train.adaptive_loss_scale=false",
            )

    def for_own_data(self, num_examples: int, *, method: str, is_user_data: bool) -> Self:
        """Return it with the values that null stands for, chosen by a public number of examples.

        Args:
            num_examples: The number that counts as public.
            method: What trains.
            is_user_data: Whether the records are a user's own, for whose number no recipe is
                published: of up to 5,000, a batch is half of them. Of others, and of more, it stays
                null.
        """
        batch = self.expected_batch_size
        if batch is None and is_user_data and num_examples <= FEW_EXAMPLES:
            batch = min(LARGEST_DEFAULT_BATCH, max(1, num_examples // 2))
        usual = SMALL_LEARNING_RATE if method in OF_ALL_WEIGHTS else LARGE_LEARNING_RATE
        rate = OWN_LEARNING_RATES.get(method, usual)
        return self.replace(
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
    def most_rows(self) -> int:
        """Most examples of a micro-batch; ``auto`` must have been resolved."""
        if not isinstance(self.micro_batch_size, int):
            raise RuntimeError("most_rows must follow with_micro_batch_size.")
        return self.micro_batch_size

    def bucket(self, device: "torch.device") -> int:
        """Return what the lengths of micro-batches are multiples of on a device."""
        if self.pad_to_multiple_of is not None:
            return self.pad_to_multiple_of
        if device.type == "cpu":
            return 1
        return BUCKET if self.precision == "fp32" else HALF_BUCKET

    @property
    def backward_scale(self) -> float:
        """What losses are multiplied by before the backward pass; 1 but for fp16."""
        return self.loss_scale if self.precision == "fp16" else 1.0

    @property
    def autocast_dtype(self) -> "torch.dtype | None":
        """Type that autocast computes losses in; None if there is no autocast."""
        return autocast_dtype(self.precision)

    def batch_size(self, num_examples: int, *, of: str = "examples") -> int:
        """Return the expected batch size for a public number of examples.

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
                f" {self.expected_batch_size}.",
                key="train.expected_batch_size",
                value=self.expected_batch_size,
                hint=f"train.expected_batch_size={default_batch_size(num_examples)}",
            )
        return self.expected_batch_size

    def planned_steps(self, num_examples: int, *, of: str = "examples") -> int:
        """Return the number of steps for a public number of examples."""
        batch_size = self.batch_size(num_examples, of=of)
        if self.steps is not None:
            return self.steps
        epochs = OWN_EPOCHS if self.epochs is None else self.epochs
        return planned_steps(
            epochs=epochs, num_examples=num_examples, expected_batch_size=batch_size
        )


def default_batch_size(num_examples: int) -> int:
    """Return the expected batch size where none is configured: 1024, or a quarter if that is less.

    >>> [default_batch_size(number) for number in (42_061, 365, 3)]
    [1024, 91, 1]
    """
    return min(LARGEST_DEFAULT_BATCH, max(1, num_examples // DEFAULT_BATCHES))
