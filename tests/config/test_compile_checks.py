"""What train.compile does not go with."""

from types import SimpleNamespace

import pytest
import torch

from dpft.config.schema import check_compile
from dpft.data.batches import TextLayout
from dpft.errors import InputError
from dpft.models.source import ModelConfig
from dpft.runs.training_records import training_layout
from dpft.training.training_config import TrainingConfig

COMPILED = TrainingConfig(compile=True)


def privacy(engine: str) -> SimpleNamespace:
    return SimpleNamespace(clips=SimpleNamespace(engine=engine))


def test_compiling_goes_with_no_loop_and_no_gradient_checkpoints() -> None:
    plain = ModelConfig(name="tiny", embedded=True)
    check_compile(privacy("auto"), plain, COMPILED)
    check_compile(SimpleNamespace(clips=None), plain, COMPILED)
    check_compile(privacy("loop"), plain, TrainingConfig())
    with pytest.raises(InputError, match="another engine than privacy.engine=loop"):
        check_compile(privacy("loop"), plain, COMPILED)
    checkpointed = ModelConfig(name="tiny", embedded=True, gradient_checkpointing=True)
    with pytest.raises(InputError, match="needs model.gradient_checkpointing=false, got true"):
        check_compile(privacy("auto"), checkpointed, COMPILED)


def test_a_private_run_compiles_one_public_length() -> None:
    plain = ModelConfig(name="tiny", embedded=True)
    bucketed = TrainingConfig(compile=True, pad_to_multiple_of=8)
    check_compile(SimpleNamespace(clips=None), plain, bucketed)
    with pytest.raises(InputError, match=r"pads every micro-batch.*pad_to_multiple_of=8; leave it"):
        check_compile(privacy("auto"), plain, bucketed)


def test_the_layout_of_a_private_compiled_run_has_one_length() -> None:
    cpu, task = torch.device("cpu"), SimpleNamespace(longest=100)
    for clips, lengths in ((object(), {100}), (None, {8, 56, 100})):
        config = SimpleNamespace(train=COMPILED, task=task, privacy=SimpleNamespace(clips=clips))
        layout = training_layout(config, TextLayout(), cpu)
        assert {layout.padded_length(longest) for longest in (1, 50, 100)} == lengths
