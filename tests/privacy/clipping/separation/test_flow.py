"""Which tensors carry the batch: seen in what two runs of a model do, not in one shape."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpft.privacy.clipping.separation.flow import ModuleFlow, Status, learn_flow, signature_of

D = 3


class Model(nn.Module):
    """Calls one layer with what the test makes of the input."""

    def __init__(self, prepare=lambda x: x):
        super().__init__()
        self.dense = nn.Linear(D, D)
        self.prepare = prepare

    def forward(self, x):
        return self.dense(self.prepare(x))


def flow_of(model, *arguments):
    return learn_flow(model, model.forward, (arguments, {}), dict(model.named_parameters()))


PREPARED = {
    "the batch": (lambda x: x, Status.BATCH),
    "one row for all": (lambda x: torch.ones(1, 4, D), Status.ONE),
    "as many rows as examples, by accident": (lambda x: torch.ones(4, D), Status.SHARED),
    "the batch in two places": (lambda x: torch.ones(len(x), len(x), D), Status.ODD),
    "twice the batch": (lambda x: torch.cat([x, x]), Status.ODD),
    "the batch in second place": (lambda x: x.transpose(0, 1), Status.SECOND),
    "the batch in third place": (lambda x: x.transpose(0, 1)[None], Status.ODD),
}


@pytest.mark.parametrize(("prepare", "expected"), PREPARED.values(), ids=PREPARED)
def test_a_tensor_carries_the_batch_where_its_leading_size_alone_follows_it(prepare, expected):
    model = Model(prepare)
    flow = flow_of(model, torch.ones(4, 4, D))
    (entering,) = flow.modules[model.dense].inputs.values()
    (leaving,) = flow.modules[model.dense].outputs.values()
    assert entering is leaving is expected
    assert flow.modules[model].carries_the_batch_in
    assert flow.modules[model.dense].carries_the_batch_in == (expected is Status.BATCH)


def test_each_use_of_a_weight_names_its_modules_its_operation_and_what_it_met():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(5, D)
            self.inner = Model(lambda x: torch.ones(1, D))

        def forward(self, ids):
            return F.linear(self.embedding(ids), self.embedding.weight) + self.inner(ids).sum()

    model = Tied()
    flow = flow_of(model, torch.tensor([[1, 2], [3, 4], [0, 0], [1, 1]]))
    dense = model.inner.dense

    def uses_of(name):
        found = [use for use in flow.uses if use.name == name]
        assert all(use.user is use.users[0] for use in found)
        return [(use.users, use.function, use.status) for use in found]

    assert uses_of("embedding.weight")[0] == ((model.embedding, model), F.embedding, Status.BATCH)
    assert uses_of("embedding.weight")[-1] == ((model,), F.linear, Status.BATCH)
    assert uses_of("inner.dense.weight") == [((dense, model.inner, model), F.linear, Status.ONE)]


def test_a_module_that_more_rows_call_more_often_is_odd():
    class Counting(Model):
        def forward(self, x):
            return torch.stack([self.dense(row) for row in x])

    model = Counting()
    flow = flow_of(model, torch.ones(4, D))
    assert not flow.modules[model.dense].can_run_example_by_example(widening=True)
    assert {use.status for use in flow.uses} == {Status.ODD}


@pytest.mark.parametrize(
    ("entering", "leaving", "strictly", "widening"),
    [
        ([Status.BATCH, Status.SHARED], [Status.BATCH], True, True),
        ([Status.BATCH], [Status.BATCH, Status.ONE], False, True),
        ([Status.BATCH], [Status.SHARED], False, False),
        ([Status.BATCH], [], False, False),
        ([Status.BATCH, Status.ODD], [Status.BATCH], False, False),
        ([Status.ONE], [Status.BATCH], False, False),
        ([Status.BATCH], [Status.SECOND], True, True),
        ([Status.SECOND, Status.ONE], [Status.BATCH], True, True),
    ],
)
def test_only_a_function_of_one_examples_inputs_runs_example_by_example(
    entering, leaving, strictly, widening
):
    flow = ModuleFlow(*(dict(zip("abc", side, strict=False)) for side in (entering, leaving)))
    assert flow.can_run_example_by_example(widening=False) == strictly
    assert flow.can_run_example_by_example(widening=True) == widening


def test_learning_leaves_random_state_and_buffers_and_hooks_as_they_were():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Dropout(0.5)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return self.inner(x)

    model, before = Counting(), torch.get_rng_state()
    flow_of(model, torch.ones(4, D))
    assert torch.equal(torch.get_rng_state(), before) and float(model.calls) == 0
    assert not model.inner._forward_hooks and not model.inner._forward_pre_hooks


MODEL = nn.Linear(2, 2)


def kind(*args, **kwargs):
    return signature_of(MODEL, (args, kwargs)).kind


def test_sizes_and_values_make_no_difference():
    assert kind(torch.ones(3, 5)) == kind(torch.zeros(4, 7))


def test_rank_dtype_switches_and_other_arguments_do():
    kinds = [
        kind(torch.ones(3, 5)),
        kind(torch.ones(3, 5, 2)),
        kind(torch.ones(3, 5).long()),
        kind(torch.ones(3, 5), mask=torch.ones(3, 5)),
        kind(torch.ones(3, 5), mask=None),
        kind(torch.ones(3, 5), torch.ones(5)),
        kind(torch.ones(3, 5), torch.ones(3)),
        kind(torch.ones(3, 5), True),
        kind(torch.ones(3, 1)),
        kind(torch.ones(1, 5)),
    ]
    MODEL.eval()
    kinds.append(kind(torch.ones(3, 5)))
    MODEL.train()
    assert len(set(kinds)) == len(kinds)


def test_a_size_that_happens_to_be_the_batchs_is_ambiguous():
    assert not signature_of(MODEL, (torch.ones(3, 5),)).is_ambiguous
    assert signature_of(MODEL, (torch.ones(5, 5),)).is_ambiguous
