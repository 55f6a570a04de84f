"""Canaries: fair secret coins, words that survive a round trip, one unit each."""

import numpy as np
import pytest
from scipy.stats import binomtest
from transformers import AutoTokenizer

from dpft.data.canaries import (
    EXPOSURE,
    CanaryConfig,
    copies_of,
    make_canaries,
    vocabulary,
    whole_words,
)
from dpft.models.source import EMBEDDED_MODEL
from dpft.tasks.e2e import E2ETask
from tests.rejections import rejects

KEY, OTHER = bytes(range(32)), bytes(32)
E2E = E2ETask(name="e2e", source="embedded")


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(EMBEDDED_MODEL)


@pytest.mark.slow
def test_each_word_is_one_token_where_it_stands(tokenizer) -> None:
    words = whole_words(tokenizer)
    assert len(words) > 100
    generator = np.random.default_rng(0)
    for _ in range(50):
        drawn = list(generator.choice(words, size=5))
        ids = tokenizer(" ".join(drawn), add_special_tokens=False)["input_ids"]
        assert len(ids) == 5
        assert tokenizer.decode(ids).split() == drawn


@pytest.mark.slow
def test_coins_are_fair_and_follow_from_the_key_alone(tokenizer) -> None:
    config = CanaryConfig(canaries=800, canary_words=2)
    made, again = (make_canaries(config, tokenizer, KEY) for _ in range(2))
    assert made == again
    coins = [canary.copies for canary in made]
    assert set(coins) == {0, 1}
    assert binomtest(sum(coins), len(coins)).pvalue > 1e-3
    others = [canary.copies for canary in make_canaries(config, tokenizer, OTHER)]
    agree = sum(a == b for a, b in zip(coins, others, strict=True))
    assert binomtest(agree, len(coins)).pvalue > 1e-3


@pytest.mark.slow
def test_no_two_canaries_with_coins_share_a_word_as_far_as_the_vocabulary_goes(tokenizer) -> None:
    made = make_canaries(CanaryConfig(canaries=200), tokenizer, KEY)
    owners = [{*canary.read, *canary.learned} for canary in made]
    assert sum(map(len, owners)) == len(set().union(*owners))


@pytest.mark.slow
def test_a_canary_of_the_secret_sharer_reads_as_in_li_2022(tokenizer) -> None:
    """Li et al. 2022, Appendix M: name, type and area of the sub-vocabulary; five words follow."""
    config = CanaryConfig(exposure_canaries=2, repetitions=(1, 10))
    made = make_canaries(config, tokenizer, KEY)
    assert [(canary.kind, canary.copies) for canary in made] == [
        (EXPOSURE, copies) for copies in (0, 0, 1, 1, 10, 10)
    ]
    few = set(vocabulary(config, whole_words(tokenizer)))
    assert len(few) == 10
    for canary in made:
        record = canary.record(E2E)
        assert set(canary.read) | set(canary.learned) <= few
        name, kind, area = canary.read
        assert record.prompt == f"name : {name} | Type : {kind} | area : {area}\n"
        assert record.target == " ".join(canary.learned)
        assert len(canary.learned) == 5


@pytest.mark.slow
def test_all_copies_are_of_one_unit_and_no_two_canaries_share_one(tokenizer) -> None:
    config = CanaryConfig(canaries=20, exposure_canaries=1)
    made = make_canaries(config, tokenizer, KEY)
    assert len({canary.unit for canary in made}) == len(made)
    added = copies_of(made, E2E)
    assert len(added) == sum(canary.copies for canary in made)
    hundred = made[-1]
    assert [unit for _, unit in added].count(hundred.unit) == hundred.copies == 100


def test_a_tokenizer_without_enough_words_is_refused(tokenizer) -> None:
    config = CanaryConfig(canaries=1, vocabulary=10**6)
    with rejects("audit.vocabulary", 10**6):
        make_canaries(config, tokenizer, KEY)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"repetitions": (1, 1)}, "audit.repetitions"),
        ({"repetitions": ()}, "audit.repetitions"),
        ({"white_box": True}, "audit.canaries"),
    ],
)
def test_numbers_that_make_no_canaries_are_refused(values, key) -> None:
    with pytest.raises(ValueError, match=key):
        CanaryConfig(**values)


def test_the_number_that_counts_does_not_depend_on_a_coin() -> None:
    config = CanaryConfig(canaries=100, exposure_canaries=3)
    assert config.count(500, units=False) == 100 + 3 * 111
    assert config.count(109, units=True) == 100 + 3 * 3
    assert config.replace(canaries=0).count(333, units=False) == 333


def test_more_canaries_than_examples_are_for_audits_alone() -> None:
    config = CanaryConfig(canaries=11)
    with rejects("audit.canaries", 11):
        config.count(10, units=False)
    assert config.replace(outnumber=True).count(10, units=False) == 11
