"""Full fine-tuning: every parameter trains (Li et al. 2022)."""

from dataclasses import dataclass

from transformers import PreTrainedModel

from dpft.methods.base import Method


@dataclass(frozen=True, kw_only=True)
class Full(Method):
    """Trains all parameters; it has no settings of its own."""

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        """Returns the model with every parameter trainable."""
        return model.requires_grad_(True)


METHOD = Full
