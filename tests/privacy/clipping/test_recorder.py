"""Inside a mapped region, what is called on the whole batch is called once."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpft.errors import RunError
from dpft.privacy.clipping.recorder import (
    Recorder,
    WholeBatchAttention,
    expanded,
    on_the_whole_batch,
    with_one_mask,
)
from dpft.privacy.clipping.trainable import TrainableParameters
from dpft.privacy.clipping.uses import GradientUse, OuterProduct


def test_uses_are_kept_per_parameter_and_taken_once():
    layer = nn.Linear(2, 1)
    recorder = Recorder(TrainableParameters(layer))
    recorder.start(3)
    uses = [GradientUse(torch.zeros(3, 2)), GradientUse(torch.ones(3, 2))]
    for use in uses:
        recorder.record(layer, "weight", use)
    assert recorder.take() == {"weight": uses}
    assert recorder.take() == {}


@pytest.mark.parametrize(
    "use",
    [GradientUse(torch.zeros(1, 2)), OuterProduct(torch.zeros(3, 4, 1), torch.zeros(1, 4, 2))],
)
def test_a_use_that_does_not_carry_the_batch_is_refused_by_parameter_name(use):
    model = nn.ModuleDict({"wpe": nn.Linear(2, 1)})
    recorder = Recorder(TrainableParameters(model))
    recorder.start(3)
    with pytest.raises(RunError, match=r"wpe\.weight .* expected the batch size 3"):
        recorder.record(model["wpe"], "weight", use)


B = 4
X = torch.randn(B, 2, 3, generator=torch.Generator().manual_seed(0))


def mapped(recorder, run, *tensors, in_dims=0):
    """Returns what ``run`` gives example by example, as in a region."""

    def one(token, *rows):
        with recorder.inside(token):
            return run(*rows)

    dims = (0, *([in_dims] * len(tensors) if isinstance(in_dims, int) else in_dims))
    return torch.vmap(one, in_dims=dims, randomness="different")(torch.zeros(B), *tensors)


def of_nothing() -> Recorder:
    return Recorder(TrainableParameters(nn.Identity()))


def watched(layer):
    seen = []
    recorder = of_nothing()

    def forward(inputs):
        seen.append(tuple(inputs.shape))
        return layer(inputs)

    return on_the_whole_batch(layer, forward, recorder), recorder, seen


def test_a_layer_meets_all_examples_at_once_inside_a_map_and_outside():
    layer = nn.Linear(3, 5)
    run, recorder, seen = watched(layer)
    assert torch.allclose(mapped(recorder, run, X), layer(X))
    assert torch.equal(run(X), layer(X))
    assert seen == [(B, 2, 3)] * 2


def test_an_input_that_all_examples_share_is_each_ones_own():
    layer = nn.Linear(3, 5)
    run, recorder, seen = watched(layer)
    outputs = mapped(recorder, lambda _, shared: run(shared), X, X[0], in_dims=(0, None))
    assert seen == [(B, 2, 3)] and torch.allclose(outputs, layer(X[0]).expand(B, 2, 5))


def test_in_a_loop_over_the_examples_the_layer_runs_its_own_forward():
    layer = nn.Linear(3, 5)
    run, recorder, seen = watched(layer)
    with recorder.inside(None):
        assert torch.equal(run(X[:1]), layer(X[:1]))
    assert seen == []


@pytest.mark.parametrize("training", [True, False])
def test_one_mask_drops_the_same_of_every_example_in_training(training):
    dropout, recorder = (
        nn.Dropout(0.5).train(training),
        of_nothing(),
    )
    ones = torch.ones(B, 64)
    torch.manual_seed(0)
    outputs = mapped(recorder, with_one_mask(dropout, recorder), ones)
    assert torch.equal(outputs, outputs[:1].expand(B, 64))
    assert bool((outputs == 0).any()) == training
    torch.manual_seed(0)
    assert torch.equal(outputs[0], dropout(ones[0]))


class Watch(TorchDispatchMode):
    """Notes the shape of the queries that attention's kernels are called with."""

    def __init__(self):
        super().__init__()
        self.queries = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "attention" in str(func):
            self.queries.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


MASKS = {
    "none": None,
    "everyone's": torch.tensor([[True, False], [True, True]]),
    "each one's own": torch.tensor([[[[[True, False], [True, True]]]]] * B),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_attention_over_all_examples_at_once_is_attention_of_each(mask):
    own, recorder = F.scaled_dot_product_attention, of_nothing()
    q, k, v = torch.randn(3, B, 1, 2, 2, 3, generator=torch.Generator().manual_seed(0))

    def attend(q, k, v, mask=None):
        with WholeBatchAttention(recorder.token):
            return own(q, k, v, attn_mask=mask)

    of_each = mask is not None and mask.dim() == 5
    dims = (0, 0, 0, 0 if of_each else None)
    tensors = (q, k, v) if mask is None else (q, k, v, mask)
    with Watch() as watch:
        outputs = mapped(recorder, attend, *tensors, in_dims=dims[: len(tensors)])
    assert watch.queries == [(B, 2, 2, 3)]
    rows = range(B)
    expected = [own(q[i], k[i], v[i], mask[i] if of_each else mask) for i in rows]
    assert torch.allclose(outputs, torch.stack(expected), atol=1e-6)


def test_each_rows_gradient_is_reported_and_none_is_formed():
    weight = nn.Parameter(torch.tensor([2.0, 3.0]))
    met = []
    rows = expanded(weight, 3, met.append)
    assert torch.equal(rows, weight.detach().repeat(3, 1)) and rows.stride(0) == 0
    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    (rows.square() * inputs).sum().backward()
    (use,) = met
    assert use.values.tolist() == [[4.0, 0.0], [0.0, 6.0], [4.0, 6.0]]
    assert weight.grad is None


def test_a_frozen_weight_is_expanded_and_reports_nothing():
    weight = nn.Parameter(torch.ones(2), requires_grad=False)
    rows = expanded(weight, 3, lambda use: 1 / 0)
    assert rows.shape == (3, 2) and not rows.requires_grad
