"""The log-perplexity of every suffix that a canary of the secret sharer could have had.

With V words and suffixes of n there are V^n. A suffix's likelihood is a product over its words, so
reading the contexts of each length gives all of them: 11,111 rows for 100,000 suffixes.

Shapes: c contexts, n words of a suffix, v words of the sub-vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import log

import numpy as np
import torch
from numpy.typing import NDArray

from dpft.audit.likelihoods import Scorer
from dpft.data.canaries import Canary, SuffixTokens, suffix_tokens
from dpft.data.packed_records import pieces
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


def suffix_scores(
    scorer: Scorer,
    task: Task,
    canary: Canary,
    words: Sequence[str],
    *,
    on_scored: Callable[[int], None] = lambda suffixes: None,
) -> SuffixScores:
    """Returns the log-perplexities of a canary and of all that it might have been.

    Args:
        scorer: The model.
        task: Of the run.
        canary: Of the secret sharer.
        words: The sub-vocabulary.
        on_scored: Called after each batch with how many suffixes it was the last word of.

    Raises:
        InputError: As ``suffix_tokens``.
    """
    table = suffix_tokens(scorer.encoding, task, canary, words)
    everything = np.zeros(1)
    with evaluation_mode(scorer.model), torch.no_grad():
        for place in range(len(canary.learned)):
            contexts = product(range(len(words)), repeat=place)
            found = []
            for some in pieces(contexts, scorer.batch_size):
                found.append(_bits(scorer, task, canary, words, table, some, place))
                if place == len(canary.learned) - 1:
                    on_scored(len(some) * len(words))
            everything = (everything[:, None] + np.concatenate(found)).reshape(-1)
    number = 0
    for word in canary.learned:
        number = number * len(words) + words.index(word)
    return SuffixScores(own=float(everything[number]), all=everything)


def _bits(
    scorer: Scorer,
    task: Task,
    canary: Canary,
    words: Sequence[str],
    table: SuffixTokens,
    contexts: Sequence[tuple[int, ...]],
    place: int,
) -> NDArray[np.float64]:
    """Returns the log-perplexity of each word at a place after some contexts, shape (c, v)."""
    missing = [words[0]] * (len(table.places) - place)
    suffixes = [[*(words[at] for at in context), *missing] for context in contexts]
    rows = scorer.encoding.rows(
        [task.canary(canary.read, each, number=canary.number) for each in suffixes]
    )
    batch = scorer.encoding.layout.collate(rows).to(scorer.model.device)
    late = 0 if batch.kind == SEQ2SEQ else 1
    logits = token_logits(scorer.model, batch)[:, table.places[place] - late]
    bits = -logits.double().log_softmax(dim=-1) / log(2)
    found: NDArray[np.float64] = bits[:, list(table.ids[place])].cpu().numpy()
    return found
