"""Recurrent layers, which no rule knows, in every form that torch has: gradients are exact."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.architectures.comparison import difference
from tests.privacy.clipping.oracle import Clipped, clipped_sum
from tests.slowness import slow_but

pytestmark = pytest.mark.usefixtures("self_check_once")

STEPS, WIDTH = 5, 3
KINDS = {
    "lstm": (nn.LSTM, {}),
    "lstm-projected": (nn.LSTM, {"proj_size": 2}),
    "gru": (nn.GRU, {}),
    "rnn-tanh": (nn.RNN, {}),
    "rnn-relu": (nn.RNN, {"nonlinearity": "relu"}),
}
FORMS = ("first", "second", "packed", "packed, sorted", "with states")


class Recurrent(nn.Module):
    """Texts through recurrent layers, all that comes of them in the losses."""

    def __init__(self, kind: str, form: str, *, both_ways=False, **options):
        super().__init__()
        torch.manual_seed(0)
        self.form = form
        self.tokens = nn.Embedding(9, WIDTH)
        layer, own = KINDS[kind]
        options |= own | {"batch_first": form == "first", "bidirectional": both_ways}
        self.layers = layer(WIDTH, 4, **{"num_layers": 2} | options)
        self.start = nn.Linear(WIDTH, self.layers.hidden_size)
        self.double()

    def forward(self, ids, lengths):
        rows = self.tokens(ids)
        if self.form == "first":
            outputs, last = self.layers(rows)
        elif self.form.startswith("packed"):
            together = self.form.endswith("sorted")
            packed = pack_padded_sequence(rows, lengths, True, enforce_sorted=together)
            outputs, last = self.layers(packed)
            outputs = pad_packed_sequence(outputs, True)[0]
        else:
            states = self.states(rows[:, 0]) if self.form == "with states" else None
            outputs, last = self.layers(rows.transpose(0, 1), states)
            outputs = outputs.transpose(0, 1)
        states = last if isinstance(last, tuple) else (last,)
        losses = outputs.square().sum((1, 2))
        return sum((state.sin().sum((0, 2)) for state in states), losses)

    def states(self, rows):
        layers = self.layers.num_layers * (2 if self.layers.bidirectional else 1)
        cell = self.start(rows).expand(layers, -1, -1)
        hidden = cell[:, :, : self.layers.proj_size or self.layers.hidden_size]
        if isinstance(self.layers, nn.LSTM):
            return hidden.contiguous(), cell.contiguous()
        return hidden.contiguous()


def batch(count=3):
    ids = torch.randint(0, 9, (count, STEPS), generator=torch.Generator().manual_seed(1))
    return ids, torch.tensor([5, 2, 4])[:count]


def clipped(model, engine, arguments=None):
    arguments = arguments or batch()
    torch.manual_seed(3)
    return clipped_sum(model, lambda: model(*arguments), engine=engine)


EVERY = list(itertools.product(KINDS, FORMS, (False, True)))
SOME = [("lstm", form, form != "first") for form in FORMS]
SOME += [(kind, "packed", True) for kind in KINDS if kind != "lstm"]


@pytest.mark.parametrize(("kind", "form", "both_ways"), slow_but(SOME, EVERY))
def test_gradients_are_the_loops(kind, form, both_ways):
    model = Recurrent(kind, form, both_ways=both_ways)
    arguments = batch()
    if form == "packed, sorted":
        arguments = (arguments[0], torch.tensor([5, 4, 4]))
    expected = clipped(model, "loop", arguments)
    for engine in ("book_keeping", "two_pass"):
        assert difference(clipped(model, engine, arguments), expected) < 1e-12


@pytest.mark.parametrize("kind", slow_but([*KINDS][:2], KINDS))
def test_weights_that_are_frozen_get_no_gradient(kind):
    model = Recurrent(kind, "second")
    for name, parameter in model.layers.named_parameters():
        parameter.requires_grad = "bias" in name or name.endswith("hh_l1")
    assert difference(clipped(model, "book_keeping"), clipped(model, "loop")) < 1e-12


class Alone(nn.Module):
    """The layer alone."""

    def __init__(self, kind, change=lambda outputs: outputs):
        super().__init__()
        torch.manual_seed(0)
        layer, options = KINDS[kind]
        self.layer = layer(WIDTH, 4, batch_first=True, **options).double()
        self.change = change

    def forward(self, rows):
        return self.change(self.layer(rows)[0]).square().sum((1, 2))


ROWS = torch.randn(3, STEPS, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_layer_gives_may_be_changed_in_place(kind):
    model, rows = Alone(kind, lambda outputs: outputs.mul_(2)), ROWS.double()
    got = clipped(model, "book_keeping", [rows])
    assert difference(got, clipped(model, "loop", [rows])) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_a_non_finite_text_leaves_the_others_as_they_are(kind):
    model, rows = Alone(kind), ROWS.double()
    expected = clipped(model, "book_keeping", [rows[1:]])
    rows[0, 2] = float("nan")
    got = clipped(model, "book_keeping", [rows])
    assert got.norms[0] == 0
    assert difference(Clipped(got.norms[1:], got.gradients), expected) < 1e-12


@pytest.mark.parametrize("kind", slow_but([*KINDS][:2], KINDS))
def test_half_precision_gives_the_layers_own_dtype(kind):
    model = Alone(kind).float()
    single = clipped(model, "book_keeping", [ROWS])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        try:
            expected = model.layer(ROWS)[0]
        except RuntimeError:
            pytest.skip("torch cannot run this layer in bfloat16 on this processor")
        got = clipped(model, "book_keeping", [ROWS])
        with PerExampleClipper(model, 1.0):
            outputs = model.layer(ROWS)[0]
    assert outputs.dtype == expected.dtype
    assert torch.allclose(outputs.float(), expected.float(), atol=2e-2)
    assert torch.allclose(got.norms, single.norms, rtol=3e-2)
