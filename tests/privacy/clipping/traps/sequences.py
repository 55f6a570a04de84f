"""Attention, and models that carry the batch in another dimension."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.clipping.traps.layers import around
from tests.privacy.clipping.traps.nets import (
    HIDDEN,
    LENGTH,
    ROWS,
    WORDS,
    either,
    exact,
    features,
    net_trial,
    squared,
    words,
)
from tests.privacy.clipping.traps.trial import Case, Trial


def sequence(layer: nn.Module, **changes: object) -> Trial:
    return around(layer, LENGTH, HIDDEN, **changes)


class Attending(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, *, causal: bool = False, batch_first: bool = True, **options: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(HIDDEN, 2, batch_first=batch_first, **options)
        self.causal = causal

    def forward(self, h: Tensor) -> Tensor:
        h = h if self.attention.batch_first else h.transpose(0, 1)
        length = LENGTH if self.attention.batch_first else len(h)
        mask = torch.ones(length, length).triu(1).bool() if self.causal else None
        out = self.attention(h, h, h, attn_mask=mask)[0]
        return out if self.attention.batch_first else out.transpose(0, 1)


class OwnAttention(nn.Module):
    """One head by hand, with a bias that is learned for each distance."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.distances = nn.Embedding(LENGTH, 1)

    def forward(self, h: Tensor) -> Tensor:
        query, key, value = self.project(h).chunk(3, -1)
        places = torch.arange(h.shape[1])
        bias = self.distances((places[:, None] - places).abs())[..., 0]
        return torch.softmax(query @ key.mT + bias, -1) @ value


class Latents(nn.Module):
    """Learned queries read a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(2, HIDDEN))
        self.attention = nn.MultiheadAttention(HIDDEN, 2, batch_first=True)

    def forward(self, h: Tensor) -> Tensor:
        return self.attention(self.queries.expand(len(h), -1, -1), h, h)[0]


class ClassToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, HIDDEN))
        self.places = nn.Parameter(torch.randn(LENGTH + 1, HIDDEN))
        self.mix = OwnAttention()
        self.mix.distances = nn.Embedding(LENGTH + 1, 1)

    def forward(self, h: Tensor) -> Tensor:
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.places
        return self.mix(h)[:, 0]


def encoder(**options: object) -> nn.Module:
    settings = {"dropout": 0.0, "batch_first": True, "dim_feedforward": 6} | options
    return nn.TransformerEncoderLayer(HIDDEN, 2, **settings)


class Translating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Transformer(
            HIDDEN, 2, 1, 1, dim_feedforward=6, dropout=0.0, batch_first=True
        )

    def forward(self, h: Tensor) -> Tensor:
        return self.model(h[:, :3], h[:, 3:])


class Padded(nn.Module):
    """An encoder under a mask of padding, ragged."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, HIDDEN)
        self.layer = encoder()

    def forward(self, ids: Tensor) -> Tensor:
        out = self.layer(self.table(ids), src_key_padding_mask=ids == 0)
        return (out * (ids != 0)[..., None]).sum(1) / (ids != 0).sum(1, keepdim=True)


def ragged() -> Trial:
    ids = words().clamp(min=1)
    for row, length in enumerate((7, 4, 6, 3, 5, 1)):
        ids[row, length:] = 0
    return net_trial(model=Padded(), batches=[(ids,)], losses=squared)


def attention() -> Iterator[Case]:
    """Yields attention of all kinds."""
    yield exact("attention", lambda: sequence(Attending()))
    yield exact("causal attention", lambda: sequence(Attending(causal=True)))
    yield exact("attention, batch in dimension 1", lambda: sequence(Attending(batch_first=False)))
    yield exact("attention with an extra key", lambda: sequence(Attending(add_bias_kv=True)))
    yield exact("attention by hand with distances", lambda: sequence(OwnAttention()))
    yield exact("learned queries", lambda: sequence(Latents()))
    yield exact("a class token and places", lambda: sequence(ClassToken()))
    yield exact("an encoder layer", lambda: sequence(encoder()))
    yield exact("an encoder layer, norm first", lambda: sequence(encoder(norm_first=True)))
    yield exact("a frozen encoder layer", lambda: sequence(encoder().requires_grad_(False)))
    yield exact("an encoder and a decoder", lambda: sequence(Translating()))
    yield exact("an encoder under ragged padding", ragged)
    yield exact(
        "as many places as rows",
        lambda: around(SquareMask(), ROWS, HIDDEN),
    )
    yield either("the batch in dimension 1 throughout", time_first)


class SquareMask(nn.Module):
    """Learned places and a causal mask where places are as many as rows."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(ROWS, HIDDEN))
        self.weights = nn.Parameter(torch.randn(ROWS, ROWS))

    def forward(self, h: Tensor) -> Tensor:
        return self.weights.tril() @ (h + self.places)


def time_first() -> Trial:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(HIDDEN, 4)
            self.cells = nn.GRU(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.cells(torch.tanh(self.dense(x)))[0]

    def losses(model: nn.Module, x: Tensor) -> Tensor:
        return F.relu(model(x.transpose(0, 1)) + 0.1).square().mean((0, 2))

    return net_trial(model=Whole(), batches=[(features(LENGTH, HIDDEN),)], losses=losses)


def cases() -> Iterator[Case]:
    """Yields all cases of this file."""
    yield from attention()
