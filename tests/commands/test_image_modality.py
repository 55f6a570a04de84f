"""Which images fit which model, what is saved beside it, what a classifier of images answers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dpft.commands.modality import modality_of
from dpft.commands.task_model import head_of, layout_of
from dpft.constants import ATTRIBUTES, CLASSES, IMAGE_CLASSIFIER
from dpft.errors import InputError
from dpft.models.architecture import Architecture, read_architecture
from dpft.models.loading import load_model, new_names
from dpft.models.source import EMBEDDED_MODEL, ModelConfig
from dpft.tasks.celeba import CelebA
from dpft.tasks.digits import DigitsTask
from dpft.tasks.images import ImageTask
from tests.rejections import rejects

VIT = {
    "model_type": "vit", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 8, "image_size": 16, "patch_size": 4,
}  # fmt: skip
RESNET = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1],
    "layer_type": "basic",
}  # fmt: skip
DIGITS = DigitsTask(name="digits", labels=tuple("0123456789"), embedded_num_train_examples=1437)


def model(values: dict[str, Any], **more: Any) -> Architecture:
    return read_architecture(ModelConfig(name="drawn", init="random", architecture=values, **more))


def fit(task: ImageTask, architecture: Architecture) -> None:
    modality_of(task).check_fit(task, architecture, max_new_tokens=None)


def test_images_are_made_to_the_size_and_the_channels_that_the_model_was_made_for() -> None:
    fitted = modality_of(DIGITS).fitted(DIGITS, model(VIT), 0)
    assert fitted.image_size == 16
    layout: Any = layout_of(fitted, model(VIT), head_of(fitted, model(VIT)))
    assert (layout.form.channels, layout.form.height, layout.mean) == (3, 16, (0.5,) * 3)
    gray: Any = layout_of(fitted, model(VIT | {"num_channels": 1}), head_of(fitted, model(VIT)))
    assert (gray.form.channels, gray.mean) == (1, (0.5,))
    assert modality_of(DIGITS).fitted(DIGITS, model(RESNET), 0).image_size == 224


@pytest.mark.parametrize(
    ("values", "size"),
    [(VIT, 20), (RESNET, 7)],
)
def test_a_size_that_the_model_cannot_take_is_refused(values: dict[str, Any], size: int) -> None:
    with rejects("task.image_size", size):
        fit(DIGITS.replace(image_size=size), model(values))
    fit(DIGITS.replace(image_size=16), model(values))


def test_classes_and_attributes_are_outputs_of_the_head() -> None:
    head = head_of(DIGITS, model(VIT))
    assert (head.kind, head.num_outputs) == (IMAGE_CLASSIFIER, 10)
    faces = CelebA(name="celeba", labels=("Bald", "Male", "Young"))
    layout = layout_of(faces, model(VIT), head_of(faces, model(VIT)))
    assert (layout.answer, layout.outputs) == (ATTRIBUTES, 3)
    one = faces.replace(attribute="Male")
    layout = layout_of(one, model(VIT), head_of(one, model(VIT)))
    assert (layout.answer, layout.outputs) == (CLASSES, 2)


def test_what_is_done_to_an_image_is_saved_as_transformers_reads_it(tmp_path: Path) -> None:
    architecture = model(VIT)
    task = modality_of(DIGITS).fitted(DIGITS, architecture, 0)
    made = modality_of(task).processor(task, architecture, head_of(task, architecture))
    made.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert values["size"] == {"height": 16, "width": 16} and values["image_std"] == [0.5] * 3


@pytest.mark.slow
def test_a_head_of_other_classes_is_new_and_the_body_is_kept(tmp_path: Path) -> None:
    three = DIGITS.replace(labels=("a", "b", "c"))
    first = load_model(model(VIT), seed=0, head=head_of(three, model(VIT)))
    first.save_pretrained(tmp_path)
    saved = read_architecture(ModelConfig(name="local", path=str(tmp_path)))
    same, other = head_of(three, saved), head_of(DIGITS, saved)
    assert new_names(saved, same) == frozenset()
    assert new_names(saved, other) == {"classifier.weight", "classifier.bias"}
    again = load_model(saved, seed=1, head=other)
    assert again.classifier.weight.shape == (10, 8)
    kept = dict(first.named_parameters())
    for name, parameter in again.named_parameters():
        assert name.startswith("classifier") or parameter.equal(kept[name])


@pytest.mark.slow
def test_convolutions_may_have_standardized_weights_which_a_run_reads_back(tmp_path: Path) -> None:
    changed = {"replace_batch_norm": True, "standardize_weights": True}
    architecture = model(RESNET, **changed)
    made = load_model(architecture, seed=0, head=head_of(DIGITS, architecture)).eval()
    made.save_pretrained(tmp_path)
    place = read_architecture(ModelConfig(name="local", path=str(tmp_path), **changed))
    again = load_model(place, seed=1, head=head_of(DIGITS, place)).eval()
    pixels = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(made(pixels).logits, again(pixels).logits)
    batch_norm = ModelConfig(name="local", path=str(tmp_path))
    with pytest.raises(InputError, match="normalization"):
        load_model(read_architecture(batch_norm), seed=1, head=head_of(DIGITS, place))
    gpt2 = read_architecture(
        ModelConfig(name="text", path=str(EMBEDDED_MODEL), standardize_weights=True)
    )
    with rejects("model.standardize_weights"):
        load_model(gpt2, seed=0)
