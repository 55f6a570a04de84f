"""Per-example losses, computed from a model's outputs and labels.

This module is separate because privacy depends on it. The ``loss`` that a Hugging Face model
returns is a mean over the tokens of the whole batch. With such a mean, the loss of one example
depends on the other examples. In this module, it depends only on the example's own row.

Shapes: b examples, t tokens, v vocabulary, k label words or classes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpft.constants import (
    ATTRIBUTES,
    CAUSAL,
    CLASSIFIER,
    IGNORED_LABEL,
    SCORE,
    SEQ2SEQ,
    TEXT,
)


class LabeledBatch(Protocol):
    """Fields of a batch that losses read, such as those of ``dpft.data.batches.Batch``."""

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """Keyword arguments of the model."""

    @property
    def labels(self) -> Tensor:
        """Token ids or -100, shape (b, t); or probabilities or a score, shape (b, k)."""

    @property
    def kind(self) -> str:
        """Kind of the model that the batch is for."""

    @property
    def answer(self) -> str:
        """Kind of the labels: text, label_words, classes, score or attributes."""

    @property
    def positions(self) -> Tensor | None:
        """Position at which a label word is predicted, shape (b,)."""

    @property
    def words(self) -> Tensor | None:
        """Token ids of the label words, shape (k,)."""

    @property
    def weights(self) -> Tensor | None:
        """Factor of each example's loss, shape (b,)."""

    @property
    def token_weights(self) -> Tensor | None:
        """Weight of each label in the mean of its example's token losses, shape (b, t)."""

    @property
    def references(self) -> Tensor | None:
        """Log-probability of each answer under the reference model, shape (b,)."""

    @property
    def pair_loss(self) -> Callable[[Tensor, Tensor, Tensor | None], Tensor] | None:
        """Loss of each pair of rows; None if each row has its own loss."""

    @property
    def is_padded(self) -> bool:
        """Whether the attention mask is known to have zeros."""


def per_example_losses(model: nn.Module, batch: LabeledBatch) -> Tensor:
    """Return each example's loss.

    The loss depends on the kind of answer:

    - Texts: the cross-entropy averaged over the example's own target tokens, weighted by
      ``token_weights``.
    - Labels: the cross-entropy over the logits of the label words (Li et al. 2022, section 4) or
      classes.
    - Scores: the squared error.
    - Attributes: the binary cross-entropy, summed over the attributes (as in the code of Bu et al.
      2022).

    ``weights`` multiplies the loss of each example. A preference pair has two rows. The first row
    has the loss of the pair, and the second row has loss 0.

    Returns:
        Losses, shape (b,), in nats (for a score: its own unit squared); float32, or float64 for a
        float64 model. An example without target tokens has loss 0 and gradient 0, never NaN.

    Guarantees:
        Entry i depends only on row i of the batch, given a model that passes ``check_model``. The
        entries of a preference pair depend only on its two rows.
    """
    losses = _losses(model, batch)
    return losses if batch.weights is None else losses * batch.weights.to(losses.dtype)


def _losses(model: nn.Module, batch: LabeledBatch) -> Tensor:
    """Return each example's loss before weighting, shape (b,)."""
    if batch.pair_loss is not None:
        pairs = batch.pair_loss(*_nll(model, batch, mean=False), batch.references)
        return torch.stack([pairs, torch.zeros_like(pairs)], dim=1).flatten()
    if batch.answer == TEXT:
        return _nll(model, batch, mean=True)[0]
    outputs = answer_logits(model, batch)
    labels = batch.labels.to(outputs.dtype)
    if batch.answer == ATTRIBUTES:
        attribute_losses = functional.binary_cross_entropy_with_logits(
            outputs, labels, reduction="none"
        )
        return attribute_losses.sum(dim=1)
    if batch.answer == SCORE:
        return (outputs - labels).square().sum(dim=1)
    return -(labels * outputs.log_softmax(dim=1)).sum(dim=1)


def answer_logits(model: nn.Module, batch: LabeledBatch) -> Tensor:
    """Return the logits of label words or classes, or a score.

    Returns:
        Tensor of shape (b, k); float32, or float64 for a float64 model.
    """
    logits = _logits(model, batch)
    if batch.positions is not None and batch.words is not None:
        rows = torch.arange(len(logits), device=logits.device)
        # The clipper recognizes this look-up by its name if a batch has as many rows or units as
        # there are words.
        logits = logits[rows, batch.positions].index_select(1, batch.words)
    return _full_precision(logits)


@torch.no_grad()
def answer_values(model: nn.Module, batch: LabeledBatch) -> Tensor:
    """Return a model's answers as numbers, shape (b, k), float32 or wider.

    The numbers are probabilities of label words or classes, a probability of each attribute, or a
    score.
    """
    outputs = answer_logits(model, batch)
    if batch.answer == SCORE:
        return outputs
    return outputs.sigmoid() if batch.answer == ATTRIBUTES else outputs.softmax(dim=1)


