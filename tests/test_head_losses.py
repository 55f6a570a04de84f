"""Losses of a fused head, their gradients and residuals, against those of whole logits."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpft import head_losses
from dpft.head_losses import (
    LossHead,
    Targets,
    chunk_numbers,
    chunks,
    fuse_head,
    kept_numbers,
    loss_head_of,
    losses_added_up,
)
from tests.privacy.clipping.oracle import gpt2

VOCABULARY, WIDTH = 50, 8


@pytest.fixture
def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(WIDTH, VOCABULARY, bias=False)


@pytest.fixture
def hidden() -> Tensor:
    return torch.randn(4, 5, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()


@pytest.fixture
def labels() -> Tensor:
    """Four rows: some positions ignored, some in the middle, and one row all of it."""
    torch.manual_seed(0)
    labels = torch.randint(VOCABULARY, (4, 5))
    labels[0, :2] = labels[1, 2] = labels[2] = -100
    return labels


SHARES = torch.tensor([1 / 3, 0.25, 1.0, 0.2])


def of_logits(layer: nn.Linear, hidden: Tensor, labels: Tensor) -> Tensor:
    logits = layer(hidden).flatten(0, 1)
    losses = functional.cross_entropy(logits, labels.flatten(), reduction="none")
    return losses.view_as(labels).sum(1) * SHARES


@pytest.mark.parametrize("weights", [[1.0] * 4, [1.0, -2.0, 0.5, 3.0]])
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
    total = losses.sum() if weights == [1.0] * 4 else (losses * factors).sum()
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


@pytest.mark.parametrize("numbers", [2**24, 4 * VOCABULARY, 1])
@pytest.mark.parametrize("whole", [False, True])
def test_chunks_are_what_whole_logits_give(
    labels: Tensor, numbers: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_losses, "CHUNK_NUMBERS", numbers)
    hidden, weight = torch.randn(4, 5, WIDTH), torch.randn(VOCABULARY, WIDTH)
    counted = labels.flatten() != -100
    logits = (hidden @ weight.t()).flatten(0, 1)[counted]
    wanted = labels.flatten()[counted]
    found = [
        (chunk.losses, chunk.residuals.clone())
        for chunk in chunks(hidden, weight, Targets.of(labels), whole_examples=whole)
    ]
    losses, residuals = (torch.cat(each) for each in zip(*found, strict=True))
    expected = functional.cross_entropy(logits, wanted, reduction="none")
    assert torch.allclose(losses, expected, atol=1e-6)
    one_hot = functional.one_hot(wanted, VOCABULARY)
    assert torch.allclose(residuals, logits.softmax(1) - one_hot, atol=1e-6)
    longest = max(len(part) for part, _ in found)
    assert longest <= max(numbers // VOCABULARY, 5 if whole else 1)


def test_examples_stay_whole_where_asked(labels: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_losses, "CHUNK_NUMBERS", 4 * VOCABULARY)
    targets = Targets.of(labels)
    hidden, weight = torch.randn(4, 5, WIDTH), torch.randn(VOCABULARY, WIDTH)
    for chunk in chunks(hidden, weight, targets, whole_examples=True):
        first, last = chunk.examples
        assert chunk.span[1] - chunk.span[0] == sum(targets.counts[first:last])


def test_labels_that_are_all_ignored_give_no_chunk() -> None:
    targets = Targets.of(torch.full((2, 3), -100))
    assert list(chunks(torch.randn(2, 3, 4), torch.randn(5, 4), targets)) == []


def test_a_chunk_is_a_share_of_a_batchs_logits_or_one_example() -> None:
    whole = 8 * 512 * 50257
    assert chunk_numbers(8, 512, 50257, whole_examples=False) <= 2**24
    assert chunk_numbers(8, 512, 50257, whole_examples=True) == 512 * 50257 < whole / 7
    assert chunk_numbers(2, 3, 5, whole_examples=True) == 2 * 3 * 5


@pytest.mark.parametrize("rows", [0, 6, 100])
def test_the_first_chunks_stay_where_there_is_room_and_are_not_computed_again(
    labels: Tensor, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_losses, "CHUNK_NUMBERS", VOCABULARY)
    hidden, weight, targets = torch.randn(4, 5, WIDTH), torch.randn(50, WIDTH), Targets.of(labels)
    expected = [
        chunk.residuals.clone() for chunk in chunks(hidden, weight, targets, whole_examples=True)
    ]
    room = 4 * VOCABULARY * rows
    found = list(chunks(hidden, weight, targets, whole_examples=True, room=room))
    stayed = [chunk for chunk in found if chunk.stays]
    assert len(stayed) == {0: 0, 6: 1, 100: len(expected)}[rows]
    again = list(chunks(hidden, weight, targets, whole_examples=True, known=stayed))
    assert len(again) == len(expected)
    for chunk, kept, residuals in zip(again, stayed, expected, strict=False):
        assert chunk is kept and torch.equal(kept.residuals, residuals)


def test_what_stays_is_as_many_whole_examples_as_there_is_room_for() -> None:
    sizes = {"rows": 4, "length": 512, "vocabulary": 50257}
    assert kept_numbers(**sizes, room=2**28) == 2 * 512 * 50257
    assert kept_numbers(**sizes, room=0) == 0
    assert kept_numbers(**sizes, room=2**40) == 4 * 512 * 50257
