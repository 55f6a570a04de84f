"""BiTFiT: training of only the biases (Bu et al. 2022, arXiv 2210.00036).

The published shares (Table 12) define what counts as a bias: every parameter called ``bias``, of
dense layers, convolutions and norms, of the body and of a new head. BEiT has two more biases, of
its queries and values. The authors' code calls them ``q_bias`` and ``v_bias`` and leaves them
frozen. With them, the share would be 0.109 %, not the published 0.088 %. They stay frozen here too.
"""

from typing import TYPE_CHECKING

from dpft.methods.base import METHODS, Method, is_bias, train_only

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SEPARATE_BIASES = {"beit": ("q_proj.bias", "v_proj.bias")}
"""Name endings of biases that BiTFiT does not train, by model type. The authors' models store these
biases outside of the dense layers."""


@METHODS.register("bitfit")
class BiTFiT(Method):
    """Training of every bias, including those of a new head.

    The weight of a new head also trains, unless train_new_modules=false. In that case, the weight
    stays at its random start and only the head's bias trains, as Bu et al. 2022 report for image
    models. Their code trains the names that contain ``.bias``. BEiT then stays at chance, because a
    random head cannot read its features.

    Without weight gradients, no layer stores its input, so the clipper needs memory only for the
    output gradients (Bu et al. 2022, section 3). A model without biases (T5, Llama) has nothing to
    train.
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
