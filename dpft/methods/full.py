"""Full fine-tuning: every parameter trains (Li et al. 2022)."""

from typing import TYPE_CHECKING

from dpft.methods.base import METHODS, Method

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@METHODS.register("full")
class Full(Method):
    """Training of all parameters; the settings that all methods share change nothing."""

    def adapt(self, model: "PreTrainedModel", new: frozenset[str]) -> "PreTrainedModel":
        """Return the model with every parameter trainable."""
        return model.requires_grad_(True)
