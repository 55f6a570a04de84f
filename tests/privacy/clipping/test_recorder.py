import pytest
import torch
from torch import nn

from dpft.errors import RunError
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.uses import GradientUse, OuterUse


def test_uses_are_kept_per_parameter_and_taken_once():
    weight = nn.Parameter(torch.zeros(2))
    recorder = Recorder({weight: "weight"})
    recorder.start(3)
    uses = [GradientUse(torch.zeros(3, 2)), GradientUse(torch.ones(3, 2))]
    for use in uses:
        recorder.record(weight, use)
    assert recorder.take() == {weight: uses}
    assert recorder.take() == {}


@pytest.mark.parametrize(
    "use",
    [GradientUse(torch.zeros(1, 2)), OuterUse(torch.zeros(3, 4, 1), torch.zeros(1, 4, 2))],
)
def test_a_use_that_does_not_carry_the_batch_is_refused_by_parameter_name(use):
    weight = nn.Parameter(torch.zeros(2))
    recorder = Recorder({weight: "wpe.weight"})
    recorder.start(3)
    with pytest.raises(RunError, match=r"wpe\.weight .* expected the batch size 3"):
        recorder.record(weight, use)
