"""Recurrences: the steps of LSTM, GRU and plain recurrent layers, and their steps back.

A step takes gates that are already a product of its input, and adds a product of what was given
out the step before. Back through the steps goes nothing but the gradient of the gates, step by
step; what it is multiplied with is formed for all steps at once. From it all else follows: the
gradients of the weights are outer products of it, which a rule records.

Shapes: t steps, b examples, h width, g gates of that width, p width of what is given out.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Forward:
    """What the steps of a recurrence gave.

    Attributes:
        hiddens: What each step started from and gave out, shape (t + 1, b, p).
        cells: The same of an LSTM's cells, shape (t + 1, b, h); None elsewhere.
        saved: What its own way back needs beside these.
    """

    hiddens: Tensor
    cells: Tensor | None
    saved: Sequence[Tensor]


@dataclass(frozen=True, kw_only=True)
class Backward:
    """The gradients that the steps of a recurrence met on the way back.

    Attributes:
        of_input: Of the product of the input, shape (t, b, g h).
        of_hidden: Of the product of what was given out before, shape (t, b, g h).
        of_output: Of what was given out, shape (t, b, p).
        first_hidden: Of what the first step started from, shape (b, p).
        first_cell: The same of an LSTM's cell, shape (b, h); None elsewhere.
    """

    of_input: Tensor
    of_hidden: Tensor
    of_output: Tensor
    first_hidden: Tensor
    first_cell: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What one direction of one layer multiplies with, in the dtype that it computes in.

    Attributes:
        hidden: Of what was given out before, shape (g h, p).
        bias: Added to it, shape (g h,), or None.
        projection: From an LSTM's width to what it gives out, shape (p, h), or None.
    """

    hidden: Tensor
    bias: Tensor | None
    projection: Tensor | None


class Recurrence(ABC):
    """The steps of one kind of layer."""

    @abstractmethod
    def run(self, gates: Tensor, hidden: Tensor, cell: Tensor | None, by: Weights) -> Forward:
        """Returns all steps from the products of the inputs, shape (t, b, g h)."""

    @abstractmethod
    def back(
        self, forward: Forward, outputs: Tensor, cells: Tensor | None, by: Weights
    ) -> Backward:
        """Returns all gradients from those of what was given out and, if used, of the cells."""


class LSTM(Recurrence):
    """Gates i, f, g, o: ``c = f c + i g`` and ``h = o tanh(c)``, projected where asked for."""

    def run(self, gates: Tensor, hidden: Tensor, cell: Tensor | None, by: Weights) -> Forward:
        """See ``Recurrence.run``."""
        assert cell is not None
        values = gates.clone() if by.bias is None else gates + by.bias
        width, onto = cell.shape[1], by.hidden.t()
        hiddens, cells = _from(hidden, len(gates)), _from(cell, len(gates))
        raw = hiddens[1:] if by.projection is None else torch.empty_like(cells[1:])
        for step, value in enumerate(values.unbind()):
            value.addmm_(hiddens[step], onto)
            i, f, g, o = value.split(width, 1)
            value[:, : 2 * width].sigmoid_()
            g.tanh_()
            o.sigmoid_()
            new = torch.mul(f, cells[step], out=cells[step + 1]).addcmul_(i, g)
            torch.mul(o, new.tanh(), out=raw[step])
            if by.projection is not None:
                torch.mm(raw[step], by.projection.t(), out=hiddens[step + 1])
        return Forward(hiddens=hiddens, cells=cells, saved=[values, raw])

    def back(
        self, forward: Forward, outputs: Tensor, cells: Tensor | None, by: Weights
    ) -> Backward:
        """See ``Recurrence.back``."""
        values, before = forward.saved[0], forward.cells
        assert before is not None
        i, f, g, o = values.unflatten(2, (4, -1)).unbind(2)
        bent = before[1:].tanh()
        into_cell = o * (1 - bent.square())
        slopes = [g * i * (1 - i), before[:-1] * f * (1 - f), i * (1 - g.square())]
        slope = torch.stack([*slopes, bent * o * (1 - o)], 2)
        gates, given = torch.empty_like(slope), outputs.clone()
        hidden, cell = torch.zeros_like(outputs[0]), torch.zeros_like(before[0])
        for step in reversed(range(len(outputs))):
            out = given[step].add_(hidden)
            raw = out if by.projection is None else out @ by.projection
            cell = torch.addcmul(
                cell if cells is None else cell + cells[step], raw, into_cell[step]
            )
            torch.mul(cell.unsqueeze(1), slope[step, :, :3], out=gates[step, :, :3])
            torch.mul(raw, slope[step, :, 3], out=gates[step, :, 3])
            cell = cell * f[step]
            hidden = gates[step].flatten(1) @ by.hidden
        flat = gates.flatten(2)
        return Backward(
            of_input=flat, of_hidden=flat, of_output=given, first_hidden=hidden, first_cell=cell
        )


