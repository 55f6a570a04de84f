"""The autograd graph behind losses: a digest of its operations, its leaves, and its gradients.

The digest is cheap enough to be taken of every batch.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dpft.errors import RunError


def describe_graph(losses: Tensor, parameters: Mapping[str, Tensor]) -> int:
    """Returns a digest of the operations behind losses and of their order.

    Two batches with one digest took one way through one computation, whatever their sizes.

    Args:
        losses: Shape (b,).
        parameters: What the clipper knows, by name.

    Raises:
        RunError: The losses depend on a parameter that the clipper does not know.
    """
    nodes = []
    known = set(parameters.values())
    for node in _nodes(losses):
        _check_leaf(node, known)
        nodes.append(node.name())
    return hash(tuple(nodes))


def other_leaves(losses: Tensor, parameters: Mapping[str, Tensor]) -> list[Tensor]:
    """Returns the leaves beside the parameters that the losses have a gradient for.

    Such as embeddings that a caller made the model's inputs.

    Raises:
        RunError: A parameter is among them, whose gradient would not be clipped.
    """
    known = set(parameters.values())
    found = [_check_leaf(node, known) for node in _nodes(losses)]
    return [leaf for leaf in found if leaf is not None]


def ordinary_gradients(
    losses: Tensor,
    parameters: Mapping[str, Tensor],
    *,
    weights: Tensor,
    retain_graph: bool = False,
) -> dict[str, Tensor]:
    """Returns the gradients of a weighted sum by name, of the parameters that have one.

    A whole backward pass, as reentrant checkpoints need; ``grad`` of everything stays as it was.
    """
    touched = [*parameters.values(), *other_leaves(losses, parameters)]
    with gradients_kept(touched):
        torch.autograd.backward(losses, weights, retain_graph=retain_graph)
        return {name: p.grad for name, p in parameters.items() if p.grad is not None}


@contextmanager
def gradients_kept(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Sets gradients aside while backward passes make others."""
    held = [(tensor, tensor.grad) for tensor in tensors]
    for tensor in tensors:
        tensor.grad = None
    try:
        yield
    finally:
        for tensor, gradient in held:
            tensor.grad = gradient


def _check_leaf(node: Any, known: Collection[Tensor]) -> Tensor | None:
    """Returns the leaf that a node accumulates into, unless it is one of the known parameters."""
    leaf: Tensor | None = getattr(node, "variable", None)
    if leaf is None or leaf in known:
        return None
    if isinstance(leaf, nn.Parameter):
        raise RunError(
            f"the losses depend on a trainable parameter of shape {tuple(leaf.shape)} outside the "
            "clipped model, whose gradient would not be clipped; make it a part of the model or "
            "freeze it."
        )
    return leaf


def _nodes(losses: Tensor) -> Iterator[Any]:
    """Yields the nodes of a graph, each once, in an order that follows its structure."""
    waiting: list[Any] = [losses.grad_fn]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting.extend(following for following, _ in node.next_functions)
