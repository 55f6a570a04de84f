"""Pairs and triplets: contrast within a batch, within a record, and preferences."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.clipping.cases.case import Case, Trial, exact, mixing, unbatched
from tests.privacy.clipping.cases.nets import (
    HIDDEN,
    LENGTH,
    WIDTH,
    Words,
    ce,
    features,
    net_trial,
    words,
)


class Towers(nn.Module):
    """Two encoders, such as in CLIP."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN)

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.left(left), dim=1), F.normalize(self.right(right), dim=1)


def towers(losses: Callable[[Tensor, Tensor], Tensor]) -> Trial:
    return net_trial(
        model=Towers(),
        losses=lambda model, x, y: losses(*model(x, y)),
        draw=lambda rows: (features(rows, WIDTH), features(rows, WIDTH)),
    )


def clip_loss(left: Tensor, right: Tensor) -> Tensor:
    scores, own = left @ right.T / 0.3, torch.arange(len(left))
    return ce(scores, own) + ce(scores.T, own)


def sigmoid_pairs(left: Tensor, right: Tensor) -> Tensor:
    signs = 2 * torch.eye(len(left)) - 1
    return -F.logsigmoid(signs * (left @ right.T) * 3).sum(1)


NEGATIVES = torch.linspace(-1, 1, 4 * HIDDEN).view(4, HIDDEN)


def fixed_negatives(left: Tensor, right: Tensor) -> Tensor:
    scores = torch.cat([(left * right).sum(1, keepdim=True), left @ NEGATIVES.T], 1)
    return ce(scores, torch.zeros(len(left), dtype=torch.long))


def log_likelihood(model: nn.Module, ids: Tensor) -> Tensor:
    return -ce(model(ids)[:, :-1].mT, ids[:, 1:]).sum(1)


def preference(chosen: Tensor, rejected: Tensor) -> Tensor:
    return -F.logsigmoid(0.5 * (chosen - rejected))


def two_calls(model: nn.Module, chosen: Tensor, rejected: Tensor) -> Tensor:
    return preference(log_likelihood(model, chosen), log_likelihood(model, rejected))


def one_call(model: nn.Module, chosen: Tensor, rejected: Tensor) -> Tensor:
    """A loss for each record from one call of twice as many rows."""
    return preference(*log_likelihood(model, torch.cat([chosen, rejected])).chunk(2))


def less_reference(model: nn.Module, chosen: Tensor, rejected: Tensor) -> Tensor:
    with torch.no_grad():
        before = log_likelihood(model, chosen) - log_likelihood(model, rejected)
    now = log_likelihood(model, chosen) - log_likelihood(model, rejected)
    return -F.logsigmoid(0.5 * (now - 0.9 * before))


def mean_margin(model: nn.Module, chosen: Tensor, rejected: Tensor) -> Tensor:
    margin = log_likelihood(model, chosen) - log_likelihood(model, rejected)
    return -F.logsigmoid(0.5 * (margin - margin.detach().mean()))


def divergence(model: nn.Module, chosen: Tensor, rejected: Tensor) -> Tensor:
    """KTO's reference point: the mean of the batch's mismatched pairs."""
    point = log_likelihood(model, rejected.roll(1, 0)).detach().mean().clamp(min=-30)
    return 1 - torch.sigmoid(0.1 * (log_likelihood(model, chosen) - point))


class Chooser(Words):
    """Multiple choice: (b, choices, t) ids, flattened inside the model."""

    def forward(self, ids: Tensor) -> Tensor:
        logits = super().forward(ids.flatten(0, 1))
        return logits.mean((1, 2)).view(ids.shape[:2])


def texts(losses: Callable[..., Tensor], count: int = 2) -> Trial:
    draw = lambda rows: tuple(words(rows) for _ in range(count))  # noqa: E731
    return net_trial(model=Words(), losses=losses, draw=draw)


def cases() -> Iterator[Case]:
    """Yield all cases of this file."""
    yield mixing("CLIP", lambda: towers(clip_loss))
    yield mixing("SigLIP", lambda: towers(sigmoid_pairs))
    yield exact(
        "two towers, own pairs", lambda: towers(lambda left, right: 1 - (left * right).sum(1))
    )
    yield exact("two towers, negatives from a table", lambda: towers(fixed_negatives))
    yield exact("preferences by two calls", lambda: texts(two_calls))
    yield exact("preferences less a reference", lambda: texts(less_reference))
    yield unbatched("preferences by one call of twice the rows", lambda: texts(one_call))
    yield mixing("preferences less the batch's margin", lambda: texts(mean_margin))
    yield mixing("preferences less mismatched pairs", lambda: texts(divergence))
    yield exact(
        "texts in a dimension of their own",
        lambda: net_trial(
            model=Chooser(),
            losses=lambda model, ids: -model(ids).log_softmax(1)[:, 0],
            draw=lambda rows: (torch.randint(0, 11, (rows, 3, LENGTH)),),
        ),
    )
