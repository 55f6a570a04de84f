"""Training of the top two blocks: ``top2`` of Li et al. 2022 (arXiv 2110.05679, table 2)."""

from typing import TYPE_CHECKING

from dpft.errors import InputError
from dpft.methods.base import (
    METHODS,
    Method,
    block_list,
    final_norm_parameters,
    head_parameters,
    is_new,
    output_embeddings,
    train_only,
)
from dpft.strict_model import AtLeastOne

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@METHODS.register("top2")
class TopBlocks(Method):
    """Training of the last blocks, the norm after them and the head.

    A head outside the model's body trains. A language-model head that is tied to the embeddings
    does not train, because the embeddings are below the blocks. For a seq2seq model, the blocks are
    those of the decoder.
    """

    blocks: AtLeastOne = 2
    """Number of transformer blocks to train, counted from the last one."""
    train_head: bool = False
    """Also train a head that is tied to the input embeddings, and thus the embeddings."""

    def adapt(self, model: "PreTrainedModel", new: frozenset[str]) -> "PreTrainedModel":
        """Return the model with its top blocks, final norm and head trainable.

        Raises:
            InputError: The model has fewer blocks, or no list of blocks.
        """
        blocks = block_list(model)
        if self.blocks > len(blocks):
            available = len(blocks)
            layers: int = model.config.num_hidden_layers
            shared = f" ({layers} layers share {available})" if available < layers else ""
            raise InputError(
                f"method.blocks must be at most the {available} block(s) of {type(model).__name__}"
                f"{shared}, got {self.blocks}.",
                key="method.blocks",
                value=self.blocks,
                hint=f"method.blocks={available}",
            )
        opened = {p for block in blocks[-self.blocks :] for p in block.parameters()}
        opened |= final_norm_parameters(model) | head_parameters(model)
        head = output_embeddings(model)
        if self.train_head and head is not None:
            opened |= set(head.parameters())
        return train_only(model, lambda name, p: p in opened and not is_new(name, new))
