"""BiTFiT: biases train and nothing else; nothing is added (Bu et al. 2022, arXiv 2210.00036)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpft.methods.base import METHODS, Method, is_bias, is_new
from dpft.methods.parts import train_only

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@METHODS.register("bitfit")
@dataclass(frozen=True, kw_only=True)
class BiTFiT(Method):
    """Trains every bias of the pre-trained model.

    Without weight gradients no layer keeps its input: the clipper's memory is that of the
    output gradients (Bu et al. 2022, section 3). A model without biases (T5, Llama) has nothing
    for it to train.
    """

    def adapt(self, model: "PreTrainedModel", new: frozenset[str]) -> "PreTrainedModel":
        """Returns the model with its pre-trained biases trainable."""
        return train_only(model, lambda name, _: is_bias(name) and not is_new(name, new))
