"""A model that is not training: no dropout, no settings of its own, all put back afterwards.

It stands alone because evaluation happens in the middle of a run: the model goes on training
after its "before" scores, so looking at it must change nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from transformers import GenerationConfig


@contextmanager
def evaluation_mode(model: "nn.Module") -> Iterator[None]:
    """Puts the model in eval mode, and every module back in the mode it was in.

    ``model.train()`` alone would also wake modules that were frozen in eval mode.

    Args:
        model: Any module.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def generation_defaults(model: "nn.Module", defaults: "GenerationConfig") -> Iterator[None]:
    """Replaces the checkpoint's generation settings, and puts them back.

    transformers fills what a call leaves open from ``model.generation_config``, where a checkpoint
    may ship a repetition penalty, suppressed tokens or a minimum length of its own.

    Args:
        model: A language model, or a wrapper around one (peft).
        defaults: Settings to fill from meanwhile.
    """
    owners = [vars(module) for module in model.modules() if "generation_config" in vars(module)]
    saved = [attributes["generation_config"] for attributes in owners]
    for attributes in owners:
        attributes["generation_config"] = defaults
    try:
        yield
    finally:
        for attributes, config in zip(owners, saved, strict=True):
            attributes["generation_config"] = config
