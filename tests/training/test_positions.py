"""At how many places of an image each layer works, against what a closed form says."""

import torch
from transformers import AutoModelForImageClassification, ConvNextConfig, ViTConfig

from dpft.data.batches import TextLayout
from dpft.data.images import ImageForm, ImageLayout
from dpft.runs.run_cost import record_positions


def on_meta(config: object) -> torch.nn.Module:
    with torch.device("meta"):
        return AutoModelForImageClassification.from_config(config)


def layout(size: int) -> ImageLayout:
    form = ImageForm(channels=3, height=size, width=size)
    return ImageLayout(form=form, mean=(0.5,) * 3, std=(0.5,) * 3, outputs=2)


def test_a_vit_works_at_each_patch_and_its_class_token() -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = on_meta(ViTConfig(**sizes, intermediate_size=8, image_size=16, patch_size=4))
    found = record_positions(model, layout(16))
    assert found is not None
    assert found["vit.embeddings.patch_embeddings.projection"] == 16
    assert found["vit.layers.0.mlp.fc1"] == 17 and found["classifier"] == 1


def test_convolutions_work_at_fewer_places_in_later_stages() -> None:
    config = ConvNextConfig(hidden_sizes=[4, 8, 8, 8], depths=[1, 1, 1, 1], patch_size=4)
    found = record_positions(on_meta(config), layout(64))
    assert found is not None
    places = [count for name, count in found.items() if name.endswith("pwconv1")]
    assert places == [256, 64, 16, 4]


def test_a_text_is_counted_by_its_tokens() -> None:
    assert record_positions(torch.nn.Linear(2, 2), TextLayout()) is None
