"""Shares of biases in image models (Bu et al. 2022, Tables 1 and 12), to the last parameter."""

import pytest

from dpft.methods.base import count_parameters
from dpft.models.batch_norm import replace_batch_norm
from tests.methods.shapes import recipe, trained_names
from tests.methods.vision_shapes import image_model
from tests.slowness import slow_but

# What trains and what there is with 10 classes and with 1000, computed from the architectures;
# the published percentage, and the head that gives it (Table 12 does not say which it counts).
PUBLISHED = {
    "vgg11": ((10_954, 128_807_306), (11_944, 132_863_336), 0.009, 10),
    "vgg16": ((12_426, 134_301_514), (13_416, 138_357_544), 0.009, 10),
    "vgg19": ((13_706, 139_611_210), (14_696, 143_667_240), 0.010, 10),
    "resnet18": ((4_810, 11_181_642), (5_800, 11_689_512), 0.043, 10),
    "resnet34": ((8_522, 21_289_802), (9_512, 21_797_672), 0.044, 1000),
    "resnet50": ((26_570, 23_528_522), (27_560, 25_557_032), 0.113, 10),
    "resnet101": ((52_682, 42_520_650), (53_672, 44_549_160), 0.121, 1000),
    "resnet152": ((75_722, 58_164_298), (76_712, 60_192_808), 0.127, 1000),
    "wide_resnet50_2": ((34_122, 66_854_730), (35_112, 68_883_240), 0.051, 10),
    "wide_resnet101_2": ((68_938, 124_858_186), (69_928, 126_886_696), 0.055, 10),
    "convnext_base": ((130_314, 87_576_714), (131_304, 88_591_464), 0.148, 1000),
    "convnext_large": ((195_466, 196_245_706), (196_456, 197_767_336), 0.099, 1000),
    "vit_small": ((51_466, 21_669_514), (52_456, 22_050_664), 0.238, 10),
    "vit_base": ((102_922, 85_806_346), (103_912, 86_567_656), 0.120, 10),
    "vit_large": ((272_394, 303_311_882), (273_384, 304_326_632), 0.090, 10),
    "beit_base": ((75_274, 85_769_674), (76_264, 86_530_984), 0.088, 10),
    "deit_base": ((102_922, 85_806_346), (103_912, 86_567_656), 0.120, 10),
}
CLASSES = (10, 1000)


def biases_alone():
    """What the authors' code trains: names with ``.bias``, the new head's among them."""
    return recipe("bitfit", train_new_modules=False)


def heads(model) -> frozenset[str]:
    """The parameters of a classifier's new head; of what is written out, its last two."""
    names = [name for name, _ in model.named_parameters()]
    return frozenset(names[-2:])


@pytest.mark.parametrize("name", slow_but(["vit_small"], PUBLISHED))
def test_the_biases_of_a_published_model_are_as_many_as_the_paper_counts(name):
    *counts, percent, head = PUBLISHED[name]
    for classes, (biases, total) in zip(CLASSES, counts, strict=True):
        model = image_model(name, classes)
        new = heads(model)
        counted = count_parameters(biases_alone().prepare(model, new), new)
        assert (counted.trainable, counted.total) == (biases, total)
        assert counted.new == classes
        if classes == head:
            # Published to three digits, that of ResNet101 rounded up from 0.12048.
            assert 100 * biases / total == pytest.approx(percent, abs=5.3e-4)


def test_beits_own_query_and_value_biases_stay_frozen_as_the_paper_counts():
    model = image_model("beit_base", 10)
    prepared = recipe("bitfit").prepare(model, heads(model))
    frozen = {n for n, p in prepared.named_parameters() if n.endswith(".bias")}
    frozen -= trained_names(prepared)
    assert len(frozen) == 24
    assert {name.split("attention.")[1] for name in frozen} == {"q_proj.bias", "v_proj.bias"}


@pytest.mark.slow
def test_the_second_of_two_phases_trains_what_bitfit_trains():
    for name in ("beit_base", "resnet18"):
        one, two = image_model(name, 10), image_model(name, 10)
        method = recipe("two_phase", train_new_modules=False)
        method.phases(2, lambda epochs: 1)
        method.prepare(two, heads(two))
        method.begin_step(two, 1)
        assert trained_names(two) == trained_names(biases_alone().prepare(one, heads(one)))


def test_a_group_norm_in_the_place_of_a_batch_norm_changes_no_count():
    model = image_model("resnet50", 10)
    assert len(replace_batch_norm(model)) == 53
    counted = count_parameters(biases_alone().prepare(model, heads(model)))
    assert (counted.trainable, counted.total) == PUBLISHED["resnet50"][0]
