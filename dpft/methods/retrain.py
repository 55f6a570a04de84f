"""Training from scratch, the baseline without pre-training (Li et al. 2022, table 2: retrain)."""

from typing import ClassVar

from dpft.methods.base import METHODS
from dpft.methods.full import Full


@METHODS.register("retrain")
class Retrain(Full):
    """Trains all parameters of a random initialization; it works with ``model.init=random`` only.

    ``method=retrain`` sets that as well.
    """

    required_init: ClassVar[str | None] = "random"
