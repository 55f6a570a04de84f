"""Layers of torch that carry the batch in front, in dimension 1, or through time."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.privacy.clipper66.cases.case import (
    Case,
    Trial,
    exact,
    mixing_gradients,
    rejected,
    unbatched,
)
from tests.privacy.clipper66.cases.nets import (
    HIDDEN,
    LENGTH,
    ROWS,
    WORDS,
    features,
    first_tensor,
    layer_trial,
    net_trial,
    only_layer_trial,
    ragged,
    squared,
    words,
)

Layer = Callable[[], nn.Module]


class Biggest(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h.amax(-1)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dense = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, h: Tensor) -> Tensor:
        return h + 0.3 * F.gelu(self.dense(self.norm(h)))


def settled(layer: nn.Module, width: int) -> nn.Module:
    layer(torch.zeros(1, width))
    return layer


VECTOR: dict[str, Layer] = {
    "Linear": lambda: nn.Linear(HIDDEN, 4),
    "Linear without bias": lambda: nn.Linear(HIDDEN, 4, bias=False),
    "LazyLinear": lambda: settled(nn.LazyLinear(4), HIDDEN),
    "LayerNorm": lambda: nn.LayerNorm(HIDDEN),
    "LayerNorm without bias": lambda: nn.LayerNorm(HIDDEN, bias=False),
    "LayerNorm without affine": lambda: nn.LayerNorm(HIDDEN, elementwise_affine=False),
    "RMSNorm": lambda: nn.RMSNorm(HIDDEN),
    "GroupNorm": lambda: nn.GroupNorm(2, HIDDEN),
    "PReLU": nn.PReLU,
    "PReLU of each feature": lambda: nn.PReLU(HIDDEN),
    "GLU": lambda: nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.GLU()),
    "Softmax": lambda: nn.Softmax(dim=1),
    "Maxout": lambda: nn.Sequential(nn.Linear(HIDDEN, 6), nn.Unflatten(1, (2, 3)), Biggest()),
    "Unflatten": lambda: nn.Sequential(nn.Unflatten(1, (2, 4)), nn.Linear(4, 3)),
    "in-place ReLU": lambda: nn.Sequential(nn.Linear(HIDDEN, 4), nn.ReLU(inplace=True)),
    "residuals": Residual,
    "twelve layers": lambda: nn.Sequential(
        *[nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh()) for _ in range(12)]
    ),
    "twenty residual layers": lambda: nn.Sequential(*[Residual() for _ in range(20)]),
}
SEQUENCE: dict[str, Layer] = {
    "Linear over time": lambda: nn.Linear(HIDDEN, 4),
    "LayerNorm over time": lambda: nn.LayerNorm(HIDDEN),
    "LayerNorm of time and width": lambda: nn.LayerNorm([LENGTH, HIDDEN]),
    "RMSNorm over time": lambda: nn.RMSNorm(HIDDEN),
    "PReLU of each place": lambda: nn.PReLU(LENGTH),
    "adaptive pooling over time": lambda: nn.Sequential(nn.AdaptiveAvgPool1d(3), nn.Linear(3, 2)),
    "adaptive maxima over time": lambda: nn.Sequential(nn.AdaptiveMaxPool1d(2), nn.Linear(2, 2)),
    "instance norm": lambda: nn.InstanceNorm1d(LENGTH, affine=True),
    "instance norm without affine": lambda: nn.InstanceNorm1d(LENGTH),
    "local response norm": lambda: nn.LocalResponseNorm(3),
    "an identity": nn.Identity,
    "time flattened": lambda: nn.Sequential(nn.Flatten(), nn.Linear(LENGTH * HIDDEN, 3)),
    "Conv1d": lambda: nn.Conv1d(LENGTH, 4, 3),
    "depthwise Conv1d": lambda: nn.Conv1d(LENGTH, LENGTH, 3, groups=LENGTH),
    "dilated Conv1d": lambda: nn.Conv1d(LENGTH, 4, 3, dilation=2),
    "strided Conv1d without bias": lambda: nn.Conv1d(LENGTH, 4, 3, stride=2, bias=False),
    "Conv1d, padding same": lambda: nn.Conv1d(LENGTH, 4, 3, padding="same"),
    "circular Conv1d": lambda: nn.Conv1d(LENGTH, 4, 3, padding=1, padding_mode="circular"),
    "ConvTranspose1d": lambda: nn.ConvTranspose1d(LENGTH, 3, 2, stride=2),
    "averages of windows": lambda: nn.Sequential(nn.AvgPool1d(2), nn.Linear(HIDDEN // 2, 2)),
}
IMAGE: dict[str, Layer] = {
    "Conv2d": lambda: nn.Conv2d(2, 3, 3),
    "grouped Conv2d": lambda: nn.Conv2d(2, 4, 3, groups=2),
    "reflecting Conv2d": lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
    "pointwise Conv2d": lambda: nn.Conv2d(2, 3, 1),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(2, 3, 2, stride=2),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(2, affine=True),
    "GroupNorm of images": lambda: nn.GroupNorm(1, 2),
    "pixel shuffle": lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.PixelShuffle(2)),
    "upsampling": lambda: nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(2, 2, 3)),
    "max pooling": lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.MaxPool2d(2)),
    "global pooling": lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.AdaptiveAvgPool2d(1)),
    "channels last": lambda: nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last),
    "unfolded patches": lambda: nn.Sequential(nn.Unfold(2), nn.Conv1d(8, 3, 1)),
}


class OneHot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WORDS, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.dense(F.one_hot(ids, WORDS).float())


class TwoTables(nn.Module):
    """Words and places, the places one row for all."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 4), nn.Embedding(LENGTH, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.words(ids) + self.places(torch.arange(ids.shape[1])))


