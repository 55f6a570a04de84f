import random

import pytest

from dpft.generation.batches import batches_by_tokens


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_every_input_is_in_one_batch_and_no_batch_holds_more_than_the_longest_would(batch_size):
    lengths = random.Random(0).choices(range(1, 60), k=200)
    batches = list(batches_by_tokens(lengths, batch_size))
    assert sorted(index for batch in batches for index in batch) == list(range(200))
    for batch in batches:
        assert len(batch) * max(lengths[index] for index in batch) <= batch_size * max(lengths)


def test_short_inputs_share_a_batch_that_one_long_input_fills():
    assert list(batches_by_tokens([2, 12, 3, 6, 6, 3, 1], 1)) == [[1], [3, 4], [2, 5, 0, 6]]


def test_inputs_of_one_length_are_batches_of_the_size_in_their_order():
    assert list(batches_by_tokens([7] * 5, 2)) == [[0, 1], [2, 3], [4]]


def test_no_inputs_are_no_batches():
    assert list(batches_by_tokens([], 4)) == []
