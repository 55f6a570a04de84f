import torch
from torch import Tensor, nn

from dpft.data.collation import TextLayout
from dpft.data.synthetic import synthetic_rows
from dpft.fused_head import fuse_head
from dpft.kinds import CAUSAL
from dpft.models.losses import per_example_losses
from dpft.parallel.ranks import Ranks
from dpft.training import ordinary as ordinary_module
from dpft.training.ordinary import OrdinaryEngine
from tests.parallel.forked import on_ranks
from tests.privacy.clipping.oracle import gpt2

INPUTS = torch.arange(6.0)[:, None]


def engine(model, batch_size=4):
    return OrdinaryEngine(model, steps=3, batch_size=batch_size, seed=0)


def test_an_epoch_visits_every_record_once():
    own = engine(nn.Linear(1, 1), batch_size=2)
    assert sorted(own.draw(6) + own.draw(6) + own.draw(6)) == [0, 1, 2, 3, 4, 5]


def test_the_gradient_is_that_of_the_mean_loss_however_the_batch_is_cut():
    model = nn.Linear(1, 1)
    own = engine(model, batch_size=6)
    own.draw(6)
    for rows in (slice(0, 4), slice(4, 6)):
        own.accumulate(lambda rows=rows: model(INPUTS[rows])[:, 0])
    own.finish_step()
    assert torch.allclose(model.weight.grad, INPUTS.mean(0, keepdim=True))


def test_a_batch_larger_than_the_data_takes_all_of_it():
    assert sorted(engine(nn.Linear(1, 1), batch_size=99).draw(6)) == [0, 1, 2, 3, 4, 5]


def test_what_trains_may_change_and_no_old_gradient_is_left():
    model = nn.Linear(1, 1)
    own = engine(model, batch_size=6)
    for trains in (True, False):
        model.weight.requires_grad_(trains)
        own.draw(6)
        own.accumulate(lambda: model(INPUTS)[:, 0])
        own.finish_step()
        assert (model.weight.grad is not None) == trains and model.bias.grad is not None


def shared_step(ranks: Ranks) -> tuple[Tensor, bool, int]:
    """A step of which the first rank has every record, and the last parameter is not used."""
    ordinary_module.STRETCH = 100
    wide, unused = nn.Linear(1, 2000, bias=False), nn.Linear(1, 1)
    own = OrdinaryEngine(nn.ModuleList([wide, unused]), steps=1, batch_size=6, seed=0, ranks=ranks)
    own.draw(6)
    if ranks.is_first:
        own.accumulate(lambda: wide(INPUTS).sum(1))
    before = ranks.traffic.sent_bytes
    own.finish_step()
    return wide.weight.grad, unused.weight.grad is None, ranks.traffic.sent_bytes - before


def test_ranks_share_a_step_and_send_each_number_about_twice():
    """Also those of one large parameter, and from a rank that has no records."""
    for gradient, is_left_alone, sent in on_ranks(shared_step, 2):
        assert torch.equal(gradient, INPUTS.mean().expand(2000, 1)) and is_left_alone
        assert sent < 1.1 * 4 * (2000 + 2000 / 2)


def test_a_fused_head_gives_the_same_mean_gradient():
    model, gradients = gpt2().train(), []
    layout = TextLayout(kind=CAUSAL, takes_position_ids=True)
    batch = layout.collate(synthetic_rows(layout, 6, 9, vocab_size=61))
    for _ in range(2):
        own = engine(model, batch_size=6)
        own.draw(6)
        own.accumulate(lambda: per_example_losses(model, batch))
        own.finish_step()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
        assert fuse_head(model) is not None
    whole, fused = gradients
    for name, expected in whole.items():
        assert torch.allclose(fused[name], expected, rtol=1e-4, atol=1e-6), name
