import torch
from torch import nn

from dpft.privacy.clipping.separation.signature import signature_of

MODEL = nn.Linear(2, 2)


def kind(*args, **kwargs):
    return signature_of(MODEL, (args, kwargs)).kind


def test_sizes_and_values_make_no_difference():
    assert kind(torch.ones(3, 5)) == kind(torch.zeros(4, 7))


def test_rank_dtype_switches_and_other_arguments_do():
    kinds = [
        kind(torch.ones(3, 5)),
        kind(torch.ones(3, 5, 2)),
        kind(torch.ones(3, 5).long()),
        kind(torch.ones(3, 5), mask=torch.ones(3, 5)),
        kind(torch.ones(3, 5), mask=None),
        kind(torch.ones(3, 5), torch.ones(5)),
        kind(torch.ones(3, 5), torch.ones(3)),
        kind(torch.ones(3, 5), True),
        kind(torch.ones(3, 1)),
        kind(torch.ones(1, 5)),
    ]
    MODEL.eval()
    kinds.append(kind(torch.ones(3, 5)))
    MODEL.train()
    assert len(set(kinds)) == len(kinds)


def test_a_size_that_happens_to_be_the_batchs_is_ambiguous():
    assert not signature_of(MODEL, (torch.ones(3, 5),)).is_ambiguous
    assert signature_of(MODEL, (torch.ones(5, 5),)).is_ambiguous
