"""Recurrent layers: LSTM, GRU and plain ones, whose weights are used at every step of a text.

A weight's gradient sums an outer product for each step. The products of the inputs are formed for
all steps at once, as by a dense layer; the steps run in ``recurrences``, which gives the gradients
of the gates at all of them. Inputs carry the batch in front, second, or packed in texts of several
lengths; inside, the steps are in front.

Without a rule are subclasses with a forward of their own and parametrized weights (weight norm),
and packed texts inside a region: these run one example after another, the layer or the region.

Shapes: t steps, b examples, d width of the input, h width, p width of what is given out.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.rules.autocast import sum_dtype
from dpft.privacy.clipping.rules.linear import dense
from dpft.privacy.clipping.rules.recurrences import Backward, Forward, Weights, recurrence_of
from dpft.privacy.clipping.rules.whole_batch import on_all_examples, row_for_each
from dpft.privacy.clipping.uses import GradientUse, OuterUse

States = tuple[Tensor, ...]
"""What a layer starts from and ends with, (layers and directions, b, p); an LSTM's cells second."""
Run = Callable[[Any, States | None], tuple[Any, States]]
"""(inputs, states) -> what each step gives out, and the last states."""


def recurrent_forward(
    layer: nn.RNNBase, recorder: Recorder, *, broadcast: bool = False
) -> Callable[..., Any]:
    """Returns the layer's forward, recording its uses, inside regions and outside.

    Args:
        layer: The layer.
        recorder: What it reports to.
        broadcast: Whether its input, one row for all examples, is expanded to a row for each.
    """
    own = partial(type(layer).forward, layer)
    on_the_batch = partial(_run, layer, recorder)

    def forward(input: Any, hx: Any = None) -> Any:
        if recorder.looping or not torch.is_grad_enabled():
            return own(input, hx)
        states = (hx,) if isinstance(hx, Tensor) else hx
        if recorder.token is not None:
            outputs, last = _mapped(layer, on_the_batch, recorder.token, input, states)
        else:
            rows = row_for_each(input, recorder.examples) if broadcast else input
            outputs, last = on_the_batch(rows, states)
        return outputs, (last if isinstance(layer, nn.LSTM) else last[0])

    disabled: Callable[..., Any] = torch.compiler.disable(forward)
    return disabled


def _run(
    layer: nn.RNNBase, recorder: Recorder, inputs: Any, states: States | None
) -> tuple[Any, States]:
    """Runs the layer on inputs of any of the forms that it takes."""
    if isinstance(inputs, PackedSequence):
        rows, lengths = pad_packed_sequence(inputs)
        outputs, last = _run_layers(layer, recorder, rows, states, lengths.to(rows.device))
        return _packed_like(inputs, outputs, lengths), last
    if inputs.dim() == 2:
        states = None if states is None else tuple(state.unsqueeze(1) for state in states)
        outputs, last = _run_layers(layer, recorder, inputs.unsqueeze(1), states, None)
        return outputs.squeeze(1), tuple(state.squeeze(1) for state in last)
    rows = inputs.transpose(0, 1) if layer.batch_first else inputs
    outputs, last = _run_layers(layer, recorder, rows, states, None)
    return (outputs.transpose(0, 1) if layer.batch_first else outputs), last


def _packed_like(packed: PackedSequence, outputs: Tensor, lengths: Tensor) -> PackedSequence:
    order = packed.sorted_indices
    if order is not None:
        outputs, lengths = outputs.index_select(1, order), lengths[order.cpu()]
    data = pack_padded_sequence(outputs, lengths).data
    return PackedSequence(data, packed.batch_sizes, order, packed.unsorted_indices)


def _run_layers(
    layer: nn.RNNBase,
    recorder: Recorder,
    rows: Tensor,
    states: States | None,
    lengths: Tensor | None,
) -> tuple[Tensor, States]:
    """Runs each layer of the stack in each direction.

    Args:
        layer: The stack.
        recorder: What it reports to.
        rows: Shape (t, b, d).
        states: What to start from; None for zeros.
        lengths: How many of the steps are each example's own, shape (b,); None for all.
    """
    last: list[States] = []
    for number in range(layer.num_layers):
        given = []
        for suffix in ("", "_reverse") if layer.bidirectional else ("",):
            start = None if states is None else tuple(state[len(last)] for state in states)
            turn = partial(_reversed, lengths=lengths) if suffix else _as_it_is
            direction = _Direction(layer, recorder, f"_l{number}{suffix}")
            outputs, cells = direction.run(turn(rows), start)
            last.append(tuple(_at_the_end(each, lengths) for each in (outputs, *cells)))
            given.append(turn(outputs))
        rows = given[0] if len(given) == 1 else torch.cat(given, 2)
        if layer.dropout and number < layer.num_layers - 1:
            rows = F.dropout(rows, layer.dropout, layer.training)
    return rows, tuple(torch.stack(each) for each in zip(*last, strict=True))


def _as_it_is(rows: Tensor) -> Tensor:
    return rows


def _reversed(rows: Tensor, lengths: Tensor | None) -> Tensor:
    """Returns each example's own steps in the opposite order, the others where they are."""
    if lengths is None:
        return rows.flip(0)
    steps = torch.arange(len(rows), device=rows.device)[:, None]
    source = torch.where(steps < lengths, lengths - 1 - steps, steps)
    return rows.gather(0, source.unsqueeze(2).expand_as(rows))


