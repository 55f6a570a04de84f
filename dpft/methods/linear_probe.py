"""Linear probing: only the head is trained (Kornblith et al. 2019; Bu et al. 2022)."""

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
    "method=linear_probe trains the head alone, the default for labels of your own on a pre-trained"
    " model, since it learns from few records; method=full trains every weight"
)
"""Message to a run of ``task=custom`` with ``task.label`` that no ``method=`` was given."""


@METHODS.register("linear_probe")
class LinearProbe(Method):
    """Trains what lies outside the model's body (``base_model``), and new modules.

    That is a classifier, or the head of a language model that is not tied to the embeddings.
    """

    untie: bool = False
    """Give a head that is tied to the embeddings a copy of its own, and train that (Li et al. 2022,
    whose code unties GPT-2)."""

    def adapt(self, model: "PreTrainedModel", new: frozenset[str]) -> "PreTrainedModel":
        """Return the model with its head trainable.

        Raises:
            InputError: The head is the input embeddings, so that it cannot train alone.
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
