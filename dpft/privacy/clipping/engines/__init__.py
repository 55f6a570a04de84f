"""Engines: ways to the same clipped sum, differing in time and memory only.

Where the terms of an example's gradient cancel to a share s of their size, ``instantiate`` and
``loop``, which form it in float32, round it by about 1e-7 / s; ``book_keeping`` and ``two_pass``
form it in float64 where s is below 1e-3. Each clips by the norm of the very gradient that it adds.
"""

import logging
from collections.abc import Mapping

from torch import nn

from dpft.privacy.clipping.choices import FLOAT_BYTES, Tuning, check_engine_name
from dpft.privacy.clipping.engines.algorithms import (
    BookKeepingEngine,
    InstantiateEngine,
    LoopEngine,
    TwoPassEngine,
)
from dpft.privacy.clipping.engines.base import Engine
from dpft.privacy.clipping.factors import ClippingStyle

ENGINES: dict[str, type[Engine]] = {
    "book_keeping": BookKeepingEngine,
    "two_pass": TwoPassEngine,
    "instantiate": InstantiateEngine,
    "loop": LoopEngine,
}
SMALL_SHARE = 0.1
"""Share of the parameters up to which a trainable set is small: adapters, biases, norms."""
NOMINAL_EXAMPLES = 32
"""Micro-batch that ``auto`` reckons with; the real one may change without changing the choice."""

logger = logging.getLogger(__name__)


def make_engine(
    name: str,
    model: nn.Module,
    style: ClippingStyle,
    *,
    groups: Mapping[str, int],
    tuning: Tuning,
) -> Engine:
    """Returns the engine called ``name``, or the one that ``auto`` picks, which is logged.

    Raises:
        InputError: No such engine, or as the engine itself.
    """
    taken, reason = resolved_engine(name, model, tuning)
    if name == "auto":
        logger.info("`engine='auto'` takes %s: %s", taken, reason)
    return ENGINES[taken](model, style, groups=groups, tuning=tuning)


def resolved_engine(name: str, model: nn.Module, tuning: Tuning) -> tuple[str, str]:
    """Returns the engine that a name stands for, and why.

    Raises:
        InputError: No such engine.
    """
    check_engine_name(name)
    return automatic_choice(model, tuning) if name == "auto" else (name, "it was asked for")


def automatic_choice(model: nn.Module, tuning: Tuning) -> tuple[str, str]:
    """Returns an engine and why, from shapes, switches and the budget; never from a timing."""
    total = sum(p.numel() for p in model.parameters())
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    needed = trainable * FLOAT_BYTES * NOMINAL_EXAMPLES
    if trainable <= SMALL_SHARE * total and needed <= tuning.memory_mb * 2**20:
        return "instantiate", "the trainable parameters are few"
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        return "two_pass", "the model recomputes its activations to save memory"
    return "book_keeping", "it needs one backward pass"
