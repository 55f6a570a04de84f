"""Layers of torch that carry the batch in front, in dimension 1, or through time."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.privacy.clipping.cases.case import (
    Case,
    Trial,
    exact,
    mixing_gradients,
    rejected,
    unbatched,
)
from tests.privacy.clipping.cases.nets import (
    HIDDEN,
    LENGTH,
    ROWS,
    WORDS,
    Built,
    features,
    first_tensor,
    layer_trial,
    only_layer_trial,
    ragged,
    words,
)

Layer = Callable[[], nn.Module]


VECTOR: dict[str, Layer] = {
    "LayerNorm without affine": lambda: nn.LayerNorm(HIDDEN, elementwise_affine=False),
    "PReLU of each feature": lambda: nn.PReLU(HIDDEN),
    "Unflatten": lambda: nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Linear(4, 3)),
    "in-place ReLU": lambda: nn.Sequential(nn.Linear(HIDDEN, 4), nn.ReLU(inplace=True)),
}
SEQUENCE: dict[str, Layer] = {
    "PReLU of each place": lambda: nn.PReLU(LENGTH),
    "adaptive pooling over time": lambda: nn.Sequential(nn.AdaptiveAvgPool1d(3), nn.Linear(3, 2)),
    "instance norm": lambda: nn.InstanceNorm1d(LENGTH, affine=True),
    "ConvTranspose1d": lambda: nn.ConvTranspose1d(LENGTH, 3, 2, stride=2),
}
IMAGE: dict[str, Layer] = {
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(2, 3, 2, stride=2),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(2, affine=True),
    "channels last": lambda: nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last),
    "unfolded patches": lambda: nn.Sequential(nn.Unfold(2), nn.Conv1d(8, 3, 1)),
}


TABLE: dict[str, Layer] = {
    "EmbeddingBag": lambda: nn.EmbeddingBag(WORDS, 4),
    "two tables, of words and of places": lambda: Built(
        lambda m, ids: torch.tanh(m.words(ids) + m.places(torch.arange(ids.shape[1]))),
        words=nn.Embedding(WORDS, 4),
        places=nn.Embedding(LENGTH, 4),
    ),
}
REJECTED_TABLE: dict[str, Layer] = {
    "Embedding with a largest norm": lambda: nn.Embedding(WORDS, 4, max_norm=1.0),
    "frozen Embedding with a largest norm": lambda: nn.Sequential(
        nn.Embedding(WORDS, 4, max_norm=1.0).requires_grad_(False), nn.Linear(4, 4)
    ),
}
UNBATCHED_TABLE: dict[str, Layer] = {
    "sparse Embedding": lambda: nn.Embedding(WORDS, 4, sparse=True),
    "EmbeddingBag of maxima": lambda: nn.EmbeddingBag(WORDS, 4, mode="max"),
}


def evaluating(norm: nn.Module, *shape: int, affine: bool = True) -> Trial:
    """A norm with running statistics in evaluation mode, its own weights trained or frozen."""
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    trial = layer_trial(norm.requires_grad_(affine), *shape)
    trial.model.eval()
    return trial


def several() -> Iterator[Case]:
    """Yield layers of three dimensions, of several inputs, and norms in evaluation mode."""
    yield exact("ConvTranspose3d", lambda: layer_trial(nn.ConvTranspose3d(2, 2, 2), 2, 2, 2, 3))
    of_width = lambda d: lambda rows: features(rows, d)  # noqa: E731
    yield exact(
        "Bilinear", lambda: only_layer_trial(nn.Bilinear(4, 5, 3), of_width(4), of_width(5))
    )
    weights = lambda rows: torch.rand(rows, LENGTH)  # noqa: E731
    yield exact(
        "EmbeddingBag with weights",
        lambda: only_layer_trial(
            Built(
                lambda m, ids, weights: m.bag(ids, per_sample_weights=weights),
                bag=nn.EmbeddingBag(WORDS, 4, mode="sum"),
            ),
            words,
            weights,
        ),
    )
    for affine in (True, False):
        kind = "trained" if affine else "frozen"
        yield exact(
            f"BatchNorm1d in evaluation mode, {kind}",
            lambda a=affine: evaluating(nn.BatchNorm1d(HIDDEN), HIDDEN, affine=a),
        )
        yield exact(
            f"BatchNorm2d in evaluation mode, {kind}",
            lambda a=affine: evaluating(nn.BatchNorm2d(2), 2, 5, 5, affine=a),
        )
    norm = lambda: nn.InstanceNorm1d(LENGTH, affine=True, track_running_stats=True)  # noqa: E731
    yield exact("InstanceNorm1d in evaluation mode", lambda: evaluating(norm(), LENGTH, HIDDEN))


def sequence(layer: nn.Module) -> Trial:
    return layer_trial(layer, LENGTH, HIDDEN)


def attending(h: Tensor, attention: nn.Module) -> Tensor:
    """Return a sequence's causal attention to itself; a layer may take the batch in dimension 1."""
    h = h if attention.batch_first else h.transpose(0, 1)
    mask = torch.ones(LENGTH, LENGTH).triu(1).bool()
    out = attention(h, h, h, attn_mask=mask)[0]
    return out if attention.batch_first else out.transpose(0, 1)


