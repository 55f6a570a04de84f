"""RGP against Yu et al. 2021 (arXiv 2106.09352) written out densely, one example at a time."""

import copy
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.pytorch_utils import Conv1D

from dpft.methods.base import count_parameters
from dpft.methods.layers import ReparametrizedLinear
from dpft.methods.rgp import RGP
from dpft.training.checkpoint import restore_checkpoint, save_checkpoint
from dpft.training.optimizers import AdamW, SchedulerConfig, make_scheduler
from dpft.training.training_state import TrainingState
from tests.privacy.clipping.oracle import ENGINES, TOLERANCE, clipped, distance, unit_gradients
from tests.rejections import rejects
from tests.slowness import slow_but
from tests.training import toy
from tests.training.toy import train_ordinarily, train_privately

BERT = {
    "vocab_size": 17, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": 16,
}  # fmt: skip
T5 = {"vocab_size": 17, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
MODELS = {
    "gpt2": toy.tiny_model,
    "bert": lambda: BertForMaskedLM(BertConfig(**BERT)),
    "t5": lambda: T5ForConditionalGeneration(T5Config(**T5)),
}
MAX_GRAD_NORM = 0.3


def rgp(**settings) -> RGP:
    return RGP(name="rgp", **settings)


def base(kind: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model in evaluation mode: no dropout; biases that are not all zero."""
    torch.manual_seed(0)
    model = MODELS[kind]().to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def examples(lengths=(6, 6, 6, 6), seed: int = 5) -> dict[str, torch.Tensor]:
    """Random token ids, 0 for padding, and the factor of each example's loss."""
    generator, width = torch.Generator().manual_seed(seed), max(lengths)
    ids = torch.randint(1, 17, (len(lengths), width), generator=generator)
    ids[torch.arange(width) >= torch.tensor(lengths)[:, None]] = 0
    return {"ids": ids, "scale": torch.tensor([1.0, 0.1, 3.0, 0.01])[: len(lengths)]}


BATCH = examples()
SYNTHETIC = (examples((5, 9, 2, 7), seed=11), examples((4, 6, 3), seed=12))


def losses_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Per-example losses, shape (b,)."""
    ids = batch["ids"]
    inputs = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    if isinstance(model, T5ForConditionalGeneration):
        inputs["decoder_input_ids"] = ids.flip(1)
    else:
        inputs["position_ids"] = torch.arange(ids.shape[1]).expand_as(ids)
    logits = model(**inputs).logits
    losses = nn.functional.cross_entropy(
        logits.transpose(1, 2), ids.roll(1, 1), ignore_index=0, reduction="none"
    )
    return batch["scale"].to(logits.dtype) * losses.mean(1)


def losses(model: nn.Module, rows=slice(None)) -> torch.Tensor:
    """Per-example losses of four fixed examples, shape (b,)."""
    return losses_of(model, {name: values[rows] for name, values in BATCH.items()})


def layers(model: nn.Module) -> dict[str, ReparametrizedLinear]:
    return {n: m for n, m in model.named_modules() if isinstance(m, ReparametrizedLinear)}


def dense(layer: nn.Module, weight: torch.Tensor) -> torch.Tensor:
    """A weight of a layer, or its gradient, as (outputs, inputs)."""
    return weight.t() if isinstance(layer, Conv1D) else weight


def reference(plain: nn.Module, carriers) -> dict[str, torch.Tensor]:
    """Yu et al. 2021, Algorithm 1, of a model that was never touched.

    Args:
        plain: The model.
        carriers: Layer name to (L, R).

    Returns:
        By parameter name: the sum of clipped gradients, projected for weights with carriers.
    """
    names = [n for n, _ in plain.named_parameters() if n.endswith("bias")]
    sums: dict[str, torch.Tensor] = {}
    for index in range(4):
        plain.zero_grad()
        losses(plain, slice(index, index + 1)).sum().backward()
        example = {name: plain.get_parameter(name).grad.clone() for name in names}
        for name, (left, right) in carriers.items():
            layer = plain.get_submodule(name)
            gradient = dense(layer, layer.weight.grad)
            example[f"{name} L"] = gradient @ right.t()
            example[f"{name} R"] = left.t() @ gradient
        norm = torch.stack([value.square().sum() for value in example.values()]).sum().sqrt()
        for name, value in example.items():
            sums[name] = sums.get(name, 0) + value * min(1.0, MAX_GRAD_NORM / float(norm))
    for name, (left, right) in carriers.items():
        d_left, d_right = sums.pop(f"{name} L"), sums.pop(f"{name} R")
        projected = d_left @ right + left @ d_right - left @ left.t() @ d_left @ right
        sums[f"{name}.weight"] = dense(plain.get_submodule(name), projected)
    return sums


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rank"), slow_but([("gpt2", 2)], product(MODELS, (1, 2, 4))))
def test_the_gradient_of_each_weight_is_the_papers_and_no_gradient_is_rescaled(kind, rank):
    plain = base(kind, torch.float64)
    method = rgp(rank=rank, train_biases=True)
    model = method.prepare(copy.deepcopy(plain))
    carriers = {
        n: (m.left.weight.detach(), m.right.weight.detach()) for n, m in layers(model).items()
    }
    got = clipped(model, losses_of, [BATCH], MAX_GRAD_NORM, synthetic=SYNTHETIC)
    assert got.norms.min() < MAX_GRAD_NORM < got.norms.max()
    method.finish_gradient(model)
    expected = reference(plain, carriers)
    moved = {p: n for n, p in model.named_parameters()}
    assert {moved[p].replace(".base_layer", "") for p in method.moved_parameters(model)} == set(
        expected
    )
    for parameter in method.moved_parameters(model):
        truth = expected[moved[parameter].replace(".base_layer", "")]
        difference = (parameter.grad - truth).norm()
        assert difference <= 1e-6 * max(float(truth.norm()), 1e-3), moved[parameter]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", MODELS)
def test_clipped_sums_of_the_carriers_are_those_of_examples_executed_separately(kind, engine):
    model = rgp(rank=2, train_biases=True).prepare(base(kind))
    expected = unit_gradients(model, losses_of, BATCH)
    got = clipped(model, losses_of, [BATCH], MAX_GRAD_NORM, synthetic=SYNTHETIC, engine=engine)
    assert (got.choice.engine == "rows") == (engine == "rows")
    assert distance(got, expected, MAX_GRAD_NORM) <= TOLERANCE


@pytest.mark.parametrize("kind", MODELS)
def test_the_model_computes_what_it_did_with_and_without_gradients(kind):
    model = base(kind)
    with torch.no_grad():
        expected = losses(model)
    model = rgp(rank=4).prepare(model)
    with torch.no_grad():
        assert torch.equal(losses(model), expected)
    assert torch.allclose(losses(model), expected, rtol=1e-6)


def test_a_frozen_weight_forms_no_gradient_and_the_head_has_no_carriers():
    model = rgp().prepare(base("gpt2"))
    losses(model).sum().backward()
    assert len(layers(model)) == 4
    assert type(model.lm_head) is nn.Linear and not model.lm_head.weight.requires_grad
    assert all((p.grad is None) == (not p.requires_grad) for p in model.parameters())


def test_carriers_are_orthonormal_and_follow_from_the_weights_alone():
    model = rgp(rank=3).prepare(base("gpt2"))
    eye = torch.eye(3)
    state = torch.get_rng_state()
    before = {n: m.left.weight.clone() for n, m in layers(model).items()}
    torch.manual_seed(77)
    moved = torch.get_rng_state()
    rgp(rank=3).begin_step(model, 4)
    assert torch.equal(torch.get_rng_state(), moved), "no generator is drawn from"
    torch.set_rng_state(state)
    for name, layer in layers(model).items():
        left, right = layer.left.weight, layer.right.weight
        assert torch.equal(left, before[name])
        assert torch.allclose(left.t() @ left, eye, atol=1e-5)
        assert torch.allclose(right @ right.t(), eye, atol=1e-5)


def test_carriers_span_the_update_of_the_weights_so_far():
    """An update of rank one, u v^T, has the carriers u and v, up to sign (Algorithm 2)."""
    torch.manual_seed(0)
    layer = ReparametrizedLinear(nn.Linear(5, 7), rank=1)
    u, v = torch.randn(7), torch.randn(5)
    u, v = u / u.norm(), v / v.norm()
    with torch.no_grad():
        layer.base_layer.weight.add_(0.1 * torch.outer(u, v))
    layer.choose_carriers(1)
    assert abs(layer.left.weight[:, 0] @ u).item() == pytest.approx(1, abs=1e-4)
    assert abs(layer.right.weight[0] @ v).item() == pytest.approx(1, abs=1e-4)


def test_before_the_first_update_the_weight_itself_takes_its_place():
    """Many iterations find the leading singular vectors of the weight."""
    torch.manual_seed(0)
    layer = ReparametrizedLinear(nn.Linear(5, 7), rank=1)
    layer.choose_carriers(500)
    left, _, right = torch.linalg.svd(layer.weight)
    assert abs(layer.left.weight[:, 0] @ left[:, 0]).item() == pytest.approx(1, abs=1e-4)
    assert abs(layer.right.weight[0] @ right[0]).item() == pytest.approx(1, abs=1e-4)


@pytest.mark.slow
def test_carriers_are_counted_without_storage():
    """Four dense layers of GPT-2, with sides (d, 3d), (d, d), (d, 4d) and (4d, d): 16 d r each."""
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config())
    counts = count_parameters(rgp(rank=2).prepare(model))
    assert counts.trainable == 12 * 16 * 768 * 2
    assert counts.total == 124_439_808 + counts.trainable


def test_new_layers_train_whole_or_not_at_all():
    new = frozenset({"classifier.weight", "classifier.bias"})
    for train_new in (True, False):
        model = BertForSequenceClassification(BertConfig(**BERT))
        method = rgp(train_new_modules=train_new)
        method.prepare(model, new)
        trainable = {n for n, p in model.named_parameters() if p.requires_grad}
        assert {name for name in trainable if "classifier" in name} == (
            set(new) if train_new else set()
        )
        assert "bert.pooler.dense" in layers(model) and "classifier" not in layers(model)
        moved = method.moved_parameters(model)
        assert (model.classifier.weight in set(moved)) == train_new


def test_a_rank_above_the_smaller_side_of_a_layer_is_refused_by_its_name():
    with rejects("method.rank", 9):
        rgp(rank=9).prepare(base("gpt2"))


def test_a_weight_shared_by_two_layers_is_refused():
    model = BertForMaskedLM(BertConfig(**{**BERT, "num_hidden_layers": 2}))
    first, second = (model.bert.encoder.layer[i].attention.self for i in range(2))
    second.query.weight = first.query.weight
    with rejects("method", "rgp"):
        rgp().prepare(model)


def with_method(folder: Path, method: RGP, model: nn.Module, **settings):
    own = toy.session(folder, model, **settings)
    object.__setattr__(own, "method", method)
    return own


@pytest.mark.slow
@pytest.mark.parametrize("private", [True, False])
def test_training_moves_the_weights_and_saves_them_as_a_plain_model(tmp_path, private):
    method, model = rgp(rank=2), toy.tiny_model()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    method.prepare(model)
    own = with_method(tmp_path, method, model)
    saved = {"save_model": lambda run: method.save(model, run.folder / "model")}
    if private:
        train_privately(own, toy.plan(), toy.privacy(), epsilon_after=toy.spent, **saved)
    else:
        train_ordinarily(own, 5, **saved)
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path / "model").eval()
    moved = {n for n, p in loaded.named_parameters() if not torch.equal(p, start[n])}
    assert moved == {f"{name}.weight" for name in layers(model)}
    assert set(load_file(tmp_path / "model" / "model.safetensors")) == set(start)
    with torch.no_grad():
        assert torch.equal(losses(loaded), losses(model)), "the model itself is still usable"


def training_state(method: RGP, model: nn.Module) -> TrainingState:
    method.begin_step(model, 0)
    optimizer = AdamW().make(method.moved_parameters(model), learning_rate=0.1, weight_decay=0.0)
    scheduler = make_scheduler(optimizer, SchedulerConfig(), steps=9)
    return TrainingState(model=model, method=method, optimizer=optimizer, scheduler=scheduler)


def take_steps(method: RGP, state: TrainingState, steps: range) -> None:
    for step in steps:
        method.begin_step(state.model, step)
        state.model.zero_grad()
        losses(state.model).sum().backward()
        method.finish_gradient(state.model)
        state.optimizer.step()
        state.scheduler.step()


@pytest.mark.slow
def test_going_on_from_a_checkpoint_is_bit_identical_to_never_having_stopped(tmp_path):
    """The first weights are part of the checkpoint: carriers follow from them."""
    method = rgp(rank=2)
    first = training_state(method, method.prepare(base("gpt2")))
    take_steps(method, first, range(2))
    path = save_checkpoint(tmp_path / "checkpoints", 2, first)
    take_steps(method, first, range(2, 5))
    second = training_state(method, method.prepare(toy.tiny_model(seed=9).eval()))
    assert restore_checkpoint(path, second) == 2
    take_steps(method, second, range(2, 5))
    for (name, one), (_, other) in zip(
        first.model.named_parameters(), second.model.named_parameters(), strict=True
    ):
        assert torch.equal(one, other), name


def test_training_on_low_rank_gradients_lowers_the_loss():
    method = rgp(rank=1)
    state = training_state(method, method.prepare(base("gpt2")))
    before = losses(state.model).sum().item()
    take_steps(method, state, range(8))
    assert losses(state.model).sum().item() < before - 0.5
