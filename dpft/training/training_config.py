"""The configuration section ``train``: epochs, batch size, learning rate, precision, threads.

``train.precision`` is the precision of the model's computations, by autocast over float32
parameters. Norms, clip factors, sums and the optimizer state are always float32, and noise is
always float64.

Half precision has a limitation (docs/dev/design.md, rule 2). If a longer record joins a
micro-batch, the other records get more padding, which changes the rounding of their losses. In bf16
on a CPU, such a record changed the sum of the other records by up to 2.6e-3 *
privacy.max_grad_norm in our measurements, and the whole sum by up to 1.0001 *
privacy.max_grad_norm. Epsilon assumes at most 1 * privacy.max_grad_norm. In fp32, the clip factors
reserve a margin for rounding (``CompensatedSums``). In half precision, the excess was measured on
small models and is not bounded by a proof. The report states this next to the precision.
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
    """Return the dtype that autocast computes in, or None without autocast."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)


def autocast(precision: str, device: "torch.device") -> AbstractContextManager[object]:
    """Return the context to compute losses in; leave it before the backward pass."""
    from dpft import devices

    return devices.autocast(device, autocast_dtype(precision))


def warn_if_slow(precision: str, device: "torch.device") -> None:
    """Warn about float16 on a CPU, which is only meant for tests."""
    if precision == "fp16" and device.type == "cpu":
        logger.warning(
            "train.precision=fp16 is some 40 times slower than fp32 on a CPU; "
            "use train.precision=bf16 or fp32 there."
        )


LARGEST_DEFAULT_BATCH = 1024
DEFAULT_BATCHES = 4
"""Minimum number of expected batches per epoch if no batch size is configured."""
FEW_EXAMPLES = 5_000
"""Maximum number of examples for which a step draws half of a user's records by default. With such
large batches, the noise is spread over more records, and there are fewer steps, each of which needs
less noise."""
OWN_EPOCHS = 10
OWN_LEARNING_RATES = {"linear_probe": 5e-2}
"""Default learning rates by method. A new head has few parameters, so its signal is large compared
with the noise."""
SMALL_LEARNING_RATE, LARGE_LEARNING_RATE = 2e-3, 1e-2
"""Default learning rates: the small one for methods that train the model's weights
(``OF_ALL_WEIGHTS``), the large one for methods that add or select a few weights."""
OF_ALL_WEIGHTS = frozenset(("full", "retrain", "top2", "two_phase", "rgp"))
AUTO = "auto"
HALF_BUCKET, BUCKET = 16, 8
"""Number of tokens that the matrix units of an accelerator process together, in half precision and
in float32."""
MOST_THREADS = 1024
"""Maximum number of threads. Torch starts as many threads as requested, even if memory runs out."""


