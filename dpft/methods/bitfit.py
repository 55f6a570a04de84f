"""BiTFiT: only the biases are trained (Bu et al. 2022, arXiv 2210.00036).

What is a bias is what the published shares count (Table 12): every parameter called ``bias``, of
dense layers, convolutions and norms, of the body and of a new head. BEiT has two more, of its
queries and values, which the authors' code knows as ``q_bias`` and ``v_bias`` and leaves frozen:
with them its share would be 0.109 %, not the published 0.088 %. They stay frozen here too.
"""

from typing import TYPE_CHECKING

from dpft.methods.base import METHODS, Method, is_bias, train_only

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SEPARATE_BIASES = {"beit": ("q_proj.bias", "v_proj.bias")}
"""By model type: the biases that the architecture has apart from its layers, as they end here."""


@METHODS.register("bitfit")
class BiTFiT(Method):
    """Trains every bias, a new head's among them.

    The new head's weight trains with it, unless train_new_modules=false: then it stays at its
    random start and its bias alone trains, which is what Bu et al. 2022 report of image models
    (their code trains the names that contain ``.bias``, and BEiT, whose features a random head
    cannot read, stays at chance).

    Without weight gradients no layer keeps its input: the clipper's memory is that of the
    output gradients (Bu et al. 2022, section 3). A model without biases (T5, Llama) has nothing
    for it to train.
    """

    def adapt(self, model: "PreTrainedModel", new: frozenset[str]) -> "PreTrainedModel":
        """Return the model with its biases trainable."""
        biases = bias_names(model)
        return train_only(model, lambda name, _: name in biases)


def bias_names(model: "PreTrainedModel") -> frozenset[str]:
    """Return the names of the biases that BiTFiT trains."""
    separate = SEPARATE_BIASES.get(model.config.model_type, ())
    return frozenset(
        name
        for name, _ in model.named_parameters()
        if is_bias(name) and not name.endswith(separate)
    )
