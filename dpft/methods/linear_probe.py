"""Linear probing: only the head trains (Kornblith et al. 2019; Bu et al. 2022)."""

from typing import TYPE_CHECKING

from dpft.errors import InputError
from dpft.methods.base import (
    METHODS,
    Method,
    head_parameters,
    is_new,
    is_tied,
    train_only,
    untie_head,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DEFAULT_FOR_LABELS = (
    "linear_probe (default for your labels on a pre-trained model: it trains only the head and"
    " needs few records; method=full trains all weights)"
)
"""Message for a run of ``task=custom`` with ``task.label`` but without ``method=``."""


@METHODS.register("linear_probe")
class LinearProbe(Method):
    """Training of the parameters outside the model's body (``base_model``), and of new modules.

    These are a classifier, or a language-model head that is not tied to the embeddings.
    """

    untie: bool = False
    """Copy a head that is tied to the embeddings, and train the copy (Li et al. 2022, whose code
    unties GPT-2)."""

    def adapt(self, model: "PreTrainedModel", new: frozenset[str]) -> "PreTrainedModel":
        """Return the model with its head trainable.

        Raises:
            InputError: The head is tied to the input embeddings, so it cannot train separately.
        """
        if is_tied(model):
            if not self.untie:
                raise InputError(
                    f"method=linear_probe needs a separate head, but {type(model).__name__} ties"
                    " its head to its embeddings. Train a copy of them, or choose method=top2 or"
                    " method=bitfit.",
                    key="method.untie",
                    value=False,
                    hint="method.untie=true",
                )
            untie_head(model)
        head = head_parameters(model)
        return train_only(model, lambda name, p: p in head and not is_new(name, new))
