"""Training from scratch, the baseline without pre-training (Li et al. 2022, table 2: retrain)."""

from typing import ClassVar

from dpft.methods.base import METHODS
from dpft.methods.full import Full


@METHODS.register("retrain")
class Retrain(Full):
    """Training of all parameters from a random initialization; requires ``model.init=random``.

    ``method=retrain`` also sets ``model.init=random``.
    """

    required_init: ClassVar[str | None] = "random"
