"""What train.fused_head resolves to, and what it is refused with."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from dpft.config.schema import TrainConfig
from dpft.data.batches import TextLayout, synthetic_rows
from dpft.errors import InputError
from dpft.head_losses import LossHead, fuse_head, loss_head_of
from dpft.kinds import CAUSAL, SEQ2SEQ
from dpft.models.architecture import read_architecture
from dpft.models.losses import per_example_losses
from dpft.runs.run_cost import PlannedRanks, planned_model
from dpft.runs.task_model import PLAIN, training_head
from tests.config.test_conf import loaded
from tests.slowness import slow

SIZES: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


WEIGHTED = (
    "task=custom", "task.prompt='{a}'", "task.target='{b}'", "task.data_dir=rows.jsonl",
    "task.json_weights=[1.0,2.0]",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def configured(folder: Path, *words: str, **config: Any) -> TrainConfig:
    """What a run of a model of a few layers is asked for."""
    (folder / "config.json").write_text(json.dumps(SIZES | {"model_type": "llama"} | config))
    base = ["task=e2e", "model=local", f"model.path={folder}", "eval.enabled=false"]
    private = [] if "privacy=none" in words else ["privacy.eps=3"]
    given = loaded("train", [*base, *private, "task.max_length=64", *words])
    assert isinstance(given, TrainConfig)
    return given


def head_in(folder: Path, *words: str, **config: Any) -> LossHead | None:
    """The head of the model that a run would train."""
    given = configured(folder, *words, **config)
    architecture = read_architecture(given.model)
    model, _ = planned_model(given, architecture, training_head(given, architecture))
    return loss_head_of(model)


@pytest.mark.parametrize(
    "words", [(), ("privacy=none",), *slow((("parallel=ddp",),), (("method=lora",),))]
)
def test_auto_fuses_a_large_plain_head(folder: Path, words: tuple[str, ...]) -> None:
    assert head_in(folder, *words) is not None
    assert head_in(folder, *words, "train.fused_head=false") is None


def test_tokens_that_do_not_count_alike_are_planned_with_their_logits(folder: Path) -> None:
    """They are most of what a row takes: beside them stand their logarithm and their gradient."""
    assert head_in(folder, *WEIGHTED[:-1]) is not None

    def planned_bytes(*words: str) -> int:
        given = configured(folder, *words, "train.micro_batch_size=32")
        architecture = read_architecture(given.model)
        head = training_head(given, architecture)
        ranks = PlannedRanks(config=given, architecture=architecture, head=head, batch_size=32,
                             device=torch.device("cpu"))  # fmt: skip
        return int(ranks.costs()["memory_per_rank_bytes"].total)

    logits = 4 * 32 * 64 * SIZES["vocab_size"]
    unfused = planned_bytes(*WEIGHTED[:-1], "train.fused_head=false")
    assert planned_bytes(*WEIGHTED) == unfused > planned_bytes(*WEIGHTED[:-1]) + logits


def test_auto_leaves_a_small_vocabulary_alone(folder: Path) -> None:
    assert head_in(folder, vocab_size=512) is None
    assert head_in(folder, "train.fused_head=true", vocab_size=512) is not None


@pytest.mark.parametrize(
    ("words", "needs"),
    [
        (("parallel=fsdp",), "the whole model in each process"),
        (("train.precision=fp16",), "fp32 or bf16"),
        (WEIGHTED, "tokens that all count alike"),
        *slow(
            (("privacy.engine=loop", "train.micro_batch_size=1"), "another engine"),
            (("privacy.unit=author",), "a record for each privacy unit"),
            (("task=sst2", "task.objective=infilling"), "whose answers are texts"),
        ),
    ],
)
def test_what_it_does_not_go_with_is_refused_in_a_sentence_and_left_by_auto(
    folder: Path, words: tuple[str, ...], needs: str
) -> None:
    assert head_in(folder, *words) is None
    with pytest.raises(InputError, match=f"train.fused_head=true needs .*{needs}"):
        head_in(folder, *words, "train.fused_head=true")


@pytest.mark.parametrize("kind", sorted(PLAIN))
def test_every_plain_model_has_the_losses_of_its_logits(kind: str) -> None:
    sizes = SIZES | {"vocab_size": 61, "num_hidden_layers": 2, "num_key_value_heads": 2}
    if kind == "gpt_neo":
        sizes |= {"num_layers": 2, "attention_types": [[["global"], 2]], "num_heads": 2}
    if kind == "t5":
        sizes = {"vocab_size": 61, "d_model": 16, "d_kv": 8, "num_layers": 1, "num_heads": 2}
    config = AutoConfig.for_model(kind, **sizes)
    is_seq2seq = config.is_encoder_decoder
    auto = AutoModelForSeq2SeqLM if is_seq2seq else AutoModelForCausalLM
    torch.manual_seed(0)
    model = auto.from_config(config).eval()
    layout = TextLayout(kind=SEQ2SEQ if is_seq2seq else CAUSAL, decoder_start_token_id=0)
    batch = layout.collate(synthetic_rows(layout, 3, 7, vocab_size=61))
    expected = per_example_losses(model, batch)
    assert fuse_head(model) is not None
    losses = per_example_losses(model, batch)
    assert losses.grad_fn is not None and "TokenLosses" in losses.grad_fn.name()
    assert torch.allclose(losses, expected, rtol=1e-5)


def test_a_model_that_does_something_to_its_logits_is_not_fused(folder: Path) -> None:
    changed = {"model_type": "gemma2", "head_dim": 8, "num_key_value_heads": 2}
    assert "gemma2" not in PLAIN
    assert head_in(folder, **changed) is None
    with pytest.raises(InputError, match="a model of type gemma, gpt2, .* got gemma2"):
        head_in(folder, "train.fused_head=true", **changed)
