"""An embedding with a forward of its own: the look-up in it is recorded as it is called there."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpft.errors import InputError
from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.rules import embedding_subclass_forward
from dpft.privacy.clipping.trainable import TrainableParameters
from tests.privacy.clipping.rules.oracle import assert_equals_the_loop


@pytest.mark.parametrize("shape", [(4,), (4, 7), (4, 2, 5)])
def test_norms_and_sums_equal_the_loop_with_repeated_ids(shape):
    torch.manual_seed(0)
    layer = nn.Embedding(3, 6).double()
    ids = torch.randint(0, 3, shape)
    assert_equals_the_loop(layer, lambda: layer(ids))


def test_the_padding_row_gets_no_gradient():
    torch.manual_seed(0)
    layer = nn.Embedding(5, 6, padding_idx=2).double()
    ids = torch.tensor([[0, 2, 2], [2, 2, 2], [1, 1, 4]])
    assert_equals_the_loop(layer, lambda: layer(ids))


@pytest.mark.parametrize("setting", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_settings_that_mix_examples_are_refused(setting):
    with pytest.raises(InputError, match="depend on the others"):
        PerExampleClipper(nn.Embedding(5, 6, **setting), 0.5).__enter__()


IDS = torch.tensor([[0, 1, 2], [2, 2, 1]])


def recording(layer):
    recorder = Recorder(TrainableParameters(layer))
    recorder.start(len(IDS))
    return embedding_subclass_forward(layer, recorder), recorder


class Doubled(nn.Embedding):
    """Passes on a padding of its own, or none."""

    passed: int | None = None

    def forward(self, ids):
        return 2 * F.embedding(ids, self.weight, padding_idx=self.passed)


@pytest.mark.parametrize(("passed", "without_gradient"), [(1, {1}), (None, set())])
def test_the_padding_is_what_the_look_up_is_given(passed, without_gradient):
    layer = Doubled(3, 2, padding_idx=2)
    layer.passed = passed
    forward, recorder = recording(layer)
    forward(IDS).sum().backward()
    ((use,),) = recorder.take().values()
    rows = use.instantiate().abs().sum((0, 2))
    assert {row for row in range(3) if rows[row] == 0} == without_gradient


def test_a_subclass_is_exact():
    layer = Doubled(6, 3).double()
    assert_equals_the_loop(layer, lambda: layer(IDS))


def test_another_table_looked_up_meanwhile_is_left_alone():
    class WithPositions(nn.Embedding):
        def forward(self, ids):
            return super().forward(ids) + F.embedding(ids, table)

    layer, table = WithPositions(6, 3), torch.ones(6, 3, requires_grad=True)
    forward, recorder = recording(layer)
    outputs = forward(IDS)
    assert torch.equal(outputs, layer(IDS))
    outputs.sum().backward()
    assert table.grad is not None and layer.weight.grad is None
    assert [len(uses) for uses in recorder.take().values()] == [1]


def test_a_look_up_that_mixes_examples_is_refused():
    class Rescaled(nn.Embedding):
        def forward(self, ids):
            return F.embedding(ids, self.weight, max_norm=1.0)

    forward, _ = recording(Rescaled(6, 3))
    with pytest.raises(InputError, match="must have max_norm=None"):
        forward(IDS)


def test_in_a_loop_over_the_examples_nothing_is_recorded():
    layer = Doubled(6, 3)
    forward, recorder = recording(layer)
    with recorder.inside(None):
        outputs = forward(IDS[:1])
    outputs.sum().backward()
    assert torch.equal(outputs, layer(IDS[:1]))
    assert recorder.take() == {} and layer.weight.grad is not None
