"""What each algorithm does beside the sum that all share."""

import weakref

import pytest
import torch
from torch import nn

from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.algorithms import (
    BookKeepingEngine,
    InstantiateEngine,
    LoopEngine,
    TwoPassEngine,
)
from dpft.privacy.clipping.engine import clipping_style
from dpft.privacy.clipping.uses import OuterProduct
from tests.privacy.clipping.oracle import gpt2, records
from tests.privacy.clipping.rules.oracle import assert_equals_the_loop
from tests.slowness import slow_but

STYLE = clipping_style("flat", max_grad_norm=0.5)


def test_one_backward_pass_forms_no_weight_gradient_of_its_own():
    """What reaches ``grad`` is one clipped sum; an ordinary gradient beside it would be refused."""
    model, batch = gpt2(), records()
    engine = BookKeepingEngine(model, STYLE)
    engine.install()
    losses = batch.losses(model)()
    assert all(p.grad is None for p in model.parameters())
    engine.accumulate(losses, None)
    engine.remove()
    assert all(p.grad is not None for p in model.parameters())


def test_frozen_weights_keep_no_input_for_their_gradient():
    layer = nn.Linear(64, 64)
    layer.weight.requires_grad = False
    engine = BookKeepingEngine(layer, STYLE)
    engine.install()
    saved = []
    inputs = torch.randn(8, 64)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        layer(inputs)
    engine.remove()
    assert not any(tensor is inputs or tensor.shape == inputs.shape for tensor in saved)


def test_a_subclass_with_its_own_forward_is_not_taken_for_its_parent():
    class Doubled(nn.Linear):
        def forward(self, inputs):
            return 2 * super().forward(inputs)

    layer, inputs = Doubled(2, 2).double(), torch.randn(3, 4, 2, dtype=torch.float64)
    assert_equals_the_loop(layer, lambda: layer(inputs))


def test_saving_and_generating_work_inside(tmp_path):
    model = gpt2()
    engine = BookKeepingEngine(model, STYLE)
    engine.install()
    model.generate(torch.tensor([[1, 2]]), max_new_tokens=2, do_sample=False, pad_token_id=0)
    model.save_pretrained(tmp_path)
    engine.remove()
    assert (tmp_path / "model.safetensors").exists()


STYLE_INSTANTIATE = clipping_style("flat", max_grad_norm=1.0)


def test_gradients_are_clipped_by_hand_arithmetic():
    model = nn.Linear(2, 1, bias=False)
    engine = InstantiateEngine(model, STYLE_INSTANTIATE)
    engine.install()
    clipped = engine.accumulate(model(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))[:, 0], None)
    # Norms 5 and 0.5; the first is scaled to (0.6, 0.8), the second stays.
    assert torch.allclose(clipped.norms, torch.tensor([5.0, 0.5]))
    assert torch.allclose(model.weight.grad, torch.tensor([[0.9, 1.2]]), rtol=1e-5)


def test_uses_of_one_weight_add_up_before_the_norm():
    layer = nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(2.0)
    engine = InstantiateEngine(layer, STYLE_INSTANTIATE)
    engine.install()
    clipped = engine.accumulate(layer(layer(torch.ones(1, 1)))[:, 0], None)
    # The derivative of w * w at 2.
    assert clipped.norms.tolist() == [4.0]


def test_no_use_is_kept_even_of_a_tied_weight():
    model, batch = gpt2(tied=True), records()
    engine = InstantiateEngine(model, STYLE_INSTANTIATE)
    engine.install()
    kept = []
    engine.recorder.keep = lambda name, use: kept.append(name)
    engine.accumulate(batch.losses(model)(), None)
    assert kept == [] and model.transformer.wte.weight.grad is not None


@pytest.mark.parametrize(("tied", "expected"), [(False, set()), (True, {"transformer.wte.weight"})])
def test_no_use_outlives_its_turn_but_those_of_a_shared_weight(tied, expected):
    model, batch, kept = gpt2(tied=tied), records(), set()
    engine = TwoPassEngine(model, STYLE)
    engine.install()
    keep = engine.recorder.keep

    def watch(name, use):
        kept.add(name)
        keep(name, use)

    engine.recorder.keep = watch
    engine.accumulate(batch.losses(model)(), None)
    engine.remove()
    assert kept == expected


def test_output_gradients_are_let_go_during_the_pass():
    model, batch = gpt2(tied=False), records()
    engine = TwoPassEngine(model, STYLE)
    engine.install()
    alive, most = [], []
    record = engine.recorder.record_as

    def watch(name, use):
        most.append(sum(reference() is not None for reference in alive))
        if isinstance(use, OuterProduct):
            # GPT-2's blocks have their inputs on the left, its head on the right.
            alive.append(weakref.ref(use.left if name == "lm_head.weight" else use.right))
        record(name, use)

    engine.recorder.record_as = watch
    engine.accumulate(batch.losses(model)(), None)
    engine.remove()
    # A gradient that autograd adds the next one to, in place, lives on in the residual stream.
    assert max(most) < len(alive) / 3


@pytest.mark.parametrize("labels", slow_but([[9, 4, 9, 9]], [None, [9, 4, 9, 9]]), ids=str)
@pytest.mark.parametrize(
    ("trained", "passes"), [("bias", 1), ("ln_1.weight", 1), (("bias", "wpe.weight"), 2)]
)
def test_small_gradients_alone_take_one_pass_and_give_the_sum_of_the_loop(
    trained, passes, labels, monkeypatch
):
    units = None if labels is None else torch.tensor(labels)
    model, batch, made = gpt2(dtype=torch.float64), records(), []
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.endswith(trained)
    backward = torch.autograd.backward

    def counted(*arguments, **options):
        made.append(arguments)
        backward(*arguments, **options)

    monkeypatch.setattr(torch.autograd, "backward", counted)
    sums = []
    for engine in ("loop", "two_pass"):
        with PerExampleClipper(model, STYLE.max_grad_norm, engine=engine) as clipper:
            # The first batch of a kind takes passes of its own, to be proved.
            clipper.accumulate(batch.losses(model), units)
            model.zero_grad()
            made.clear()
            clipper.accumulate(batch.losses(model), units)
        sums.append([p.grad.clone() for p in model.parameters() if p.requires_grad])
    assert len(made) == passes
    for expected, got in zip(*sums, strict=True):
        assert torch.allclose(got, expected, rtol=1e-10)


def test_gradients_are_taken_one_at_a_time_and_clipped_by_hand_arithmetic():
    model = nn.Linear(2, 1, bias=False)
    inputs = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    engine = LoopEngine(model, clipping_style("flat", max_grad_norm=1.0))
    clipped = engine.accumulate(model(inputs)[:, 0], None)
    # Norms 5 and 0.5; the first is scaled to (0.6, 0.8), the second stays.
    assert torch.allclose(clipped.norms, torch.tensor([5.0, 0.5]))
    assert torch.allclose(model.weight.grad, torch.tensor([[0.9, 1.2]]), rtol=1e-5)


def test_a_parameter_without_a_use_is_left_without_a_gradient():
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})
    engine = LoopEngine(model, clipping_style("flat", max_grad_norm=1.0))
    engine.accumulate(model["used"](torch.ones(2, 2))[:, 0], None)
    assert model["unused"].weight.grad is None
