"""A region's forward: the module's own, with each example's gradient told apart."""

import logging

import pytest
import torch
from torch import nn

from dpft.errors import RunError
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.separation import mapping
from dpft.privacy.clipping.separation.flow import Status
from dpft.privacy.clipping.separation.mapping import MappedForward, log_once, reason_of
from dpft.privacy.clipping.separation.regions import Region
from dpft.privacy.clipping.trainable import TrainableParameters

B, D = 4, 3
X = torch.randn(B, 2, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Scale(nn.Module):
    """A weight without a rule, used without the batch dimension."""

    def __init__(self, after=lambda y: y):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(1, 2, D, dtype=torch.float64))
        self.after = after

    def forward(self, x):
        return self.after(x * self.weight.square())


def reads_a_value(y):
    """What ``vmap`` cannot run."""
    return y if float(y.detach().sum()) > -1e9 else -y


def mapped(module, **options) -> tuple[MappedForward, Recorder]:
    trainable = TrainableParameters(module)
    recorder = Recorder(trainable)
    region = Region(module=module, expanded=trainable.within(module), **options)
    return MappedForward(region, recorder), recorder


def recorded(forward, recorder, *arguments, **named):
    """Returns the output and each parameter's per-example gradients of its sum of squares."""
    recorder.start(B)
    output = forward(*arguments, **named)
    output.square().sum().backward()
    return output, {p: sum(u.instantiate() for u in us) for p, us in recorder.take().items()}


def one_at_a_time(module, parameter):
    losses = (module(X[row : row + 1]).square().sum() for row in range(B))
    return torch.stack([torch.autograd.grad(loss, parameter)[0] for loss in losses])


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("after", [lambda y: y, reads_a_value], ids=["mappable", "not mappable"])
def test_outputs_are_the_modules_own_and_gradients_the_examples_own(after, loops):
    module = Scale(after)
    output, gradients = recorded(*mapped(module, loops=loops), X)
    assert torch.equal(output, module(X))
    assert torch.allclose(gradients["weight"], one_at_a_time(module, module.weight))
    assert module.weight.grad is None


def test_after_a_failure_the_loop_draws_what_the_map_would_have_and_stays():
    attempts = []

    def drops(y):
        attempts.append(len(y))
        return reads_a_value(torch.nn.functional.dropout(y, 0.5))

    forward, recorder = mapped(Scale(drops))
    recorder.start(B)
    torch.manual_seed(0)
    forward(X)
    after_failure = torch.get_rng_state()
    assert attempts == [1] * (1 + B)
    torch.manual_seed(0)
    forward(X)
    assert attempts == [1] * (1 + B + B)
    assert torch.equal(torch.get_rng_state(), after_failure)


@pytest.mark.parametrize("loops", [False, True])
def test_what_is_shared_reaches_every_example_whole(loops):
    class Added(Scale):
        def forward(self, x, table, scale=1.0):
            return super().forward(x) + scale * table

    module, table = Added(), torch.randn(B, D, dtype=torch.float64)
    inputs = {"[0][0]": Status.BATCH, "[0][1]": Status.SHARED}
    forward, recorder = mapped(module, inputs=inputs, loops=loops)
    square = X.unsqueeze(2).expand(B, 2, B, D)
    output, _ = recorded(forward, recorder, square, table, scale=2.0)
    assert torch.equal(output, module(square, table, scale=2.0))


def test_the_module_runs_as_it_is_without_gradients_and_inside_another_region():
    rows = []
    module = Scale(lambda y: rows.append(len(y)) or y)
    forward, recorder = mapped(module)
    with torch.no_grad():
        assert torch.equal(forward(X), module(X))
    with recorder.inside(None):
        forward(X).sum().backward()
    assert rows == [B] * 3
    assert module.weight.grad is not None and recorder.take() == {}


def test_outputs_without_a_row_for_each_example_are_not_taken_from_the_map(caplog, monkeypatch):
    monkeypatch.setattr(mapping, "_logged", set())
    caplog.set_level(logging.INFO, logger="dpft")
    forward, _ = mapped(Scale(lambda y: y.sum()))
    with pytest.raises(RuntimeError):
        forward(X)
    assert "clipping: Scale cannot be mapped over its examples (RunError)" in caplog.messages


def test_a_call_without_a_tensor_that_carries_the_batch_is_refused_by_parameter():
    forward, _ = mapped(Scale())
    with pytest.raises(RunError, match="whose weight is trainable, must take an input"):
        forward(2.0)


def test_a_region_recomputes_nothing_and_leaves_the_switch_as_it_was():
    seen = []
    module = Scale(lambda y: seen.append(module.gradient_checkpointing) or y)
    module.gradient_checkpointing = True
    forward, recorder = mapped(module)
    recorder.start(B)
    forward(X)
    assert seen == [False] and module.gradient_checkpointing


def test_a_message_is_logged_once(caplog, monkeypatch):
    monkeypatch.setattr(mapping, "_logged", set())
    caplog.set_level(logging.INFO, logger="dpft")
    for _ in range(2):
        log_once("something is slow")
    assert [(r.levelname, r.message) for r in caplog.records] == [
        ("INFO", "clipping: something is slow")
    ]


def reads(x):
    return x if x.sum() > 0 else -x


def gathers(x):
    return x[x > 0]


def writes(x):
    rows = torch.zeros(3)
    rows[0] = x[0]
    return rows


def reaches_in(x):
    return x.data


def refuses(x):
    raise RuntimeError("a text of 137 tokens")


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (reads, "it reads a value from a tensor"),
        (lambda x: x * x.sum().item(), "it reads a value from a tensor"),
        (gathers, "the shape of one of its tensors depends on values"),
        (writes, "it writes in place into a tensor without the batch"),
        (reaches_in, "it changes a weight as it runs"),
        (refuses, "it does what cannot be mapped over examples"),
    ],
)
def test_the_reason_is_told_in_words_of_our_own(run, expected):
    with pytest.raises(RuntimeError) as caught:
        torch.vmap(run)(torch.randn(4, 3))
    assert reason_of(caught.value) == expected
