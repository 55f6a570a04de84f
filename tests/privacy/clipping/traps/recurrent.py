"""Recurrent layers, by library and by hand, the batch in front or in dimension 1."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.privacy.clipping.traps.nets import (
    HIDDEN,
    LENGTH,
    WORDS,
    either,
    exact,
    first_tensor,
    net_trial,
    squared,
    words,
)
from tests.privacy.clipping.traps.sequences import sequence
from tests.privacy.clipping.traps.trial import Case, Trial


def cases() -> Iterator[Case]:
    """Yields recurrent layers of all kinds, the batch in front."""
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        name = kind.__name__
        yield exact(name, lambda kind=kind: sequence(kind(HIDDEN, 3, batch_first=True)))
        yield exact(f"{name}, last state", lambda kind=kind: sequence(LastState(kind)))
        yield exact(f"{name}, batch in dimension 1", lambda kind=kind: sequence(TimeFirst(kind)))
    yield exact(
        "LSTM both ways",
        lambda: sequence(nn.LSTM(HIDDEN, 2, batch_first=True, bidirectional=True)),
    )
    yield exact(
        "two layers of GRU", lambda: sequence(nn.GRU(HIDDEN, 3, num_layers=2, batch_first=True))
    )
    yield exact(
        "LSTM with projection",
        lambda: sequence(nn.LSTM(HIDDEN, 4, proj_size=2, batch_first=True)),
    )
    yield exact(
        "GRU without bias", lambda: sequence(nn.GRU(HIDDEN, 3, bias=False, batch_first=True))
    )
    yield exact("cells step by step", lambda: sequence(Stepping()))
    yield exact("a learned first state", lambda: sequence(FirstState()))
    yield either("packed sequences", packed)


class LastState(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cells = kind(HIDDEN, 3, batch_first=True)

    def forward(self, h: Tensor) -> Tensor:
        return first_tensor(self.cells(h)[1])[-1]


class TimeFirst(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cells = kind(HIDDEN, 3)

    def forward(self, h: Tensor) -> Tensor:
        return self.cells(h.transpose(0, 1))[0].transpose(0, 1)


class Stepping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(HIDDEN, 3)

    def forward(self, h: Tensor) -> Tensor:
        state = h.new_zeros(len(h), 3), h.new_zeros(len(h), 3)
        for step in range(3):
            state = self.cell(h[:, step], state)
        return state[0]


class FirstState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.state = nn.Parameter(torch.randn(1, 1, 3))
        self.cells = nn.GRU(HIDDEN, 3, batch_first=True)

    def forward(self, h: Tensor) -> Tensor:
        return self.cells(h, self.state.expand(-1, len(h), -1).contiguous())[0]


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, HIDDEN)
        self.cells = nn.GRU(HIDDEN, 3, batch_first=True)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        run = pack_padded_sequence(self.table(ids), lengths, batch_first=True, enforce_sorted=False)
        outputs, _ = pad_packed_sequence(self.cells(run)[0], True, total_length=LENGTH)
        return outputs


def packed() -> Trial:
    rows = (words(), torch.tensor([7, 4, 6, 3, 5, 7]))
    return net_trial(model=Packed(), batches=[rows], losses=squared)
