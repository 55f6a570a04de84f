"""What cannot be exact is refused, naming what and why."""

import pytest
import transformers as hf
from torch import nn

from dpft.errors import InputError
from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.architectures.zoo import GROUPED, VISION


def test_batch_norm_is_refused_by_name():
    case = VISION["resnet-group-norm"]
    config = hf.ResNetConfig(**case.options)
    with pytest.raises(InputError, match=r"normalization \(BatchNorm2d\) normalizes over the"):
        PerExampleClipper(hf.ResNetForImageClassification(config), 0.5)


@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_mixture_of_experts_is_refused_by_name(engine):
    config = hf.MixtralConfig(**GROUPED, num_local_experts=2)
    with pytest.raises(InputError, match="routes tokens among experts"):
        PerExampleClipper(hf.MixtralForCausalLM(config), 0.5, engine=engine)


def test_a_weight_that_meets_no_input_of_the_batch_is_refused_by_name():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(nn.init.ones_(nn.Parameter(nn.Linear(1, 1).weight.data)))

        def forward(self):
            return self.scale * 2

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = Scale()

        def forward(self, inputs):
            return (self.factor() * inputs).mT.expand(2, -1, -1)

    import torch

    model, inputs = Scaled(), torch.ones(3, 4)
    with (
        PerExampleClipper(model, 0.5) as clipper,
        pytest.raises(InputError, match=r"factor\.scale"),
    ):
        clipper.accumulate(lambda: model(inputs).sum((0, 1)))
