import torch
from torch import nn

from dpft.privacy.clipping.engines.book_keeping import BookKeepingEngine
from dpft.privacy.clipping.factors import clipping_style
from tests.privacy.clipping.oracle import gpt2, records
from tests.privacy.clipping.rules.oracle import assert_equals_the_loop

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
