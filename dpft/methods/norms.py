"""Training of only the normalization layers (Houlsby et al. 2019, arXiv 1902.00751)."""

from typing import TYPE_CHECKING

from dpft.methods.base import METHODS, Method, is_new, norm_parameters, train_only

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@METHODS.register("norms")
class Norms(Method):
    """Training of the parameters of every pre-trained normalization layer, including RMSNorms."""

    def adapt(self, model: "PreTrainedModel", new: frozenset[str]) -> "PreTrainedModel":
        """Return the model with its pre-trained norms trainable."""
        norms = norm_parameters(model)
        return train_only(model, lambda name, p: p in norms and not is_new(name, new))
