"""What is said of modules that run example by example: why, and what would spare it.

Said once for each model and kind of call, of the first of several modules of one class, and in
words of our own: an error's message may tell the records' lengths.
"""

import logging
from collections.abc import Hashable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from torch import nn

from dpft.privacy.clipping.separation.flow import WeightUse

logger = logging.getLogger(__name__)
_said: WeakKeyDictionary[nn.Module, set[Hashable]] = WeakKeyDictionary()
REASONS = {
    "data-dependent control flow": "it reads a value from a tensor",
    ".item()": "it reads a value from a tensor",
    "dynamic shape": "the shape of one of its tensors depends on values",
    "accessing `data`": "it changes a weight as it runs",
    "inplace": "it writes in place into a tensor without the batch",
    "Batching rule not implemented": "one of its operations has no form over examples",
}
"""What is said, by what torch says."""
NOT_ITS_OWN = "mapped over its examples it gives other gradients than its own"


@dataclass(frozen=True)
class Cause:
    """Why a module must run example by example, and what a caller can do.

    Attributes:
        why: A clause that names a parameter.
        remedy: What to do.
    """

    why: str
    remedy: str


UNKNOWN = Cause(
    "no smaller module carries the batch from its inputs to its outputs",
    "give its layers inputs that carry the batch in front",
)


def cause_of(use: WeightUse, *, recorded: bool) -> Cause:
    """Returns why a use of a weight needs a module that runs example by example.

    Args:
        use: The use.
        recorded: Whether it is a layer's with a rule, of the layer's own weight.
    """
    layer = type(use.user).__name__
    if not recorded:
        remedy = f"freeze {use.name}, or use it in a layer with a rule, such as nn.Linear"
        return Cause(f"{layer} uses {use.name} in a way that no rule knows", remedy)
    why = f"{use.name} meets a tensor that does not carry the batch in front"
    if isinstance(use.user, nn.Embedding):
        return Cause(why, f"pass position_ids, or what else {layer} looks up, for each example")
    return Cause(why, f"give {layer} an input that carries the batch in front, or freeze it")


def reason_of(error: BaseException) -> str:
    """Returns in words why a module cannot be mapped over its examples."""
    message = str(error)
    return next(
        (words for sign, words in REASONS.items() if sign in message),
        "it does what cannot be mapped over examples",
    )


def say_once(model: nn.Module, kind: Hashable, message: str, level: int) -> None:
    """Logs a message of a model, the first time that one of its kind is given."""
    said = _said.setdefault(model, set())
    if kind not in said:
        said.add(kind)
        logger.log(level, "clipping: %s", message)
