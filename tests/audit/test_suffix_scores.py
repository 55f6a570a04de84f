"""The tree of suffixes gives each one's own likelihood, whatever kind of model says it."""

from itertools import product
from math import log

import numpy as np
import pytest
import torch

from dpft.audit.likelihoods import Scorer
from dpft.audit.suffix_scores import suffix_scores
from dpft.data.canaries import EXPOSURE, Canary, vocabulary, whole_words
from dpft.data.canary_config import CanaryConfig
from dpft.errors import InputError
from dpft.models.architecture import read_architecture
from dpft.models.loading import load_tokenizer
from dpft.runs.task_model import encoding_of, fitted_to, prepare_model, training_head
from tests.config.test_conf import loaded

FEW = CanaryConfig(exposure_canaries=1, vocabulary=3, suffix_words=3)


@pytest.fixture(scope="module")
def scored():
    config = loaded("train", ["task=e2e", "model=tiny", "task.source=embedded", "privacy.eps=3"])
    architecture = read_architecture(config.model)
    config = fitted_to(config, architecture)
    head = training_head(config, architecture)
    tokenizer = load_tokenizer(architecture, kind=head.kind)
    encoding = encoding_of(config.task, architecture, head, tokenizer)
    model, _ = prepare_model(config, architecture, head)
    return config.task, Scorer(model=model, encoding=encoding, batch_size=4)


def canary(words) -> Canary:
    read, learned = tuple(words), (words[1], words[1], words[2])
    return Canary(kind=EXPOSURE, read=read, learned=learned, number=0, copies=1, unit="u")


def test_every_suffix_has_the_likelihood_that_it_has_by_itself(scored) -> None:
    task, scorer = scored
    words = vocabulary(FEW, whole_words(scorer.encoding.tokenizer))
    one = canary(words)
    found = suffix_scores(scorer, task, one, words)
    expected = []
    for suffix in product(words, repeat=3):
        (row,) = scorer.encoding.rows([task.canary(one.read, suffix, number=0)])
        ids, places = (
            torch.tensor([row.input_ids]),
            [len(row.input_ids) - 4 + at for at in range(3)],
        )
        with torch.no_grad():
            said = scorer.model.eval()(ids).logits[0].log_softmax(-1)
        expected.append(-sum(said[at - 1, ids[0, at]].item() for at in places) / log(2))
    np.testing.assert_allclose(found.all, expected, rtol=1e-5)
    assert found.own == found.all[1 * 9 + 1 * 3 + 2]


def test_words_of_several_tokens_are_refused(scored) -> None:
    task, scorer = scored
    words = ["pub", "zymurgically", "cheap"]
    with pytest.raises(InputError, match="got 4 learned tokens for 3 words of task=e2e"):
        suffix_scores(scorer, task, canary(words), words)