class DeviceConfig(Section):
    """The device and the threads of a command."""

    device: Literal["auto", "cpu", "accelerator", "cuda", "xpu", "mps"] = "auto"
    """Device to compute on: cpu; accelerator, or a type of accelerator such as cuda; or auto, which
    uses an accelerator if there is one."""
    num_threads: Annotated[int, Field(ge=1, le=MOST_THREADS)] | None = None
    """Number of CPU threads; null uses torch's default."""

    def prepare(self) -> "torch.device":
        """Set the number of threads and return the device to compute on.

        Raises:
            InputError: The configured type of accelerator is not available.
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
    """Expected number of examples per step; null: 1024, or a quarter of the examples if that is
    less. For your data with up to 5,000 examples, null uses half of them, but at most 1024. The
    value is the sample rate times the public number of examples, and every gradient is divided by
    it."""
    transfer_sample_rate_from: str | None = None
    """Task that expected_batch_size was chosen for; this task then uses the batch size with the
    same sample rate. See Li et al. 2022, Appendix L. null: use expected_batch_size unchanged."""
    micro_batch_size: AtLeastOne | Literal["auto"] = 32
    """Maximum number of examples in memory at once; affects speed and memory, never the gradient.
    auto: the largest number of records of task.max_length that fits into memory according to dpft
    plan. This number does not depend on the records and is fixed when the run begins."""
    micro_batch_tokens: AtLeastOne | None = None
    """Maximum number of tokens in memory at once; affects speed and memory, never the gradient. The
    number of tokens is the records times the padded length of the longest record. A micro-batch
    ends when this limit or micro_batch_size is reached, so increase micro_batch_size to fill it
    with short records. null: no limit."""
    pad_to_multiple_of: AtLeastOne | None = None
    """Micro-batches are padded to a multiple of this length; affects speed, never the gradient. The
    padded length is at most task.max_length. null: 1 on a CPU, and on an accelerator 8, or 16 in
    half precision."""
    epochs: Positive | None = 10
    """Expected number of passes over the data. Sets the number of steps if steps is null.
    null: 10."""
    steps: AtLeastOne | None = Field(default=None, examples=[100])
    """Number of noisy steps; overrides epochs."""
    learning_rate: NotNegative | None = 2e-3
    """Peak learning rate of the schedule; null uses a default that depends on the method."""
    weight_decay: NotNegative = 0.0
    """Weight decay of the optimizer; it does not depend on any record."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed for the initialization of new weights. Sampling, noise and dropout of private runs do
    not use it."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the model's computations, with float32 parameters: fp32, bf16 or fp16."""
    loss_scale: float = 1024.0
    """For fp16: the factor for losses in the backward pass, so that small gradients do not
    underflow. The results are divided by this value in float32. The value is public and never
    adapts to records that overflow."""
    adaptive_loss_scale: bool = False
    """For fp16 with privacy and an unsharded model: start at loss_scale and adapt the scale. The
    scale depends only on noisy gradients, which epsilon covers, and changes if they show that fewer
    examples are lost."""
    checkpoint_every: AtLeastOne | None = None
    """Number of steps between checkpoints; null saves only one at the start and one at the end."""
    keep: AtLeastOne = 1
    """Number of checkpoints to keep; the newest are kept."""

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
        """Return a copy with defaults instead of null, chosen by a public number of examples.

        Args:
            num_examples: The number of examples that counts as public.
            method: Name of the training method.
            is_user_data: Whether the records are the user's data, without a published recipe for
                their number. If so, and if there are at most 5,000 examples, a batch is half of
                them. Otherwise the batch size remains null.
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
        """The learning rate, after ``for_own_data`` has chosen a default if necessary."""
        if self.learning_rate is None:
            raise RuntimeError("peak_learning_rate must follow for_own_data.")
        return self.learning_rate

    @property
    def most_rows(self) -> int:
        """Maximum number of examples in a micro-batch; ``auto`` must have been resolved."""
        if not isinstance(self.micro_batch_size, int):
            raise RuntimeError("most_rows must follow with_micro_batch_size.")
        return self.micro_batch_size

    def bucket(self, device: "torch.device") -> int:
        """Return the number that padded micro-batch lengths are multiples of on a device."""
        if self.pad_to_multiple_of is not None:
            return self.pad_to_multiple_of
        if device.type == "cpu":
            return 1
        return BUCKET if self.precision == "fp32" else HALF_BUCKET

    @property
    def backward_scale(self) -> float:
        """The factor for losses before the backward pass; 1 except with fp16."""
        return self.loss_scale if self.precision == "fp16" else 1.0

    @property
    def autocast_dtype(self) -> "torch.dtype | None":
        """The dtype that autocast computes losses in; None without autocast."""
        return autocast_dtype(self.precision)

    def batch_size(self, num_examples: int, *, of: str = "examples") -> int:
        """Return the expected batch size for a public number of examples.

        The default is the published 1024 (Li et al. 2022, Appendix H), or fewer for few examples.
        With a sample rate of at most a quarter, subsampling still lowers epsilon, and an epoch has
        at least four steps.

        Args:
            num_examples: The number of examples that counts as public.
            of: Name of the counted items.

        Raises:
            InputError: The expected batch size exceeds the number of examples.
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
    """Return the default expected batch size: 1024, or a quarter of the examples if that is less.

    >>> [default_batch_size(number) for number in (42_061, 365, 3)]
    [1024, 91, 1]
    """
    return min(LARGEST_DEFAULT_BATCH, max(1, num_examples // DEFAULT_BATCHES))
