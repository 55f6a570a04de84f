"""Mixing rows under the other engines; the loop, too, must not take a batch's word for it."""

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor, nn

from tests.privacy.clipping.traps.calls import parts
from tests.privacy.clipping.traps.losses import COUPLED, of
from tests.privacy.clipping.traps.mixing import MIXES, detached, normalized
from tests.privacy.clipping.traps.nets import (
    HIDDEN,
    Net,
    batch,
    either,
    exact,
    mixing,
    net_trial,
)
from tests.privacy.clipping.traps.trial import Case

IN_THE_MODEL = (
    "half the batch's mean",
    "a thousandth of the batch's mean",
    "row 4 read by later rows",
    "rows sorted by value",
    "rows flipped",
    "experts with a capacity",
    "less the first row",
)
IN_THE_LOSS = (
    "contrast within the batch",
    "mean loss for every row",
    "losses of the rows before",
    "loss over the detached mean loss",
    "logits less the batch's mean",
)


def under_the_loop() -> Iterator[Case]:
    """Yields mixing rows under the loop, with more than one row in the batch."""
    for name in IN_THE_MODEL:
        for way, mix in (("", MIXES[name]), (", detached", detached(MIXES[name]))):
            yield mixing(
                f"loop: {name}{way}",
                lambda mix=mix: net_trial(mix, engine="loop"),
                slow=name == "rows sorted by value" or name == "less the first row" and not way,
            )
    for name in IN_THE_LOSS:
        yield mixing(
            f"loop: {name}", lambda name=name: net_trial(losses=of(COUPLED[name]), engine="loop")
        )
    yield mixing(
        "loop: parts alone, mean",
        lambda: net_trial(losses=parts(lambda h: h + 0.5 * h.mean(0)), engine="loop"),
    )
    yield mixing("loop: BatchNorm1d", batch_norm)
    yield either(
        "loop: a model that mixes, one row at a time",
        lambda: net_trial(MIXES["half the batch's mean"], engine="loop", batches=[batch(1)]),
    )


def batch_norm():
    trial = normalized(nn.BatchNorm1d(HIDDEN))
    trial.engine = "loop"
    return trial


def under_the_others() -> Iterator[Case]:
    """Yields some mixing rows under the engines that are not the first."""
    for engine in ("two_pass", "instantiate", "auto"):
        for name in ("row 4 read by later rows", "a hundredth of the batch's mean"):
            yield mixing(
                f"{engine}: {name}, detached",
                lambda engine=engine, name=name: net_trial(detached(MIXES[name]), engine=engine),
                slow=engine == "auto",
            )
        yield mixing(
            f"{engine}: contrast within the batch",
            lambda engine=engine: net_trial(
                losses=of(COUPLED["contrast within the batch"]), engine=engine
            ),
            slow=engine == "auto",
        )


class Frozen(Net):
    """A frozen stem under a trainable head: rows mix where nothing has a gradient."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.enter.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        return self.leave(F.relu(h - self.share * h.mean(0)) if self.share else F.relu(h))


def partly_trained() -> Iterator[Case]:
    """Yields models of which a part trains."""
    for engine in ("book_keeping", "instantiate", "loop"):
        yield mixing(
            f"{engine}: a mean under a frozen stem",
            lambda engine=engine: net_trial(model=Frozen(0.3), engine=engine),
        )
        yield exact(
            f"{engine}: a frozen stem",
            lambda engine=engine: net_trial(model=Frozen(0), engine=engine),
        )


def cases() -> Iterator[Case]:
    """Yields all cases of this file."""
    yield from under_the_loop()
    yield from under_the_others()
    yield from partly_trained()