class GRU(Recurrence):
    """Gates r, z, n: ``n = tanh(x + r h')`` and ``h = n + z (h - n)``, h' the product of h."""

    def run(self, gates: Tensor, hidden: Tensor, cell: Tensor | None, by: Weights) -> Forward:
        """See ``Recurrence.run``."""
        width, onto = hidden.shape[1], by.hidden.t()
        hiddens, values = _from(hidden, len(gates)), torch.empty_like(gates)
        products = torch.empty_like(gates)
        for step, gate in enumerate(gates.unbind()):
            product = torch.mm(hiddens[step], onto, out=products[step])
            if by.bias is not None:
                product += by.bias
            torch.add(
                gate[:, : 2 * width], product[:, : 2 * width], out=values[step, :, : 2 * width]
            )
            values[step, :, : 2 * width].sigmoid_()
            r, z, n = values[step].split(width, 1)
            torch.addcmul(gate[:, 2 * width :], r, product[:, 2 * width :], out=n).tanh_()
            torch.lerp(n, hiddens[step], z, out=hiddens[step + 1])
        return Forward(hiddens=hiddens, cells=None, saved=[values, products[:, :, 2 * width :]])

    def back(
        self, forward: Forward, outputs: Tensor, cells: Tensor | None, by: Weights
    ) -> Backward:
        """See ``Recurrence.back``."""
        values, products = forward.saved
        r, z, n = values.unflatten(2, (3, -1)).unbind(2)
        of_n = (1 - z) * (1 - n.square())
        of_z = (forward.hiddens[:-1] - n) * z * (1 - z)
        of_r = of_n * products * r * (1 - r)
        slope = torch.stack([of_r, of_z, of_n * r], 2)
        gates, given = torch.empty_like(slope), outputs.clone()
        hidden = torch.zeros_like(outputs[0])
        for step in reversed(range(len(outputs))):
            out = given[step].add_(hidden)
            torch.mul(out.unsqueeze(1), slope[step], out=gates[step])
            hidden = torch.addmm(out * z[step], gates[step].flatten(1), by.hidden)
        of_input = torch.cat([gates[:, :, :2].flatten(2), given * of_n], 2)
        return Backward(
            of_input=of_input,
            of_hidden=gates.flatten(2),
            of_output=given,
            first_hidden=hidden,
            first_cell=None,
        )


class Plain(Recurrence):
    """``h = tanh(x + h')``, or of ReLU."""

    def __init__(self, nonlinearity: str) -> None:
        """Takes ``tanh`` or ``relu``."""
        self._bends = nonlinearity == "tanh"

    def run(self, gates: Tensor, hidden: Tensor, cell: Tensor | None, by: Weights) -> Forward:
        """See ``Recurrence.run``."""
        values = gates if by.bias is None else gates + by.bias
        hiddens, onto = _from(hidden, len(gates)), by.hidden.t()
        for step, value in enumerate(values.unbind()):
            new = torch.addmm(value, hiddens[step], onto, out=hiddens[step + 1])
            _ = new.tanh_() if self._bends else new.relu_()
        return Forward(hiddens=hiddens, cells=None, saved=[])

    def back(
        self, forward: Forward, outputs: Tensor, cells: Tensor | None, by: Weights
    ) -> Backward:
        """See ``Recurrence.back``."""
        after = forward.hiddens[1:]
        slope = 1 - after.square() if self._bends else (after > 0).to(after.dtype)
        gates, given = torch.empty_like(slope), outputs.clone()
        hidden = torch.zeros_like(outputs[0])
        for step in reversed(range(len(outputs))):
            torch.mul(given[step].add_(hidden), slope[step], out=gates[step])
            hidden = gates[step] @ by.hidden
        return Backward(
            of_input=gates, of_hidden=gates, of_output=given, first_hidden=hidden, first_cell=None
        )


def recurrence_of(layer: nn.RNNBase) -> Recurrence:
    """Returns the steps of a layer."""
    if isinstance(layer, nn.LSTM):
        return LSTM()
    return GRU() if isinstance(layer, nn.GRU) else Plain(str(layer.nonlinearity))


def _from(first: Tensor, steps: int) -> Tensor:
    """Returns room for what each step gives, the first filled with what they start from."""
    room = first.new_empty(steps + 1, *first.shape)
    room[0] = first
    return room