def self_attention(**options: bool) -> nn.Module:
    attention = nn.MultiheadAttention(HIDDEN, 2, **{"batch_first": True} | options)
    return Built(lambda m, h: attending(h, m.attention), attention=attention)


def with_distances(m: nn.Module, h: Tensor) -> Tensor:
    """Return one head by hand, with a learned bias for each distance."""
    query, key, value = m.project(h).chunk(3, -1)
    places = torch.arange(h.shape[1])
    bias = m.distances((places[:, None] - places).abs())[..., 0]
    return torch.softmax(query @ key.mT + bias, -1) @ value


def with_class_token(m: nn.Module, h: Tensor) -> Tensor:
    h = torch.cat([m.token.expand(len(h), -1, -1), h], 1) + m.places
    return with_distances(m, h)[:, 0]


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(HIDDEN, 2, 6, dropout=0.0, batch_first=True)


def padded(m: nn.Module, ids: Tensor) -> Tensor:
    """Return the mean of an encoder's outputs under a padding mask."""
    out = m.layer(m.table(ids), src_key_padding_mask=ids == 0)
    return (out * (ids != 0)[..., None]).sum(1) / (ids != 0).sum(1, keepdim=True)


def attention() -> Iterator[Case]:
    """Yield attention of all kinds."""
    project = lambda: nn.Linear(HIDDEN, 3 * HIDDEN)  # noqa: E731
    table: dict[str, Layer] = {
        "attention": self_attention,
        "attention, batch in dimension 1": lambda: self_attention(batch_first=False),
        "attention with an extra key": lambda: self_attention(add_bias_kv=True),
        "attention by hand with distances": lambda: Built(
            with_distances, project=project(), distances=nn.Embedding(LENGTH, 1)
        ),
        "learned queries": lambda: Built(
            lambda m, h: m.attention(m.queries.expand(len(h), -1, -1), h, h)[0],
            queries=torch.randn(2, HIDDEN),
            attention=nn.MultiheadAttention(HIDDEN, 2, batch_first=True),
        ),
        "a class token and places": lambda: Built(
            with_class_token,
            token=torch.randn(1, 1, HIDDEN),
            places=torch.randn(LENGTH + 1, HIDDEN),
            project=project(),
            distances=nn.Embedding(LENGTH + 1, 1),
        ),
        "an encoder layer": encoder,
        "an encoder and a decoder": lambda: Built(
            lambda m, h: m.model(h[:, :3], h[:, 3:]),
            model=nn.Transformer(HIDDEN, 2, 1, 1, dim_feedforward=6, dropout=0.0, batch_first=True),
        ),
    }
    for name, make in table.items():
        yield exact(name, lambda m=make: sequence(m()))
    with_mask = lambda: Built(padded, table=nn.Embedding(WORDS, HIDDEN), layer=encoder())  # noqa: E731
    yield exact(
        "an encoder under a padding mask",
        lambda: only_layer_trial(with_mask(), lambda rows: ragged(rows, 0, 1)),
    )
    square = lambda: Built(  # noqa: E731
        lambda m, h: m.weights.tril() @ (h + m.places),
        places=torch.randn(ROWS, HIDDEN),
        weights=torch.randn(ROWS, ROWS),
    )
    yield exact("as many places as rows", lambda: layer_trial(square(), ROWS, HIDDEN))


