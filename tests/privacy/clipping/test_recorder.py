import pytest
import torch
from torch import nn

from dpft.errors import RunError
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.trainable import TrainableParameters
from dpft.privacy.clipping.uses import GradientUse, OuterProduct


def test_uses_are_kept_per_parameter_and_taken_once():
    layer = nn.Linear(2, 1)
    recorder = Recorder(TrainableParameters(layer))
    recorder.start(3)
    uses = [GradientUse(torch.zeros(3, 2)), GradientUse(torch.ones(3, 2))]
    for use in uses:
        recorder.record(layer, "weight", use)
    assert recorder.take() == {"weight": uses}
    assert recorder.take() == {}


@pytest.mark.parametrize(
    "use",
    [GradientUse(torch.zeros(1, 2)), OuterProduct(torch.zeros(3, 4, 1), torch.zeros(1, 4, 2))],
)
def test_a_use_that_does_not_carry_the_batch_is_refused_by_parameter_name(use):
    model = nn.ModuleDict({"wpe": nn.Linear(2, 1)})
    recorder = Recorder(TrainableParameters(model))
    recorder.start(3)
    with pytest.raises(RunError, match=r"wpe\.weight .* expected the batch size 3"):
        recorder.record(model["wpe"], "weight", use)
