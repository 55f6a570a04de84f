"""Layers of torch that carry the batch in front, all of them legitimate."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.clipping.traps.nets import (
    HIDDEN,
    LENGTH,
    ROWS,
    WORDS,
    Around,
    either,
    exact,
    features,
    net_trial,
    squared,
    words,
)
from tests.privacy.clipping.traps.trial import Case, Trial

Layer = Callable[[], nn.Module]
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
    "residuals": lambda: Residual(),
    "twelve layers": lambda: nn.Sequential(
        *[nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh()) for _ in range(12)]
    ),
    "twenty residual layers": lambda: nn.Sequential(*[Residual() for _ in range(20)]),
}


class Biggest(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h.amax(-1)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dense = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, h: Tensor) -> Tensor:
        return h + 0.3 * F.gelu(self.dense(self.norm(h)))


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
    "a fold of windows": lambda: nn.Sequential(nn.AvgPool1d(2), nn.Linear(HIDDEN // 2, 2)),
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
TABLE: dict[str, Layer] = {
    "Embedding": lambda: nn.Embedding(WORDS, 4),
    "Embedding with padding": lambda: nn.Embedding(WORDS, 4, padding_idx=0),
    "Embedding with a largest norm": lambda: nn.Embedding(WORDS, 4, max_norm=1.0),
    "Embedding scaled by frequency": lambda: nn.Embedding(WORDS, 4, scale_grad_by_freq=True),
    "sparse Embedding": lambda: nn.Embedding(WORDS, 4, sparse=True),
    "EmbeddingBag": lambda: nn.EmbeddingBag(WORDS, 4),
    "EmbeddingBag of sums": lambda: nn.EmbeddingBag(WORDS, 4, mode="sum"),
    "EmbeddingBag of maxima": lambda: nn.EmbeddingBag(WORDS, 4, mode="max"),
    "one-hot words": lambda: OneHot(),
    "two tables": lambda: TwoTables(),
}
REFUSABLE = {"sparse Embedding", "Embedding with a largest norm", "Embedding scaled by frequency"}


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


def settled(layer: nn.Module, width: int) -> nn.Module:
    layer(torch.zeros(1, width))
    return layer


def around(layer: nn.Module, *shape: int, **changes: object) -> Trial:
    """A trial of a layer behind a dense one, on inputs (b, *shape)."""
    model = Around(layer, shape[-1])
    return net_trial(model=model, batches=[(features(*shape),)], losses=squared, **changes)


def alone(layer: nn.Module, *inputs: Tensor, **changes: object) -> Trial:
    """A trial of a layer that is the model."""
    return net_trial(model=layer, batches=[inputs], losses=squared, **changes)


def named(name: str, build: Callable[[], Trial]) -> Case:
    """A case that must be exact, but for layers that may be refused."""
    return (either if name in REFUSABLE else exact)(name, build)


def frozen(norm: nn.Module, *shape: int, affine: bool) -> Trial:
    """A norm with running statistics, evaluating; its own weights train or not."""
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    norm.eval()
    norm.requires_grad_(affine)
    trial = around(norm, *shape)
    trial.model.eval()
    return trial


def norms() -> Iterator[Case]:
    """Yields batch norms that only scale: evaluating, they read no row of the batch."""
    for affine in (True, False):
        way = "trained" if affine else "frozen"
        yield exact(
            f"evaluating BatchNorm1d, {way}",
            lambda a=affine: frozen(nn.BatchNorm1d(HIDDEN), HIDDEN, affine=a),
        )
        yield exact(
            f"evaluating BatchNorm2d, {way}",
            lambda a=affine: frozen(nn.BatchNorm2d(2), 2, 5, 5, affine=a),
        )
    yield exact(
        "evaluating InstanceNorm1d with statistics",
        lambda: frozen(
            nn.InstanceNorm1d(LENGTH, affine=True, track_running_stats=True),
            LENGTH, HIDDEN, affine=True,
        ),
    )  # fmt: skip


def spatial() -> Iterator[Case]:
    """Yields layers of three dimensions, and of several inputs."""
    yield exact("Conv3d", lambda: around(nn.Conv3d(2, 2, 2), 2, 3, 3, 4))
    yield exact("ConvTranspose3d", lambda: around(nn.ConvTranspose3d(2, 2, 2), 2, 2, 2, 3))
    yield exact(
        "Bilinear",
        lambda: alone(nn.Bilinear(4, 5, 3), features(4), features(5)),
    )
    yield exact("CosineSimilarity", lambda: alone(Similar(), features(4), features(4)))
    yield exact(
        "EmbeddingBag with weights",
        lambda: alone(Bag(), words(), torch.rand(ROWS, LENGTH)),
    )


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


def cases() -> Iterator[Case]:
    """Yields all cases of this file."""
    for name, layer in VECTOR.items():
        yield named(name, lambda each=layer: around(each(), HIDDEN))
    for name, layer in SEQUENCE.items():
        yield named(name, lambda each=layer: around(each(), LENGTH, HIDDEN))
    for name, layer in IMAGE.items():
        yield named(name, lambda each=layer: around(each(), 2, 5, 5))
    for name, layer in TABLE.items():
        yield named(name, lambda each=layer: alone(each(), words()))
    yield from norms()
    yield from spatial()
