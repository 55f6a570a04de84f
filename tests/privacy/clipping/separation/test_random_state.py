"""Random state that is put back: what was drawn is drawn again."""

import pytest
import torch

from dpft.privacy.clipping.separation.random_state import (
    RandomState,
    random_state_kept_on_failure,
)

CPU = torch.device("cpu")


def test_what_is_drawn_after_restoring_was_drawn_after_the_state_was_taken():
    state = RandomState.now(CPU)
    expected = torch.rand(4)
    torch.rand(3)
    state.restore()
    assert torch.equal(torch.rand(4), expected)


def test_a_failed_attempt_gives_its_numbers_back_and_a_successful_one_keeps_them():
    state = RandomState.now(CPU)
    first, second = torch.rand(4), torch.rand(4)
    state.restore()
    with pytest.raises(ZeroDivisionError), random_state_kept_on_failure(CPU):
        torch.rand(4)
        raise ZeroDivisionError
    with random_state_kept_on_failure(CPU):
        assert torch.equal(torch.rand(4), first)
    assert torch.equal(torch.rand(4), second)
