"""A vocabulary head that gives each example's loss in place of its logits.

``LossHead`` is a dense layer without bias like any other, and has a second way: called with labels
it gives cross-entropies (``vocabulary_chunks``). Since a model calls its head itself, the head can
be told to pass hidden states on as they are meanwhile: what the model returns as logits are then
the hidden states, and the head is called on them once more. So a model that does something to its
logits cannot be fused.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from dpft.head_losses import token_losses


class LossHead(nn.Linear):
    """A dense layer without bias, from hidden states to a vocabulary, that also gives losses."""

    def __init__(self, head: nn.Linear) -> None:
        """Takes the place of a layer; the weight stays the very same."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = head.in_features, head.out_features
        self.weight = head.weight
        self.register_parameter("bias", None)
        self.train(head.training)
        self.is_used = True
        """Whether losses are to be taken of it; else of logits, as of any other head."""
        self.passes = False
        """Whether hidden states pass it unchanged."""

    def forward(
        self, hidden: Tensor, labels: Tensor | None = None, shares: Tensor | None = None
    ) -> Tensor:
        """Returns logits, (b, t, v); or losses, (b,), where labels are given; or ``hidden``.

        Args:
            hidden: Shape (b, t, d).
            labels: Token ids or -100, shape (b, t).
            shares: What each example's sum of losses is multiplied by, shape (b,).
        """
        if self.passes:
            return hidden
        if labels is None or shares is None:
            return nn.functional.linear(hidden, self.weight)
        return token_losses(hidden, self.weight, labels, shares)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Lets hidden states pass meanwhile."""
        self.passes = True
        try:
            yield
        finally:
            self.passes = False

    @contextmanager
    def unused(self) -> Iterator[None]:
        """Has losses taken of logits meanwhile."""
        before, self.is_used = self.is_used, False
        try:
            yield
        finally:
            self.is_used = before


def fuse_head(model: nn.Module) -> LossHead | None:
    """Gives a model a head that also gives losses, and returns it.

    None where its head is no plain dense layer without bias, which stays as it is.
    """
    find = getattr(model, "get_output_embeddings", lambda: None)
    head = find()
    if isinstance(head, LossHead):
        return head
    if type(head) is not nn.Linear or head.bias is not None or _has_hooks(head):
        return None
    owner, name = _place_of(model, head)
    fused = LossHead(head)
    setattr(owner, name, fused)
    return fused


def _place_of(model: nn.Module, head: nn.Module) -> tuple[nn.Module, str]:
    path = next(path for path, module in model.named_modules() if module is head)
    owner, _, name = path.rpartition(".")
    return model.get_submodule(owner), name


def _has_hooks(head: nn.Module) -> bool:
    return bool(head._forward_hooks or head._forward_pre_hooks or "forward" in vars(head))


def loss_head_of(model: nn.Module) -> LossHead | None:
    """Returns the head of a model that losses are to be taken of, or None."""
    heads = (module for module in model.modules() if isinstance(module, LossHead))
    return next((head for head in heads if head.is_used), None)
