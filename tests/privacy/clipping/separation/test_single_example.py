"""An output that depends on other rows is named by its place, at rounding tolerance."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpft.errors import RunError
from dpft.privacy.clipping.separation.single_example import (
    check_single_examples,
    mixed_output,
    rows_by_unit,
)

D = 3
X = torch.randn(6, D, generator=torch.Generator().manual_seed(0))


class Mixing(nn.Module):
    """Returns its rows after ``mix``, in training alone where it is asked to."""

    def __init__(self, mix, *, rate=0.0, in_training=False):
        super().__init__()
        self.drop, self.mix, self.in_training = nn.Dropout(rate), mix, in_training

    def forward(self, x):
        mixes = self.training or not self.in_training
        return {"own": self.drop(x), "mixed": self.drop(self.mix(x) if mixes else x)}


def mixed_place(model, x=X, units=None):
    return mixed_output(model, model.forward, ((x,), {}), list(rows_by_unit(units, len(x))))[0]


def later_rows_read_the_fourth(x):
    return torch.cat([x[:5], x[5:] + 0.1 * x[4].detach()])


MIXES = {
    "mean": lambda x: x - x.detach().mean(0),
    "a thousandth of the mean": lambda x: x + 1e-3 * x.detach().mean(0),
    "row 4 read by row 5": later_rows_read_the_fourth,
    "earlier rows": lambda x: x + 1e-2 * x.detach().cumsum(0),
    "sorted": lambda x: x.sort(0).values,
    "their number": lambda x: x / len(x),
}


@pytest.mark.parametrize("name", MIXES)
def test_an_output_that_changes_with_the_rows_beside_it_is_named(name):
    assert mixed_place(Mixing(MIXES[name])) == "output ['mixed']"


@pytest.mark.parametrize("in_training", [False, True])
def test_dropout_hides_nothing_not_even_what_mixes_in_training_alone(in_training):
    model = Mixing(MIXES["a thousandth of the mean"], rate=0.5, in_training=in_training)
    assert mixed_place(model) == "output ['mixed']"
    assert mixed_place(nn.Dropout(0.5)) is None


def test_rows_that_come_in_order_do_not_hide_that_they_are_sorted():
    assert mixed_place(Mixing(MIXES["sorted"]), X.sort(0).values) == "output ['mixed']"


def test_what_a_call_leaves_in_a_buffer_must_not_depend_on_its_rows():
    class Remembering(nn.Module):
        def __init__(self, kept):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))
            self.kept = kept

        def forward(self, x):
            self.calls += self.kept(x)
            return x

    counting, remembering = Remembering(lambda x: 1.0), Remembering(lambda x: x.mean())
    assert mixed_place(counting) is None and mixed_place(remembering) == "buffer calls"
    assert float(remembering.calls) == 0


def test_rows_of_one_unit_may_depend_on_each_other():
    units = torch.tensor([0, 0, 0, 1, 1, 1])
    model = Mixing(lambda x: x - x.view(-1, 3, D).mean(1).repeat_interleave(3, 0))
    assert mixed_place(model) == "output ['mixed']"
    # All at once in another order would tear the units apart.
    place, _ = mixed_output(model, model.forward, ((X,), {}), list(rows_by_unit(units, 6)))
    assert place is None


def test_an_argument_with_as_many_entries_as_rows_may_be_none():
    class Weighted(nn.Module):
        def forward(self, x, weights):
            return x.sum(1, keepdim=True) * weights.sum()

    model, weights = Weighted(), torch.arange(6.0)
    alone = list(rows_by_unit(None, 6))
    assert mixed_output(model, model.forward, ((X, weights), {}), alone)[0] is None


def test_a_model_that_squeezes_a_batch_of_one_runs_each_row_beside_itself():
    class Squeezing(nn.Module):
        def forward(self, x):
            return x.squeeze() * 2

    assert mixed_place(Squeezing()) is None


def test_the_refusal_names_the_place():
    mixing = Mixing(MIXES["mean"])
    with pytest.raises(RunError, match=r"output \['mixed'\] of Mixing for one example changes"):
        check_single_examples(mixing, mixing.forward, ((X,), {}), None)


def test_a_model_for_batches_of_one_size_is_run_on_as_many_rows_of_which_some_are_others():
    class Choosy(nn.Module):
        def __init__(self, share):
            super().__init__()
            self.share = share

        def forward(self, x):
            if len(x) != 6:
                raise ValueError("six rows")
            return x + self.share * x.mean(0)

    assert mixed_place(Choosy(0.0)) is None and mixed_place(Choosy(1e-3)) == "output"


def test_no_more_than_one_row_of_an_output_is_compared_at_once():
    class Comparisons(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func in (torch.ops.aten.sub.Tensor, torch.ops.aten.allclose.default):
                self.largest = max(self.largest, args[0].numel())
            return func(*args, **(kwargs or {}))

    model = Mixing(lambda x: x.repeat(1, 5))
    with Comparisons() as seen:
        assert mixed_place(model) is None
    assert seen.largest == 5 * D
