"""The tensors of nested arguments, and calls of another number of rows."""

import torch

from dpft.privacy.clipping.separation.arguments import batch_size_of, take_rows


def test_the_first_tensor_with_rows_says_how_many_examples_there_are():
    assert batch_size_of(((), {"scale": torch.tensor(2.0), "x": torch.ones(5, 2)})) == 5
    assert batch_size_of(((None, "text"), {})) == 0


def test_rows_are_repeated_until_there_are_enough_and_what_has_another_size_stays():
    shared, scalar = torch.ones(5), torch.tensor(2.0)
    (rows, *others), kwargs = take_rows(
        ((torch.tensor([[1], [2]], dtype=torch.float), shared, scalar), {"text": "text"}), 3
    )
    assert rows.tolist() == [[1.0], [2.0], [1.0]]
    assert others[0] is shared and others[1] is scalar and kwargs == {"text": "text"}
