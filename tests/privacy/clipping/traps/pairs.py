"""Pairs and triplets: contrast within a batch, within a record, and preferences."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.clipping.traps.nets import (
    HIDDEN,
    LENGTH,
    ROWS,
    WIDTH,
    Words,
    either,
    exact,
    features,
    mixing,
    net_trial,
    words,
)
from tests.privacy.clipping.traps.trial import Case, Trial


class Towers(nn.Module):
    """Two encoders and a temperature, as in CLIP."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN)

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.left(left), dim=1), F.normalize(self.right(right), dim=1)


def towers(losses: Callable[[Tensor, Tensor], Tensor]) -> Trial:
    return net_trial(
        model=Towers(),
        losses=lambda model, x, y: losses(*model(x, y)),
        batches=[(features(WIDTH), features(WIDTH))],
    )


def clip_loss(left: Tensor, right: Tensor) -> Tensor:
    scores, own = left @ right.T / 0.3, torch.arange(len(left))
    rows = F.cross_entropy(scores, own, reduction="none")
    return rows + F.cross_entropy(scores.T, own, reduction="none")


def one_tower(left: Tensor, right: Tensor) -> Tensor:
    """Contrast where the other rows' encodings have no gradient."""
    scores = left @ right.detach().T / 0.3
    return F.cross_entropy(scores, torch.arange(len(left)), reduction="none")


def sigmoid_pairs(left: Tensor, right: Tensor) -> Tensor:
    signs = 2 * torch.eye(len(left)) - 1
    return -F.logsigmoid(signs * (left @ right.T) * 3).sum(1)


def own_pairs(left: Tensor, right: Tensor) -> Tensor:
    return 1 - (left * right).sum(1)


NEGATIVES = torch.linspace(-1, 1, 4 * HIDDEN).view(4, HIDDEN)


def fixed_negatives(left: Tensor, right: Tensor) -> Tensor:
    scores = torch.cat([(left * right).sum(1, keepdim=True), left @ NEGATIVES.T], 1)
    return F.cross_entropy(scores, torch.zeros(len(left), dtype=torch.long), reduction="none")


def contrast() -> Iterator[Case]:
    """Yields two towers and their losses."""
    yield mixing("CLIP", lambda: towers(clip_loss))
    yield mixing("contrast with detached others", lambda: towers(one_tower))
    yield mixing("SigLIP", lambda: towers(sigmoid_pairs))
    yield exact("two towers, own pairs", lambda: towers(own_pairs))
    yield exact("two towers, negatives from a table", lambda: towers(fixed_negatives))
    yield exact("negatives that each row brings", own_negatives)


def own_negatives() -> Trial:
    def losses(model: nn.Module, left: Tensor, right: Tensor) -> Tensor:
        near, _ = model(left, left)
        _, far = model(right, right)
        scores = torch.einsum("bh,bnh->bn", near, far)
        return -scores.log_softmax(1)[:, 0]

    rows = (features(WIDTH), features(3, WIDTH))
    return net_trial(model=Towers(), losses=losses, batches=[rows])


def log_likelihood(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(ids)[:, :-1]
    return -F.cross_entropy(logits.mT, ids[:, 1:], reduction="none").sum(1)


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
    """As KTO's reference point: the mean of the batch's mismatched pairs."""
    point = log_likelihood(model, rejected.roll(1, 0)).detach().mean().clamp(min=-30)
    return 1 - torch.sigmoid(0.1 * (log_likelihood(model, chosen) - point))


def preferring(losses: Callable[..., Tensor], **changes: object) -> Trial:
    return net_trial(model=Words(), losses=losses, batches=[(words(), words())], **changes)


def preferences() -> Iterator[Case]:
    """Yields preference losses of records with two texts each."""
    yield exact("preferences by two calls", lambda: preferring(two_calls))
    yield exact("preferences less a reference", lambda: preferring(less_reference))
    yield either("preferences by one call, without units", lambda: preferring(one_call))
    for engine in ("book_keeping", "two_pass", "instantiate", "loop"):
        yield exact(
            f"preferences by one call, units of two rows, engine {engine}",
            lambda engine=engine: preferring(
                one_call, engine=engine, units=torch.arange(ROWS).repeat(2), alone=alone_of_two
            ),
        )
    yield mixing("preferences less the batch's margin", lambda: preferring(mean_margin))
    yield mixing("preferences less mismatched pairs", lambda: preferring(divergence))
    yield exact("three texts for each record", three_texts)
    yield exact("texts in a dimension of their own", choices)


def alone_of_two(model: nn.Module, one: tuple, record: int) -> Tensor:
    return two_calls(model, *(part[record : record + 1] for part in one))[0]


def three_texts() -> Trial:
    def losses(model: nn.Module, *texts: Tensor) -> Tensor:
        scores = torch.stack([log_likelihood(model, text) for text in texts], 1)
        return -scores.log_softmax(1)[:, 0]

    return net_trial(model=Words(), losses=losses, batches=[(words(), words(), words())])


def choices() -> Trial:
    """Multiple choice: (b, choices, t) ids, flattened inside the model."""

    class Chooser(Words):
        def forward(self, ids: Tensor) -> Tensor:
            logits = super().forward(ids.flatten(0, 1))
            return logits.mean((1, 2)).view(ids.shape[:2])

    def losses(model: nn.Module, ids: Tensor) -> Tensor:
        return -model(ids).log_softmax(1)[:, 0]

    return net_trial(
        model=Chooser(), losses=losses, batches=[(torch.randint(0, 11, (ROWS, 3, LENGTH)),)]
    )


def cases() -> Iterator[Case]:
    """Yields all cases of this file."""
    yield from contrast()
    yield from preferences()
