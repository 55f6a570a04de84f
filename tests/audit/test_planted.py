"""The planted bugs of the clipper change what it adds, and its checks find the wrong norms."""

import pytest

from tests.audit import planted
from tests.privacy.clipping.models import SYNTHETIC, gpt2, losses_of, records
from tests.privacy.clipping.oracle import Clipped, clipped, total_norm, unit_gradients
from tests.rejections import rejects
from tests.slowness import slow_but

NORM = 0.5
BATCH = records()
TIED = [planted.tied_weight_forgotten, planted.tied_weight_halved]


def clipped_sum() -> Clipped:
    return clipped(gpt2(), losses_of, [BATCH], NORM, synthetic=SYNTHETIC, engine="book_keeping")


@pytest.mark.slow
def test_without_clipping_the_sum_is_that_of_whole_gradients() -> None:
    with planted.clipping_off():
        got = clipped_sum()
    gradients = unit_gradients(gpt2(), losses_of, BATCH).gradients
    whole = {name: sum(each[name] for each in gradients) for name in gradients[0]}
    apart = {name: got.gradients[name] - total for name, total in whole.items()}
    assert total_norm(whole) > 2 * NORM * len(gradients)
    assert total_norm(apart) < 1e-5 * total_norm(whole)


@pytest.mark.slow
@pytest.mark.parametrize("bug", slow_but(TIED[:1], TIED))
def test_wrong_norms_of_a_tied_weight_are_too_small(bug) -> None:
    norms = unit_gradients(gpt2(), losses_of, BATCH).norms
    with bug(), planted.checks_off():
        assert bool((clipped_sum().norms < 0.95 * norms).all())


@pytest.mark.parametrize("bug", TIED)
def test_the_self_check_finds_wrong_norms_of_a_tied_weight(bug) -> None:
    with bug(), rejects():
        clipped_sum()
