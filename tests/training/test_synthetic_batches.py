"""Batches of synthetic records for the self-check of a clipper."""

import pytest
import torch
from torch import nn

from dpft.constants import LABEL_WORDS, MASKED
from dpft.data.batches import Batch, TextLayout
from dpft.data.images import ImageLayout
from dpft.data.pixels import ImageForm
from dpft.models.losses import per_example_losses
from dpft.training.synthetic_batches import self_check_batches
from tests.training.toy import tiny_model


def lengths(batch: Batch) -> list[int]:
    return [int(length) for length in batch.inputs["attention_mask"].sum(1)]


def test_rows_are_ragged_in_no_order_and_padded_to_two_lengths() -> None:
    check = self_check_batches(tiny_model(), max_length=12)
    assert [lengths(batch) for batch in check.batches] == [[5, 7, 3, 6], [8, 12, 5, 10]]
    assert check.rows_per_unit == 1 and all(batch.is_padded for batch in check.batches)


def test_the_longest_rows_are_short_enough_to_be_cheap_and_longer_than_the_padding() -> None:
    check = self_check_batches(tiny_model(), max_length=1000)
    assert max(lengths(check.batches[1])) == 64
    bucket = TextLayout(pad_to_multiple_of=64, max_length=1000)
    padded = self_check_batches(tiny_model(), max_length=1000, layout=bucket)
    assert [batch.labels.shape[1] for batch in padded.batches] == [64, 128]


@pytest.mark.parametrize("has_units", [False, True])
def test_each_unit_alone_is_padded_to_its_longest_row_and_has_the_same_losses(
    has_units: bool,
) -> None:
    model = tiny_model().eval()
    layout = TextLayout(pad_to_multiple_of=4)
    check = self_check_batches(model, max_length=12, layout=layout, has_units=has_units)
    for batch, alone in zip(check.batches, check.alone, strict=True):
        assert sum((lengths(unit) for unit in alone), []) == lengths(batch)
        for unit in alone:
            assert len(unit) == unit.rows_per_unit == check.rows_per_unit
            assert unit.labels.shape[1] == max(lengths(unit))
        losses = torch.cat([per_example_losses(model, one) for one in alone])
        torch.testing.assert_close(losses, per_example_losses(model, batch))


def test_the_second_unit_has_a_filler_row() -> None:
    check = self_check_batches(tiny_model(), max_length=12, has_units=True)
    assert check.rows_per_unit == 2
    for batch in check.batches:
        assert batch.rows_per_unit == 2
        assert batch.is_filler is not None
        assert batch.is_filler.tolist() == [False, False, False, True]
        assert lengths(batch)[3] == lengths(batch)[2]


def test_images_have_one_length_and_so_one_batch() -> None:
    form = ImageForm(channels=1, height=4, width=4)
    layout = ImageLayout(form=form, mean=(0.5,), std=(0.5,), outputs=2)
    check = self_check_batches(nn.Linear(1, 1), max_length=1, layout=layout)
    (batch,), (alone,) = check.batches, check.alone
    assert batch.inputs["pixel_values"].shape == (4, 1, 4, 4)
    pixels = torch.cat([one.inputs["pixel_values"] for one in alone])
    assert torch.equal(pixels, batch.inputs["pixel_values"])


def test_label_words_are_those_of_the_layout() -> None:
    layout = TextLayout(kind=MASKED, answer=LABEL_WORDS, words=(3, 9))
    check = self_check_batches(tiny_model(), max_length=12, layout=layout)
    for batch in (*check.batches, *check.alone[0]):
        assert batch.words is not None and batch.words.tolist() == [3, 9]
