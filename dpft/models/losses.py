"""Per-example losses, from logits and labels alone.

They stand apart because privacy rests on them: the ``loss`` a Hugging Face model returns is a mean
over the tokens of the whole batch, so one example's loss would depend on its neighbors. Here it
depends on its own row only.

Shapes: b examples, t tokens, v vocabulary.
"""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

IGNORED_LABEL = -100
"""Label of a token that carries no loss."""


class CausalBatch(Protocol):
    """What a causal model reads: ``dpft.data.collation.Batch`` is one."""

    @property
    def input_ids(self) -> Tensor:
        """Token ids, shape (b, t), int64."""

    @property
    def attention_mask(self) -> Tensor:
        """1 for tokens and 0 for padding, shape (b, t), int64."""

    @property
    def position_ids(self) -> Tensor:
        """Position of each token, shape (b, t), int64."""

    @property
    def labels(self) -> Tensor:
        """The token itself where loss is on it, else -100, shape (b, t), int64."""


def per_example_losses(model: nn.Module, batch: CausalBatch) -> Tensor:
    """Returns each example's cross-entropy, averaged over its own target tokens.

    Args:
        model: A causal language model.
        batch: The examples, shape (b, t).

    Returns:
        Losses in nats per token, shape (b,); float32, or float64 for a float64 model. An example
        without target tokens has loss 0 (and gradient 0), never NaN.

    Guarantees:
        Entry i depends on row i of the batch only (given a model that passes ``check_model``).
    """
    nll, tokens = _nll_sums(model, batch)
    return nll / tokens.clamp(min=1)


@torch.no_grad()
def token_nll(model: nn.Module, batch: CausalBatch) -> tuple[Tensor, Tensor]:
    """Returns each example's summed negative log-likelihood and its number of target tokens.

    Perplexity over a data set is ``exp(sum of the first / sum of the second)``.

    Args:
        model: A causal language model; put it in eval mode first.
        batch: The examples, shape (b, t).

    Returns:
        Negative log-likelihoods in nats, shape (b,), and token counts, shape (b,), int64.
    """
    return _nll_sums(model, batch)


def _nll_sums(model: nn.Module, batch: CausalBatch) -> tuple[Tensor, Tensor]:
    logits = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        use_cache=False,
    ).logits
    labels = _next_tokens(batch.labels)
    nll = _token_losses(logits, labels)
    return nll.sum(dim=1), (labels != IGNORED_LABEL).sum(dim=1)


def _next_tokens(labels: Tensor) -> Tensor:
    """Returns the label that position t predicts, shape (b, t); the last predicts nothing.

    The labels are shifted in place of the logits: a shifted (b, t, v) copy costs v times as much.
    """
    return functional.pad(labels[:, 1:], (0, 1), value=IGNORED_LABEL)


def _token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns the cross-entropy of each position, shape (b, t), zero where the label is -100."""
    # float32: half-precision log-sum-exp over a vocabulary of 50,000 loses two digits
    dtype = torch.promote_types(logits.dtype, torch.float32)
    losses = functional.cross_entropy(
        logits.flatten(0, 1).to(dtype),
        labels.flatten(),
        ignore_index=IGNORED_LABEL,
        reduction="none",
    )
    return losses.view_as(labels)
