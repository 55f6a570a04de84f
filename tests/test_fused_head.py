"""Losses of a fused head and their gradients, against a dense layer and a cross-entropy."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpft.head_losses import LossHead, fuse_head, loss_head_of, losses_added_up
from tests.privacy.clipping.oracle import gpt2


@pytest.fixture
def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(8, 50, bias=False)


@pytest.fixture
def hidden() -> Tensor:
    return torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()


@pytest.fixture
def labels() -> Tensor:
    labels = torch.randint(50, (3, 5), generator=torch.Generator().manual_seed(2))
    labels[0, :2] = labels[2] = -100
    return labels


SHARES = torch.tensor([1 / 3, 0.2, 1.0])


def of_logits(layer: nn.Linear, hidden: Tensor, labels: Tensor) -> Tensor:
    logits = layer(hidden).flatten(0, 1)
    losses = functional.cross_entropy(logits, labels.flatten(), reduction="none")
    return losses.view_as(labels).sum(1) * SHARES


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [1.0, -2.0, 0.5]])
@pytest.mark.parametrize("added_up", [False, True])
def test_losses_and_gradients_are_those_of_logits(
    layer: nn.Linear, hidden: Tensor, labels: Tensor, weights: list[float], added_up: bool
) -> None:
    factors, wanted = torch.tensor(weights), (hidden, layer.weight)
    expected = of_logits(layer, hidden, labels)
    gradients = torch.autograd.grad((expected * factors).sum(), wanted)
    head = LossHead(layer)
    if added_up:
        with losses_added_up():
            losses = head(hidden, labels, SHARES)
    else:
        losses = head(hidden, labels, SHARES)
    total = losses.sum() if weights == [1.0] * 3 else (losses * factors).sum()
    assert torch.allclose(losses, expected, rtol=1e-6)
    # Twice: what was formed in the forward pass is handed out once.
    for keeps in (True, False):
        found = torch.autograd.grad(total, wanted, retain_graph=keeps)
        for got, true in zip(found, gradients, strict=True):
            assert torch.allclose(got, true, rtol=1e-5, atol=1e-7)


def test_a_frozen_weight_gets_no_gradient_and_keeps_no_input(
    layer: nn.Linear, hidden: Tensor, labels: Tensor
) -> None:
    layer.weight.requires_grad = False
    expected = of_logits(layer, hidden, labels)
    (gradient,) = torch.autograd.grad(expected.sum(), hidden)
    losses = LossHead(layer)(hidden, labels, SHARES)
    assert losses.grad_fn is not None
    kept = [t for t in losses.grad_fn.saved_tensors if t is not None]  # type: ignore[attr-defined]
    assert not any(t.data_ptr() == hidden.data_ptr() for t in kept)
    assert torch.allclose(torch.autograd.grad(losses.sum(), hidden)[0], gradient, atol=1e-7)


def test_without_labels_it_is_the_layer_it_was(layer: nn.Linear, hidden: Tensor) -> None:
    head = LossHead(layer)
    assert torch.equal(head(hidden), layer(hidden))
    with head.passing():
        assert head(hidden) is hidden
    assert head.weight is layer.weight and list(head.state_dict()) == ["weight"]


def test_a_model_keeps_its_names_its_ties_and_its_logits() -> None:
    model = gpt2().eval()
    ids = torch.tensor([[1, 2, 3]])
    names, logits = list(model.state_dict()), model(input_ids=ids).logits
    head = fuse_head(model)
    assert head is not None and fuse_head(model) is head is loss_head_of(model)
    assert head.weight is model.get_input_embeddings().weight
    assert list(model.state_dict()) == names
    assert torch.equal(model(input_ids=ids).logits, logits)
    with head.unused():
        assert loss_head_of(model) is None


def test_only_a_plain_dense_head_is_fused() -> None:
    model = gpt2(tied=False)
    model.lm_head = nn.Linear(16, 61)
    assert fuse_head(model) is None and isinstance(model.lm_head, nn.Linear)
    assert fuse_head(nn.Linear(2, 2)) is None