TABLE: dict[str, Layer] = {
    "Embedding": lambda: nn.Embedding(WORDS, 4),
    "Embedding with padding": lambda: nn.Embedding(WORDS, 4, padding_idx=0),
    "EmbeddingBag": lambda: nn.EmbeddingBag(WORDS, 4),
    "EmbeddingBag of sums": lambda: nn.EmbeddingBag(WORDS, 4, mode="sum"),
    "one-hot words": OneHot,
    "two tables": TwoTables,
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


class Similar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Linear(4, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return F.cosine_similarity(self.tower(left), self.tower(right))[:, None]


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(WORDS, 4, mode="sum")

    def forward(self, ids: Tensor, weights: Tensor) -> Tensor:
        return self.bag(ids, per_sample_weights=weights)


def evaluating(norm: nn.Module, *shape: int, affine: bool = True) -> Trial:
    """A norm with running statistics in evaluation mode, its own weights trained or frozen."""
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    trial = layer_trial(norm.requires_grad_(affine), *shape)
    trial.model.eval()
    return trial


def several() -> Iterator[Case]:
    """Yield layers of three dimensions, of several inputs, and norms in evaluation mode."""
    yield exact("Conv3d", lambda: layer_trial(nn.Conv3d(2, 2, 2), 2, 3, 3, 4))
    yield exact("ConvTranspose3d", lambda: layer_trial(nn.ConvTranspose3d(2, 2, 2), 2, 2, 2, 3))
    of_width = lambda d: lambda rows: features(rows, d)  # noqa: E731
    yield exact(
        "Bilinear", lambda: only_layer_trial(nn.Bilinear(4, 5, 3), of_width(4), of_width(5))
    )
    yield exact("CosineSimilarity", lambda: only_layer_trial(Similar(), of_width(4), of_width(4)))
    weights = lambda rows: torch.rand(rows, LENGTH)  # noqa: E731
    yield exact("EmbeddingBag with weights", lambda: only_layer_trial(Bag(), words, weights))
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
    """One head by hand, with a learned bias for each distance."""

    def __init__(self, length: int = LENGTH) -> None:
        super().__init__()
        self.project = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.distances = nn.Embedding(length, 1)

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
        self.mix = OwnAttention(LENGTH + 1)

    def forward(self, h: Tensor) -> Tensor:
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.places
        return self.mix(h)[:, 0]


class Translating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = {"dim_feedforward": 6, "dropout": 0.0, "batch_first": True}
        self.model = nn.Transformer(HIDDEN, 2, 1, 1, **sizes)

    def forward(self, h: Tensor) -> Tensor:
        return self.model(h[:, :3], h[:, 3:])


def encoder(**options: object) -> nn.Module:
    settings = {"dropout": 0.0, "batch_first": True, "dim_feedforward": 6} | options
    return nn.TransformerEncoderLayer(HIDDEN, 2, **settings)


class Padded(nn.Module):
    """An encoder under a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, HIDDEN)
        self.layer = encoder()

    def forward(self, ids: Tensor) -> Tensor:
        out = self.layer(self.table(ids), src_key_padding_mask=ids == 0)
        return (out * (ids != 0)[..., None]).sum(1) / (ids != 0).sum(1, keepdim=True)


class SquareMask(nn.Module):
    """Learned places and a causal mask, as many places as rows."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(ROWS, HIDDEN))
        self.weights = nn.Parameter(torch.randn(ROWS, ROWS))

    def forward(self, h: Tensor) -> Tensor:
        return self.weights.tril() @ (h + self.places)


def attention() -> Iterator[Case]:
    """Yield attention of all kinds."""
    table: dict[str, Layer] = {
        "attention": Attending,
        "causal attention": lambda: Attending(causal=True),
        "attention, batch in dimension 1": lambda: Attending(batch_first=False),
        "attention with an extra key": lambda: Attending(add_bias_kv=True),
        "attention by hand with distances": OwnAttention,
        "learned queries": Latents,
        "a class token and places": ClassToken,
        "an encoder layer": encoder,
        "an encoder layer, norm first": lambda: encoder(norm_first=True),
        "a frozen encoder layer": lambda: encoder().requires_grad_(False),
        "an encoder and a decoder": Translating,
    }
    for name, make in table.items():
        yield exact(name, lambda m=make: sequence(m()))
    yield exact(
        "an encoder under a padding mask",
        lambda: net_trial(model=Padded(), draw=lambda rows: (ragged(rows, 0, 1),), losses=squared),
    )
    yield exact("as many places as rows", lambda: layer_trial(SquareMask(), ROWS, HIDDEN))


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
        return pad_packed_sequence(self.cells(run)[0], True, total_length=LENGTH)[0]


class WholeTimeFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(HIDDEN, 4)
        self.cells = nn.GRU(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(torch.tanh(self.dense(x)))[0]


def recurrent() -> Iterator[Case]:
    """Yield recurrent layers of all kinds; no batched rule has to know them."""
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        name = kind.__name__
        yield unbatched(name, lambda k=kind: sequence(k(HIDDEN, 3, batch_first=True)))
        yield unbatched(f"{name}, last state", lambda k=kind: sequence(LastState(k)))
        yield unbatched(f"{name}, batch in dimension 1", lambda k=kind: sequence(TimeFirst(k)))
    options: dict[str, Layer] = {
        "LSTM both ways": lambda: nn.LSTM(HIDDEN, 2, batch_first=True, bidirectional=True),
        "two layers of GRU": lambda: nn.GRU(HIDDEN, 3, num_layers=2, batch_first=True),
        "LSTM with projection": lambda: nn.LSTM(HIDDEN, 4, proj_size=2, batch_first=True),
        "GRU without bias": lambda: nn.GRU(HIDDEN, 3, bias=False, batch_first=True),
        "cells step by step": Stepping,
        "a learned first state": FirstState,
    }
    for name, make in options.items():
        yield unbatched(name, lambda m=make: sequence(m()))
    lengths = lambda rows: torch.tensor([5, 7, 3, 6, 4, 7][:rows])  # noqa: E731
    yield unbatched("packed sequences", lambda: only_layer_trial(Packed(), words, lengths))

    def time_first(model: nn.Module, x: Tensor) -> Tensor:
        return F.relu(model(x.transpose(0, 1)) + 0.1).square().mean((0, 2))

    yield unbatched(
        "the batch in dimension 1 throughout",
        lambda: net_trial(
            model=WholeTimeFirst(),
            losses=time_first,
            draw=lambda rows: (features(rows, LENGTH, HIDDEN),),
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
