"""Models of timm through transformers, CrossViT first: loaded, clipped exactly, or refused by name.

Skipped where timm cannot be imported: it needs torchvision, which has a build for each build of
torch, and the one beside the torch of requirements.lock is on no index that the tests reach.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import save_file
from torch import nn

from dpft.commands.modality import modality_of
from dpft.commands.task_model import layout_of
from dpft.config.load import from_values
from dpft.constants import IMAGE_CLASSIFIER, Head
from dpft.errors import InputError
from dpft.methods.base import METHODS
from dpft.models import source
from dpft.models.architecture import Architecture, read_architecture
from dpft.models.loading import load_model, meta_model, new_names
from dpft.models.source import ModelConfig
from dpft.tasks.images import ImageTask
from tests.privacy.clipping.oracle import (
    ENGINES,
    TOLERANCE,
    batch_gradients,
    clipped,
    distance,
    unit_gradients,
)
from tests.rejections import rejects

try:
    import timm
except ImportError:
    timm = None
needs_timm = pytest.mark.skipif(timm is None, reason="needs timm: pip install 'dpft[vision]'")

YAML = Path(__file__).parents[2] / "conf" / "model" / "crossvit-base.yaml"
SMALL: dict[str, Any] = {
    "img_size": 48, "img_scale": [1.0, 2 / 3], "embed_dim": [16, 24], "num_heads": [2, 2],
    "depth": [[1, 1, 0], [1, 2, 1]], "mlp_ratio": [2.0, 2.0, 1.0],
}  # fmt: skip
THREE = Head(kind=IMAGE_CLASSIFIER, labels=("a", "b", "c"))
METHODS_OF_THE_PAPER = {"full": {}, "bitfit": {"train_new_modules": False}, "linear_probe": {}}


def crossvit(**model_args: Any) -> Architecture:
    values: Any = OmegaConf.to_object(OmegaConf.load(YAML))
    values["architecture"]["model_args"] = model_args or None
    return read_architecture(from_values(values | {"init": "random"}, ModelConfig))


def small(method: str = "full", **more: Any) -> nn.Module:
    """A CrossViT of two blocks in float64, ready to train, its weights far from symmetric."""
    architecture = crossvit(**SMALL | more)
    model = load_model(architecture, seed=0, head=THREE)
    new = new_names(architecture, THREE)
    settings: Any = METHODS_OF_THE_PAPER[method]
    made = METHODS.named(method)(name=method, **settings).prepare(model, new).double().eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return made


Images = tuple[torch.Tensor, torch.Tensor]


def images(count: int, seed: int) -> Images:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 48, 48, generator=generator).double(), torch.arange(count) % 3


BATCH = images(4, seed=1)
SYNTHETIC = (images(4, seed=2),)


def losses_of(model: nn.Module, batch: Images) -> torch.Tensor:
    pixels, classes = batch
    logits = model(pixel_values=pixels).logits
    return nn.functional.cross_entropy(logits, classes, reduction="none")


@needs_timm
@pytest.mark.parametrize("method", METHODS_OF_THE_PAPER)
@pytest.mark.parametrize("engine", ENGINES)
def test_crossvit_is_clipped_as_images_one_at_a_time(engine: str, method: str) -> None:
    model = small(method)
    expected = unit_gradients(model, losses_of, BATCH)
    norm = expected.median_norm()
    got = clipped(model, losses_of, [BATCH], norm, synthetic=SYNTHETIC, engine=engine)
    assert (got.choice.engine == "rows") == (engine == "rows")
    assert distance(got, expected, norm) <= TOLERANCE


@needs_timm
def test_stochastic_depth_and_dropout_are_clipped_with_the_masks_that_the_model_draws() -> None:
    model = small(drop_path_rate=0.5, drop_rate=0.2, proj_drop_rate=0.2).train()
    expected = batch_gradients(model, losses_of, BATCH, seed=3)
    norm = expected.median_norm()
    got = clipped(
        model, losses_of, [BATCH], norm, synthetic=SYNTHETIC, engine="book_keeping", seed=3
    )
    assert distance(got, expected, norm) <= TOLERANCE


@needs_timm
def test_crossvit_base_has_its_published_size_and_sees_images_of_240_pixels() -> None:
    architecture = crossvit()
    model = meta_model(architecture, Head(kind=IMAGE_CLASSIFIER, labels=tuple("0123456789")))
    assert sum(p.numel() for p in model.parameters()) == 103_882_772
    heads = [f"timm_model.head.{branch}.{part}" for branch in "01" for part in ("bias", "weight")]
    assert sorted(new_names(architecture, THREE)) == sorted(heads)


@needs_timm
def test_lora_saves_both_new_heads_though_they_stand_in_a_list() -> None:
    architecture = crossvit(**SMALL)
    model = load_model(architecture, seed=0, head=THREE)
    lora: Any = METHODS.named("lora")
    method = lora(name="lora", rank=2, targets=architecture.model.lora_targets)
    made = method.prepare(model, new_names(architecture, THREE))
    trained = [name for name, p in made.named_parameters() if p.requires_grad]
    assert sum("head." in name for name in trained) == 4
    assert any("lora_A" in name for name in trained)


@needs_timm
def test_a_checkpoint_as_timm_publishes_it_is_read_with_a_head_of_other_classes(
    tmp_path: Path,
) -> None:
    published = timm.create_model("crossvit_base_240", num_classes=5, **SMALL)
    save_file(published.state_dict(), tmp_path / "model.safetensors", {"format": "pt"})
    values = {"architecture": "crossvit_base_240", "num_classes": 5, "model_args": SMALL}
    values["pretrained_cfg"] = {"input_size": [3, 240, 240], "fixed_input_size": True}
    (tmp_path / "config.json").write_text(json.dumps(values))
    architecture = read_architecture(ModelConfig(name="local", path=str(tmp_path)))
    model = load_model(architecture, seed=0, head=THREE)
    kept = published.state_dict()
    for name, parameter in model.named_parameters():
        bare = name.removeprefix("timm_model.")
        assert parameter.equal(kept[bare]) == (not bare.startswith("head."))
    assert model(pixel_values=torch.randn(2, 3, 48, 48)).logits.shape == (2, 3)
    model.save_pretrained(tmp_path / "saved")
    again = read_architecture(ModelConfig(name="local", path=str(tmp_path / "saved")))
    assert new_names(again, THREE) == frozenset()
    read = load_model(again, seed=1, head=THREE).state_dict()
    assert all(value.equal(read[name]) for name, value in model.state_dict().items())


@needs_timm
def test_a_batch_norm_of_timm_is_refused_by_name_and_may_be_replaced() -> None:
    from dpft.independence_check import check_model

    values = {"model_type": "timm_wrapper", "architecture": "resnet18", "num_labels": 3}
    settings: Any = {"name": "drawn", "init": "random", "architecture": values}
    model = load_model(read_architecture(ModelConfig(**settings)), seed=0, head=THREE)
    with pytest.raises(InputError, match="timm_model.bn1"):
        check_model(model.train())
    replaced = ModelConfig(**settings, replace_batch_norm=True)
    check_model(load_model(read_architecture(replaced), seed=0, head=THREE).train())


def test_images_are_made_to_the_size_that_timm_says_its_checkpoint_takes() -> None:
    task = ImageTask(name="images", labels=("a", "b", "c"))
    for model_args, channels, size in (
        ({}, 3, 240),
        ({"img_size": 48}, 3, 48),
        ({"img_size": [16, 16], "in_chans": 1}, 1, 16),
    ):
        architecture = crossvit(**model_args)
        fitted = modality_of(task).fitted(task, architecture, 0)
        form: Any = layout_of(fitted, architecture, THREE)
        assert (form.form.channels, form.form.height) == (channels, size)
        other = ImageTask(name="images", labels=("a", "b", "c"), image_size=224)
        with rejects("task.image_size", 224):
            modality_of(other).check_fit(other, architecture, max_new_tokens=None)


@pytest.mark.parametrize(
    ("missing", "fix"),
    [
        ({"timm"}, "pip install 'dpft[vision]'"),
        ({"torchvision"}, "pip install 'dpft[vision]'"),
        (set(), f"built for torch {torch.__version__.partition('+')[0]}"),
    ],
)
def test_without_timm_its_models_are_rejected_with_a_fix(
    monkeypatch: pytest.MonkeyPatch, missing: set[str], fix: str
) -> None:
    monkeypatch.setattr(source, "find_spec", lambda name: None if name in missing else object())
    config = crossvit().model
    with (
        rejects("model", "crossvit-base") as faults,
        source.loading_errors(config, "classifier of images"),
    ):
        raise ImportError("Could not import module 'TimmWrapperConfig'. Are this object's")
    assert fix in faults[0].message