@torch.no_grad()
def token_nll(model: nn.Module, batch: LabeledBatch) -> tuple[Tensor, Tensor]:
    """Return each example's summed negative log-likelihood and its number of target tokens.

    The perplexity over a data set is ``exp(sum of the first / sum of the second)``.

    Returns:
        Negative log-likelihoods in nats, shape (b,), and token counts, shape (b,), int64.
    """
    return _nll(model, batch, mean=False)


@torch.no_grad()
def token_hits(model: nn.Module, batch: LabeledBatch) -> tuple[Tensor, Tensor]:
    """Return the number of target tokens that a model ranks first, and of all target tokens.

    Returns:
        Counts, shape (b,) each, int64.
    """
    labels = _predicted(batch)
    likeliest = _logits(model, batch).argmax(dim=-1)
    return (likeliest == labels).sum(dim=1), (labels != IGNORED_LABEL).sum(dim=1)


@torch.no_grad()
def token_logits(model: nn.Module, batch: LabeledBatch) -> Tensor:
    """Return the logits of a language model at each position, shape (b, t, v), float32 or wider.

    The logits of a causal model are for the token at the next position, those of a seq2seq model
    for the token at the same position.
    """
    return _full_precision(_logits(model, batch))


def _logits(model: nn.Module, batch: LabeledBatch) -> Tensor:
    # Without generation, a cache has no use and takes memory.
    options: dict[str, Any] = {"use_cache": False} if batch.kind in (CAUSAL, SEQ2SEQ) else {}
    with masks_known_to_matter(batch):
        logits: Tensor = model(**batch.inputs, **options).logits
    return logits


MAY_BE_LEFT_OUT = {"allow_is_causal_skip", "allow_is_bidirectional_skip"}


@contextmanager
def masks_known_to_matter(batch: LabeledBatch) -> Iterator[None]:
    """Skip transformers' checks of whether a padded batch's attention mask can be omitted.

    This applies only to accelerators. transformers omits a mask without zeros, to use a faster
    kernel. For this check, it reads from the device twice per micro-batch, and each time the host
    waits for all previous work. A mask that has zeros gives the same result without these checks.
    """
    if not batch.is_padded or batch.labels.device.type == "cpu":
        yield
        return
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MAKERS

    original = MAKERS["sdpa"]

    def make(*args: Any, **options: Any) -> Any:
        if options.get("attention_mask") is not None:
            options |= dict.fromkeys(options.keys() & MAY_BE_LEFT_OUT, False)
        return original(*args, **options)

    MAKERS["sdpa"] = make
    try:
        yield
    finally:
        MAKERS["sdpa"] = original


def _nll(model: nn.Module, batch: LabeledBatch, *, mean: bool) -> tuple[Tensor, Tensor]:
    """Return the sum or mean of each example's target-token losses, and the number of tokens."""
    labels = _predicted(batch)
    tokens = (labels != IGNORED_LABEL).sum(dim=1)
    losses = _token_losses(_logits(model, batch), labels)
    if mean and batch.token_weights is not None:
        weights = predicted_labels(batch.token_weights, batch.kind, filling=0)
        whole = weights.sum(dim=1).to(losses.dtype)
        nll = (losses * weights).sum(dim=1) / torch.where(whole > 0, whole, 1)
        return nll, tokens
    nll = losses.sum(dim=1)
    return nll / tokens.clamp(min=1) if mean else nll, tokens


def _predicted(batch: LabeledBatch) -> Tensor:
    """Return the labels at the positions that predict them, shape (b, t)."""
    if batch.kind == CLASSIFIER:
        raise ValueError(f"a {batch.kind} model writes no texts.")
    return predicted_labels(batch.labels, batch.kind)


def predicted_labels(labels: Tensor, kind: str, *, filling: int = IGNORED_LABEL) -> Tensor:
    """Return the label that is predicted at each position.

    A causal model predicts the label of the next position. Any other model predicts the label of
    the same position.

    Args:
        labels: Token ids or -100, or a number for each label, shape (b, t).
        kind: Kind of the model.
        filling: Value for the last position of a causal model, which predicts no label.
    """
    if kind != CAUSAL:
        return labels
    # Shift the labels instead of the logits, because a copy of the logits is v times as large.
    return functional.pad(labels[:, 1:], (0, 1), value=filling)


def _token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each position, shape (b, t), zero if the label is -100."""
    losses = functional.cross_entropy(
        _full_precision(logits.flatten(0, 1)),
        labels.flatten(),
        ignore_index=IGNORED_LABEL,
        reduction="none",
    )
    return losses.view_as(labels)


def _full_precision(logits: Tensor) -> Tensor:
    """Return logits in float32 or wider.

    In half precision, a log-sum-exp over a vocabulary of 50,000 loses two digits.
    """
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