def _at_the_end(rows: Tensor, lengths: Tensor | None) -> Tensor:
    """Returns each example's last own step, shape (b, ·)."""
    if lengths is None:
        return rows[-1]
    return rows[lengths - 1, torch.arange(rows.shape[1], device=rows.device)]


class _Direction:
    """One layer of a stack in one direction, recording its uses."""

    def __init__(self, layer: nn.RNNBase, recorder: Recorder, suffix: str) -> None:
        """Finds the weights by the end of their names."""
        self._layer = layer
        self._recorder = recorder
        self._suffix = suffix
        self._recurrence = recurrence_of(layer)

    def run(self, rows: Tensor, start: States | None) -> tuple[Tensor, States]:
        """Returns what each step gives out, shape (t, b, p), and an LSTM's cells."""
        weight: Tensor = getattr(self._layer, f"weight_ih{self._suffix}")
        gates = dense(rows, weight, self._weight("bias_ih"), self._record_input)
        if isinstance(self._layer, nn.GRU) and gates.device.type == "cpu":
            # There autocast reaches its products alone.
            gates = gates.to(rows.dtype)
        weights = [self._weight(name) for name in ("weight_hh", "bias_hh", "weight_hr")]
        outputs, *cells = _Recurrent.apply(
            gates, *self._start(gates, start), *weights, self._recurrence, self._record
        )
        return outputs, tuple(each for each in cells if each is not None)

    def _start(self, gates: Tensor, start: States | None) -> list[Tensor | None]:
        count, kind = gates.shape[1], self._layer
        if start is None:
            widths = [kind.proj_size or kind.hidden_size, kind.hidden_size]
            start = tuple(gates.new_zeros(count, width) for width in widths)
        first = [state.expand(count, -1).to(gates.dtype) for state in start]
        return [first[0], first[1] if isinstance(kind, nn.LSTM) else None]

    def _weight(self, name: str) -> Tensor | None:
        weight: Tensor | None = getattr(self._layer, name + self._suffix, None)
        return weight

    def _record_input(self, inputs: Tensor | None, backprops: Tensor) -> None:
        self._record_outer("weight_ih", backprops, inputs)
        self._record_sum("bias_ih", backprops)

    def _record(self, forward: Forward, backward: Backward) -> None:
        self._record_outer("weight_hh", backward.of_hidden, forward.hiddens[:-1])
        self._record_sum("bias_hh", backward.of_hidden)
        if self._weight("weight_hr") is not None:
            self._record_outer("weight_hr", backward.of_output, forward.saved[-1])

    def _record_outer(self, name: str, left: Tensor, right: Tensor | None) -> None:
        weight = self._weight(name)
        if weight is not None and weight.requires_grad and right is not None:
            use = OuterUse(*(rows.transpose(0, 1).contiguous() for rows in (left, right)))
            self._recorder.record(self._layer, name + self._suffix, use)

    def _record_sum(self, name: str, backprops: Tensor) -> None:
        bias = self._weight(name)
        if bias is not None and bias.requires_grad:
            sums = GradientUse(backprops.sum(0, dtype=sum_dtype(backprops)))
            self._recorder.record(self._layer, name + self._suffix, sums)


class _Recurrent(torch.autograd.Function):
    """The steps of one direction, whose backward hands out what they met there and back."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, *given: Any) -> tuple[Tensor, Tensor | None]:
        hidden, cell, *weights, recurrence, record = given
        ctx.set_materialize_grads(False)
        ctx.recurrence, ctx.record = recurrence, record
        with torch.autocast(gates.device.type, enabled=False):
            forward = recurrence.run(gates, hidden, cell, _cast(weights, gates.dtype))
        ctx.save_for_backward(*weights, forward.hiddens, forward.cells, *forward.saved)
        # No views of what is saved: a model may go on in place.
        cells = None if forward.cells is None else forward.cells[1:].clone()
        return forward.hiddens[1:].clone(), cells

    @staticmethod
    def backward(ctx: Any, outputs: Tensor | None, cells: Tensor | None) -> tuple[Any, ...]:
        weights, saved = ctx.saved_tensors[:3], ctx.saved_tensors[5:]
        hiddens, before = ctx.saved_tensors[3:5]
        forward = Forward(hiddens=hiddens, cells=before, saved=saved)
        given = torch.zeros_like(hiddens[1:]) if outputs is None else outputs
        with torch.autocast(hiddens.device.type, enabled=False):
            backward = ctx.recurrence.back(forward, given, cells, _cast(weights, hiddens.dtype))
        ctx.record(forward, backward)
        return backward.of_input, backward.first_hidden, backward.first_cell, *[None] * 5


def _cast(weights: Sequence[Tensor | None], dtype: torch.dtype) -> Weights:
    hidden, bias, projection = (None if w is None else w.to(dtype) for w in weights)
    assert hidden is not None
    return Weights(hidden=hidden, bias=bias, projection=projection)


def _mapped(
    layer: nn.RNNBase, run: Run, token: Tensor, inputs: Any, states: States | None
) -> tuple[Tensor, States]:
    """Runs the layer on all examples at once, inside a region that is mapped over them."""
    if not isinstance(inputs, Tensor) or inputs.dim() != 3:
        raise NotImplementedError("a recurrent layer is mapped on inputs of three dimensions alone")
    place = 0 if layer.batch_first else 1

    def on_the_batch(rows: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        outputs, last = run(rows, given or None)
        return outputs, *last

    tensors = (inputs, *(states or ()))
    outputs, *last = on_all_examples(on_the_batch, token, tensors, places=(place, 1, 1))
    return outputs, tuple(last)
