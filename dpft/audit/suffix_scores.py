"""The log-perplexity of every suffix that a canary of the secret sharer could have had.

With V words and suffixes of n there are V^n. A suffix's likelihood is a product over its words, so
reading the contexts of each length gives all of them: 11,111 rows for 100,000 suffixes.

Shapes: c contexts, n words of a suffix, v words of the sub-vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpft.audit.likelihoods import Scorer
from dpft.data.canaries import Canary
from dpft.data.packed_records import pieces
from dpft.data.tokenization import TokenizedExample
from dpft.errors import InputError
from dpft.generation.inference import evaluation_mode
from dpft.kinds import SEQ2SEQ
from dpft.models.losses import token_logits
from dpft.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class SuffixScores:
    """What a model says to the suffixes of one canary."""

    own: float
    """Log-perplexity of the canary's suffix given what it reads, in bits."""
    all: NDArray[np.float64]
    """Of every suffix, its own among them, shape (v ** n,)."""


def suffix_scores(scorer: Scorer, task: Task, canary: Canary, words: Sequence[str]) -> SuffixScores:
    """Returns the log-perplexities of a canary and of all that it might have been.

    Args:
        scorer: The model.
        task: Of the run.
        canary: Of the secret sharer.
        words: The sub-vocabulary.

    Raises:
        InputError: A word is not one token where it stands.
    """
    table = _Table.of(scorer, task, canary, words)
    everything = np.zeros(1)
    with evaluation_mode(scorer.model), torch.no_grad():
        for place in range(len(canary.learned)):
            contexts = product(range(len(words)), repeat=place)
            found = [
                table.bits(scorer, task, some, place)
                for some in pieces(contexts, scorer.batch_size)
            ]
            everything = (everything[:, None] + np.concatenate(found)).reshape(-1)
    number = 0
    for word in canary.learned:
        number = number * len(words) + words.index(word)
    return SuffixScores(own=float(everything[number]), all=everything)


@dataclass(frozen=True, kw_only=True)
class _Table:
    """Where the words of a canary's suffix are in its row, and which token each word is there."""

    canary: Canary
    words: Sequence[str]
    places: tuple[int, ...]
    """Of the suffix's words among a row's labels."""
    ids: Tensor
    """Shape (n, v)."""

    @classmethod
    def of(cls, scorer: Scorer, task: Task, canary: Canary, words: Sequence[str]) -> "_Table":
        length = len(canary.learned)
        rows = scorer.encoding.rows(
            [task.canary(canary.read, [word] * length, number=canary.number) for word in words]
        )
        places = tuple(_places(rows[0], rows[1]))
        if len(places) != length or any(len(r.labels) != len(rows[0].labels) for r in rows):
            raise InputError(
                "audit=exposure needs words that are one token each in the task's records, and"
                f" {length} words of this run's became {len(places)}; choose another task or model."
            )
        ids = [[int(row.labels[place]) for row in rows] for place in places]
        return cls(canary=canary, words=words, places=places, ids=torch.tensor(ids))

    def bits(
        self, scorer: Scorer, task: Task, contexts: Sequence[tuple[int, ...]], place: int
    ) -> NDArray[np.float64]:
        """Returns the log-perplexity of each word at a place after some contexts, shape (c, v)."""
        missing = [self.words[0]] * (len(self.places) - place)
        suffixes = [[*(self.words[at] for at in context), *missing] for context in contexts]
        read, number = self.canary.read, self.canary.number
        rows = scorer.encoding.rows([task.canary(read, each, number=number) for each in suffixes])
        batch = scorer.encoding.layout.collate(rows).to(scorer.model.device)
        late = 0 if batch.kind == SEQ2SEQ else 1
        logits = token_logits(scorer.model, batch)[:, self.places[place] - late]
        bits = -logits.double().log_softmax(dim=-1) / log(2)
        found: NDArray[np.float64] = bits[:, self.ids[place].to(bits.device)].cpu().numpy()
        return found


def _places(one: TokenizedExample, other: TokenizedExample) -> Iterator[int]:
    """Yields where the labels of two rows differ."""
    for place, (a, b) in enumerate(zip(one.labels, other.labels, strict=False)):
        if a != b:
            yield place
