import torch
from torch import nn

from dpft.training.ordinary import OrdinaryEngine

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
