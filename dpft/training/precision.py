"""``train.precision``: what the model computes in, by autocast over float32 parameters.

Norms, clip factors, sums and the optimizer's state are float32 whatever this says; noise is
float64.

Half precision has a limit (docs/design.md, rule 2): a longer record pads the others of its
micro-batch, whose losses then round otherwise. In bf16 on a CPU the others' sum was measured to
move by up to 2.6e-3 * privacy.max_grad_norm, and the whole sum by up to 1.0001 times it; in
fp32 the clip factors leave room for what rounding does (``clipping.sums``). What counts for epsilon
is the whole sum, and the excess is measured on small models, not bounded by proof: the report says
so beside the precision.
"""

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

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
