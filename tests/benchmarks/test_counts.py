import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.counts import counting, counts_of


@pytest.mark.slow
def test_products_are_those_that_torch_counts():
    layers = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    inputs = torch.randn(3, 7, 6)
    with FlopCounterMode(display=False) as torchs:
        layers(inputs).sum().backward()
    counts = counts_of(lambda: layers(inputs).sum().backward(), layers.zero_grad)
    # Of the first layer no gradient of the inputs: 2 * 2BTpd there and 3 * 2BTpd in the second.
    assert counts.products == torchs.get_total_flops() == 2 * 3 * 7 * (2 * 6 * 5 + 3 * 5 * 4)


@pytest.mark.slow
def test_attention_on_a_processor_is_counted():
    query = torch.randn(2, 3, 8, 4, requires_grad=True)
    with counting() as counts:
        F.scaled_dot_product_attention(query, query, query).sum().backward()
    one = 2 * 2 * 3 * 8 * 8 * 4
    assert counts.products == 2 * one + 5 * one, "two products, and five backward"


def test_other_operations_count_what_they_read_and_write_and_views_nothing():
    with counting() as counts:
        matrix = torch.zeros(4, 5)
        (matrix.t().reshape(20)[4:] + 1.0).sum()
    zeros, copied = 20, 20 + 20
    added, summed = 16 + 16, 16 + 1
    assert counts.others == zeros + copied + added + summed
    assert counts.products == counts.passes == 0


@pytest.mark.slow
def test_what_autograd_keeps_is_there_until_it_lets_go():
    numbers = torch.ones(10, requires_grad=True)
    with counting() as counts:
        numbers.exp().square().sum().backward()
    # exp and square keep the same 10 numbers; 40 bytes are the gradient that is left over.
    assert counts.passes == 1
    assert 40 <= counts.kept_bytes <= 40 + 2 * 4
    assert 2 * 40 <= counts.peak_bytes <= 4 * 40 + 2 * 4


@pytest.mark.slow
def test_what_was_there_before_and_what_is_changed_in_place_is_not_counted_as_made():
    before = torch.ones(10)
    with counting() as counts:
        before.view(2, 5).t().add_(1)
    assert counts.peak_bytes == 0
