"""One noise whatever the number of ranks, any draw without a hang, and sums sent once a step."""

import pytest
import torch
from torch import Tensor

from dpft.parallel.ranks import ALONE, Ranks
from dpft.privacy import noise as noise_module
from dpft.privacy.sampling import PoissonSampler
from tests.parallel.forked import on_ranks
from tests.parallel.small_steps import Case, Outcome, gradients_of, prepared, seeded, take_steps

pytestmark = pytest.mark.slow

NOISE = Case(sample_rate=1e-12, noise_multiplier=1.0)
"""Nobody is drawn, so that the gradient is noise alone."""
RARE = Case(sample_rate=0.06, noise_multiplier=1.0, steps=8)
"""With this test seed some steps draw nobody, some one unit."""
BLOCK = 100
"""Numbers of a block, so that even a small parameter's blocks are drawn by several ranks."""
TRAFFIC = Case(micro_batch_size=1, sample_rate=1.0)


def in_small_blocks(ranks: Ranks, case: Case) -> Outcome:
    noise_module.BLOCK = BLOCK
    return take_steps(ranks, case)


def is_equal(found: list[dict[str, Tensor]], expected: list[dict[str, Tensor]]) -> bool:
    """Whether every step's gradients are the same bits."""
    return all(
        mine.keys() == other.keys() and all(torch.equal(mine[name], other[name]) for name in other)
        for mine, other in zip(found, expected, strict=True)
    )


def test_any_number_of_ranks_draws_the_same_bits_of_noise() -> None:
    """With nothing to add it to: one draw for each coordinate, in steps that differ."""
    (alone,) = on_ranks(in_small_blocks, 1, NOISE)
    assert alone.norms == [[], []]
    values = torch.cat(
        [gradient.flatten() for step in alone.gradients for gradient in step.values()]
    )
    assert values.unique().numel() > 0.999 * values.numel()
    for size in (2, 4):
        for answer in on_ranks(in_small_blocks, size, NOISE):
            assert is_equal(answer.gradients, alone.gradients)


BANDED = Case(noise_multiplier=1e5, steps=5, bands=3)
"""So much noise that it is all there is to see."""


def test_noise_that_hangs_together_has_the_same_bits_on_any_number_of_ranks() -> None:
    """Each stretch's history lies on the rank that adds its noise, step after step."""
    (alone,) = on_ranks(in_small_blocks, 1, BANDED)
    for size in (2, 4):
        for answer in on_ranks(in_small_blocks, size, BANDED):
            for step in range(BANDED.steps):
                for name, gradient in alone.gradients[step].items():
                    found = answer.gradients[step][name]
                    torch.testing.assert_close(found, gradient, rtol=2e-6, atol=1e-3)


SUMMANDS = torch.tensor([1.0, 1e-7, 0.1, 1 / 3])
"""What each of four ranks has in every coordinate; their sum is no float32."""


def noisy_sums(ranks: Ranks, dtype: torch.dtype) -> list[Tensor]:
    """Gradients with noise: of four ranks the sum of their summands, of one the same sum."""
    noise_module.BLOCK = BLOCK
    _, model = prepared(Case())
    model.to(dtype)
    own = SUMMANDS.double().sum() if ranks.size == 1 else SUMMANDS[ranks.rank]
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float(own))
    noise = seeded().noise
    noise_module.add_noise(dict(model.named_parameters()), 1.0, noise, step=1, ranks=ranks)
    return [gradient.float() for gradient in gradients_of(model).values()]


def test_noise_is_added_once_to_the_sum_of_all_ranks_before_any_rounding() -> None:
    """Bit for bit what one process makes of the sum in float64."""
    (alone,) = on_ranks(noisy_sums, 1, torch.float64)
    for answer in on_ranks(noisy_sums, 4, torch.float32):
        for found, expected in zip(answer, alone, strict=True):
            assert torch.equal(found, expected)


def with_another_sampler(ranks: Ranks, case: Case) -> Outcome:
    """What a rank leaves whose own sampler would draw the first unit alone."""
    if not ranks.is_rank_0:
        PoissonSampler.draw = lambda *_, **__: [0]
    return take_steps(ranks, case)


def test_every_rank_takes_the_firsts_draw_whatever_it_would_draw_itself() -> None:
    """As where processors disagree on a logarithm."""
    expected = take_steps(ALONE, Case())
    for answer in on_ranks(with_another_sampler, 2, Case()):
        assert [len(norms) for norms in answer.norms] == [len(norms) for norms in expected.norms]


@pytest.mark.parametrize("size", [2, 4])
def test_no_draw_hangs_nor_changes_the_step(size: int) -> None:
    """Empty draws, those of one unit, and fewer micro-batches than ranks."""
    expected = take_steps(ALONE, RARE)
    drawn = [len(norms) for norms in expected.norms]
    assert {0, 1} < set(drawn), "the test seed must draw nobody once, and one unit once"
    answers = on_ranks(take_steps, size, RARE, limit=20.0)
    assert any(
        min(own) == 0 < max(own) for own in zip(*(a.own_units for a in answers), strict=True)
    )
    for answer in answers:
        for step in range(RARE.steps):
            assert answer.norms[step] == pytest.approx(expected.norms[step], rel=1e-6)
            for name, gradient in expected.gradients[step].items():
                torch.testing.assert_close(answer.gradients[step][name], gradient)
        empty = [step for step, count in enumerate(drawn) if count == 0]
        assert is_equal(
            [answer.gradients[step] for step in empty],
            [expected.gradients[step] for step in empty],
        )


def test_a_share_of_whole_units_is_a_ranks_own() -> None:
    """Of one large micro-batch one rank has everything, the others nothing."""
    case = Case(micro_batch_size=24, sample_rate=1.0)
    first, second = on_ranks(take_steps, 2, case, limit=20.0)
    assert (first.own_units, second.own_units) == ([24, 24], [0, 0])


@pytest.mark.parametrize("size", [2, 4])
def test_what_passes_between_ranks_does_not_grow_with_micro_batches(size: int) -> None:
    """Each gradient number goes to its owner and comes back: twice, as in an all-reduce."""
    (many, *_), (few, *_) = (
        on_ranks(in_small_blocks, size, case)
        for case in (TRAFFIC, Case(micro_batch_size=12, sample_rate=1.0))
    )
    assert many.collectives == few.collectives and many.sent_bytes == few.sent_bytes
    assert many.collectives[0]["all_to_all"] == many.collectives[0]["all_gather"] == 1
    numbers = sum(gradient.numel() for gradient in many.gradients[0].values())
    twice = 4 * (numbers + numbers / size)
    assert twice <= many.sent_bytes[0] < 1.25 * twice