def step_by_step(m: nn.Module, h: Tensor) -> Tensor:
    state = h.new_zeros(len(h), 3), h.new_zeros(len(h), 3)
    for step in range(3):
        state = m.cell(h[:, step], state)
    return state[0]


def packed(m: nn.Module, ids: Tensor, lengths: Tensor) -> Tensor:
    run = pack_padded_sequence(m.table(ids), lengths, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(m.cells(run)[0], True, total_length=LENGTH)[0]


def time_first_losses(model: nn.Module, x: Tensor) -> Tensor:
    return F.relu(model(x.transpose(0, 1)) + 0.1).square().mean((0, 2))


def recurrent() -> Iterator[Case]:
    """Yield recurrent layers of all kinds; no batched rule has to know them."""
    batch_first: dict[str, bool] = {"batch_first": True}
    layers: dict[str, Layer] = {
        "LSTM": lambda: nn.LSTM(HIDDEN, 3, **batch_first),
        "LSTM, last state": lambda: Built(
            lambda m, h: first_tensor(m.cells(h)[1])[-1], cells=nn.LSTM(HIDDEN, 3, **batch_first)
        ),
        "LSTM, batch in dimension 1": lambda: Built(
            lambda m, h: m.cells(h.transpose(0, 1))[0].transpose(0, 1), cells=nn.LSTM(HIDDEN, 3)
        ),
        "cells step by step": lambda: Built(step_by_step, cell=nn.LSTMCell(HIDDEN, 3)),
        "a learned first state": lambda: Built(
            lambda m, h: m.cells(h, m.state.expand(-1, len(h), -1).contiguous())[0],
            state=torch.randn(1, 1, 3),
            cells=nn.GRU(HIDDEN, 3, **batch_first),
        ),
    }
    for name, make in layers.items():
        yield unbatched(name, lambda m=make: sequence(m()))
    table = lambda: nn.Embedding(WORDS, HIDDEN)  # noqa: E731
    run = lambda: Built(packed, table=table(), cells=nn.GRU(HIDDEN, 3, **batch_first))  # noqa: E731
    lengths = lambda rows: torch.tensor([5, 7, 3, 6, 4, 7][:rows])  # noqa: E731
    yield unbatched("packed sequences", lambda: only_layer_trial(run(), words, lengths))
    whole = lambda: Built(  # noqa: E731
        lambda m, x: m.cells(torch.tanh(m.dense(x)))[0],
        dense=nn.Linear(HIDDEN, 4),
        cells=nn.GRU(4, 3),
    )
    yield unbatched(
        "the batch in dimension 1 throughout",
        lambda: only_layer_trial(
            whole(), lambda rows: features(rows, LENGTH, HIDDEN), losses=time_first_losses
        ),
    )


def cases() -> Iterator[Case]:
    """Yield all cases of this file."""
    for name, layer in VECTOR.items():
        yield exact(name, lambda each=layer: layer_trial(each(), HIDDEN))
    for name, layer in SEQUENCE.items():
        yield exact(name, lambda each=layer: sequence(each()))
    for name, layer in IMAGE.items():
        yield exact(name, lambda each=layer: layer_trial(each(), 2, 5, 5))
    for make, table in ((exact, TABLE), (rejected, REJECTED_TABLE), (unbatched, UNBATCHED_TABLE)):
        for name, layer in table.items():
            yield make(name, lambda each=layer: only_layer_trial(each(), words))
    yield mixing_gradients(
        "Embedding scaled by frequency",
        lambda: only_layer_trial(nn.Embedding(WORDS, 4, scale_grad_by_freq=True), words),
    )
    yield from several()
    yield from attention()
    yield from recurrent()
