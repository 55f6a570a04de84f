"""Cross-entropies and residuals, chunk by chunk, against those of whole logits."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dpft import head_losses
from dpft.head_losses import Targets, chunk_numbers, chunks, kept_numbers

VOCABULARY, WIDTH = 50, 8


@pytest.fixture
def labels() -> Tensor:
    """Three rows: some positions ignored, some in the middle, and one row all of it."""
    torch.manual_seed(0)
    labels = torch.randint(VOCABULARY, (4, 5))
    labels[0, :2] = labels[1, 2] = labels[2] = -100
    return labels


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
