import pytest
import torch
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification

from dpft.independence_check import StandardizedConv2d, check_model
from dpft.models.batch_norm import group_norm_like, replace_batch_norm, standardize_weights
from tests.rejections import rejects

SMALL = {"embedding_size": 8, "hidden_sizes": [48, 64], "depths": [1, 1], "layer_type": "basic"}


def resnet(**options) -> nn.Module:
    torch.manual_seed(0)
    return ResNetForImageClassification(ResNetConfig(**SMALL | options))


def test_every_batch_norm_becomes_a_group_norm_with_its_weights():
    model = resnet()
    norms = {n: m for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}
    before = dict(model.named_parameters())
    assert replace_batch_norm(model) == tuple(norms)
    assert dict(model.named_parameters()) == before
    for name, old in norms.items():
        new = model.get_submodule(name)
        assert type(new) is nn.GroupNorm
        assert new.weight is old.weight and new.bias is old.bias and new.eps == old.eps
    assert not [name for name, _ in model.named_buffers() if "running" in name]
    check_model(model)


def test_a_batch_norm_with_an_activation_inside_is_refused_by_its_name():
    """As timm's EfficientNet has them: a GroupNorm alone would drop the activation."""

    class BatchNormAct(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x).relu()

    with rejects("model"):
        replace_batch_norm(nn.Sequential(nn.Conv2d(3, 4, 3), BatchNormAct(4)))


def test_images_no_longer_change_each_other():
    model, pixels = resnet().train(), torch.randn(4, 3, 32, 32)
    replace_batch_norm(model)
    together = model(pixel_values=pixels).logits
    alone = torch.cat([model(pixel_values=image[None]).logits for image in pixels])
    assert torch.allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize(("channels", "groups"), [(96, 32), (48, 24), (8, 8), (37, 1)])
def test_there_are_32_groups_or_the_most_that_divide_the_channels(channels, groups):
    assert group_norm_like(nn.BatchNorm2d(channels)).num_groups == groups


def test_a_group_norm_is_what_a_batch_norm_would_be_without_weights():
    made = group_norm_like(nn.BatchNorm2d(8, affine=False))
    assert made.weight is None and made.bias is None


def test_a_norm_in_two_places_stays_one():
    shared = nn.BatchNorm2d(4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    assert replace_batch_norm(model) == ("0",)
    assert model[0] is model[2] and isinstance(model[0], nn.GroupNorm)


def test_mode_and_what_is_frozen_are_kept():
    norm = nn.BatchNorm2d(4).eval()
    norm.weight.requires_grad_(False)
    made = group_norm_like(norm)
    assert not made.training and not made.weight.requires_grad and made.bias.requires_grad


def test_convolutions_are_standardized_with_their_weights_kept():
    model = resnet()
    before = dict(model.named_parameters())
    names = standardize_weights(model)
    assert names == tuple(n for n, m in model.named_modules() if isinstance(m, nn.Conv2d))
    assert all(type(model.get_submodule(name)) is StandardizedConv2d for name in names)
    assert dict(model.named_parameters()) == before


def test_a_filter_of_one_number_is_not_standardized():
    model = nn.Sequential(nn.Conv2d(4, 4, 1, groups=4))
    assert standardize_weights(model) == ()
    assert type(model[0]) is nn.Conv2d
