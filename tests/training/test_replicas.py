"""What the processes of a run tell each other: where they begin, and what a step was."""

import pytest
import torch
from torch import Tensor, nn

from dpft.errors import RunError, SaidElsewhere
from dpft.parallel.ranks import ALONE, Ranks
from dpft.training.loop import StepStatistics
from dpft.training.optimizers import (
    SGD,
    Adafactor,
    AdamW,
    OptimizerConfig,
)
from dpft.training.starting_point import Start, share_start
from dpft.training.training_run import check_equal, gathered
from dpft.training.training_state import model_state, optimizer_state
from tests.parallel.forked import on_ranks
from tests.slowness import slow_but
from tests.training.toy import take_steps, tiny_model, training_state

Begun = tuple[Start, dict[str, Tensor], dict[str, Tensor], float]
"""Start, weights, moments and learning rate."""
START = Start(done=2, last_step=9, secrets={"step": 2, "keys": {"noise": "00ff"}})


OPTIMIZERS = (AdamW(), SGD(momentum=0.9), Adafactor(), Adafactor(min_dim_size_to_factor=1))


def begun(
    ranks: Ranks, moved: bool, config: OptimizerConfig
) -> tuple[Start, dict[str, Tensor], dict[str, Tensor], float]:
    """What a rank begins with; the first one's model is its own, and may have taken two steps."""
    model = tiny_model(seed=ranks.rank)
    optimizer = config.make(model.parameters(), learning_rate=0.1, weight_decay=0.0)
    state = training_state(model, optimizer, factor=lambda _: 1.0)
    if ranks.is_rank_0 and moved:
        take_steps(state, 2)
    start = share_start(START if ranks.is_rank_0 else None, state, ranks)
    rate = float(state.optimizer.param_groups[0]["lr"])
    weights = {name: each.detach().clone() for name, each in model_state(model).items()}
    return start, weights, optimizer_state(state), rate


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moved", "config"),
    [(False, AdamW()), *((True, each) for each in OPTIMIZERS)],
)
def test_every_rank_begins_with_the_firsts_weights_moments_rate_and_keys(
    moved: bool, config: OptimizerConfig
) -> None:
    first, *others = on_ranks(begun, 3, moved, config)
    assert first[0] == START and bool(first[2]) == moved
    for start, weights, moments, rate in others:
        assert start == START and rate == first[3]
        for found, expected in ((weights, first[1]), (moments, first[2])):
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_one_process_begins_where_it_is() -> None:
    assert share_start(START, training_state(tiny_model()), ALONE) is START


def said_of_a_step(ranks: Ranks) -> tuple[list[float], list[float], int]:
    """The second rank had no records, the others one more than their place."""
    counts = [] if ranks.rank == 1 else [ranks.rank + 1]
    own = StepStatistics(
        step=1,
        batch_size=4,
        losses=[torch.full((count,), 0.5 + ranks.rank) for count in counts],
        norms=[torch.full((count,), 0.25 * ranks.rank) for count in counts],
    )
    together, non_finite = gathered(own, ranks.rank, ranks)
    assert (together.step, together.batch_size) == (1, 4)
    norms, losses = (torch.cat(each).tolist() for each in (together.norms, together.losses))
    return losses, norms, non_finite


@pytest.mark.slow
def test_losses_norms_and_what_was_left_out_are_those_of_all_ranks() -> None:
    expected = ([0.5, 2.5, 2.5, 2.5], [0.0, 0.5, 0.5, 0.5], 0 + 1 + 2)
    assert on_ranks(said_of_a_step, 3) == [expected] * 3


class Weights(nn.Module):
    """A parameter and buffers of many kinds; the last is not kept with the model."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.ones(3, 2))
        self.transposed = nn.Parameter(torch.ones(2, 3).t())
        self.short = nn.Parameter(torch.ones(4, dtype=torch.bfloat16), requires_grad=False)
        self.register_buffer("mask", torch.ones(2, dtype=torch.bool))
        self.register_buffer("nothing", torch.ones(0))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("cache", torch.ones(2), persistent=False)


def compared(ranks: Ranks, changed: str, at: int) -> tuple[str, str, int]:
    """What comparing ends with where one rank's tensor differs by one bit."""
    model = Weights()
    if ranks.rank == at:
        tensor = getattr(model, changed).detach()
        last = tensor[(-1,) * tensor.dim()]
        if last.is_floating_point():
            last.copy_(torch.nextafter(last, torch.zeros_like(last)))
        elif last.dtype == torch.bool:
            last.logical_not_()
        else:
            last.add_(1)
    try:
        check_equal(model, ranks, ranks)
    except (RunError, SaidElsewhere) as error:
        return type(error).__name__, str(error), error.exit_code
    return "nothing", "", 0


@pytest.mark.slow
@pytest.mark.parametrize("at", slow_but((2,), (0, 2)))
@pytest.mark.parametrize(
    "changed",
    slow_but(["transposed"], ["matrix", "transposed", "short", "mask", "count"]),
)
def test_one_bit_that_differs_ends_the_run_on_every_rank(changed: str, at: int) -> None:
    """The first rank says so, whoever's bit it is; the others say nothing."""
    first, *others = on_ranks(compared, 3, changed, at)
    assert (first[0], first[2]) == ("RunError", 1)
    assert {each[::2] for each in others} == {("SaidElsewhere", 1)}


@pytest.mark.slow
def test_equal_weights_go_on() -> None:
    """Also where what a model does not keep differs."""
    assert on_ranks(compared, 2, "matrix", -1) == [("nothing", "", 0)] * 2
    assert on_ranks(compared, 2, "cache", 1) == [("nothing", "", 0)] * 2
