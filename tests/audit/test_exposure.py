"""What an audit of exposure says beside its numbers."""

import math
from functools import cache
from itertools import product
from math import log

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import log_ndtr
from scipy.stats import norm, skewnorm

from dpft.audit.audited_run import Scorer
from dpft.audit.exposure import (
    MEAN_UNSEEN,
    Exposed,
    SkewNormal,
    chance_bound,
    exact_exposure,
    finding,
    fit_skew_normal,
    mean_bound,
    suffix_scores,
)
from dpft.commands.task_model import encoding_of, fitted_to, prepare_model, training_head
from dpft.data.canaries import EXPOSURE, Canary, CanaryConfig, vocabulary, whole_words
from dpft.models.architecture import read_architecture
from dpft.models.loading import load_tokenizer
from tests.config.test_conf import loaded
from tests.rejections import rejects
from tests.reports.plain import privacy_of
from tests.reports.test_privacy_record import record as private
from tests.slowness import slow, slow_but

SPACE = 10**5
"""All suffixes of five words out of ten (Li et al. 2022, Appendix M)."""


def log_perplexities(count=SPACE, shape=3.0, seed=1):
    rng = np.random.default_rng(seed)
    return skewnorm.rvs(shape, loc=60, scale=9, size=count, random_state=rng)


def test_the_likeliest_suffix_has_all_the_bits_and_the_least_likely_none():
    candidates = log_perplexities()
    assert exact_exposure(candidates.min(), candidates) == pytest.approx(math.log2(SPACE))
    assert math.log2(SPACE) == pytest.approx(16.6096, abs=1e-4)
    assert exact_exposure(candidates.max(), candidates) == 0.0


def test_equal_log_perplexities_share_the_larger_rank():
    assert exact_exposure(1.0, [1.0, 1.0, 2.0, 3.0]) == 1.0
    assert exact_exposure(2.0, [1.0, 1.0, 2.0, 3.0]) == pytest.approx(math.log2(4 / 3))


@cache
def all_exposures():
    """Return the exposure of each of 4,096 suffixes, one of which a canary is drawn to be."""
    candidates = log_perplexities(4096)
    return np.array([exact_exposure(each, candidates) for each in candidates])


def test_a_canary_never_inserted_has_a_mean_of_1_4427_bits():
    # over all that it could have been; SPEC: 1 / ln 2, whatever the model
    exposures = all_exposures()
    assert pytest.approx(1.4427, abs=1e-4) == MEAN_UNSEEN
    assert exposures.mean() == pytest.approx(MEAN_UNSEEN, abs=3e-3)


@pytest.mark.parametrize("bits", [0.5, 1, 3, 8, 12])
def test_a_canary_never_inserted_reaches_x_bits_with_a_chance_of_2_to_the_minus_x(bits):
    exposures = all_exposures()
    assert np.mean(exposures >= bits) == pytest.approx(2.0**-bits, abs=1.01 / 4096)
    assert np.mean(exposures >= bits) <= chance_bound(bits, epsilon=0.0, delta=0.0)


def test_the_bounds_of_one_insertion():
    assert chance_bound(10, epsilon=3.0, delta=1e-5) == pytest.approx(math.e**3 / 1024 + 1e-5)
    assert chance_bound(2, epsilon=3.0, delta=0.0) == 1.0
    assert chance_bound(10, epsilon=10_000.0, delta=0.0) == 1.0
    assert mean_bound(epsilon=0.0, delta=0.0, candidates=SPACE) == MEAN_UNSEEN
    # SPEC: 5.77 bits at epsilon 3
    assert mean_bound(epsilon=3.0, delta=0.0, candidates=SPACE) == pytest.approx(5.77, abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [-4.0, *slow((0.0,), (3.0,))])
def test_the_fitted_exposure_agrees_with_the_exact_one_within_the_sampled_range(shape):
    candidates = log_perplexities(shape=shape)
    fit = fit_skew_normal(candidates[:20_000])
    assert fit.count == 20_000
    assert fit.distance < 0.01
    assert fit.p_value > 0.05
    for share in (0.5, 0.1, 0.01, 0.001):
        value = np.sort(candidates)[int(share * SPACE)]
        assert fit.exposure(value) == pytest.approx(exact_exposure(value, candidates), abs=0.35)


def test_beyond_all_candidates_it_exceeds_the_bits_of_the_space():
    fit = fit_skew_normal(log_perplexities(5000))
    assert fit.exposure(10.0) > math.log2(SPACE)


@pytest.mark.parametrize("shape", slow_but([-5.0, 0.0, 1.0], [-5.0, -0.5, 0.0, 1.0, 6.0]))
def test_the_tail_is_exact_where_no_float_holds_its_mass(shape):
    fit = SkewNormal(shape=shape, location=60.0, scale=9.0, distance=0.0, p_value=1.0, count=1)

    def log_density(place):
        return math.log(2) + norm.logpdf(place) + log_ndtr(shape * place)

    for place in (-0.5, -2.0, -5.0, -30.0):
        peak = log_density(place)
        mass, _ = quad(
            lambda down, at=place, top=peak: math.exp(log_density(at - down) - top), 0, 9
        )
        expected = -(peak + math.log(mass)) / math.log(2)
        assert fit.exposure(60 + 9 * place) == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow
def test_exposure_falls_where_the_tail_begins_to_be_integrated():
    fit = SkewNormal(shape=2.0, location=60.0, scale=9.0, distance=0.0, p_value=1.0, count=1)
    exposures = [fit.exposure(value) for value in np.linspace(20, 90, 500)]
    assert exposures == sorted(exposures, reverse=True)


def test_a_bad_fit_is_seen():
    two_heaps = np.concatenate([np.linspace(10, 11, 500), np.linspace(90, 91, 500)])
    fit = fit_skew_normal(two_heaps)
    assert fit.distance > 0.2
    assert fit.p_value < 1e-6


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: exact_exposure(2.5, [1.0, 2.0]), "log_perplexity"),
        (lambda: exact_exposure(1.0, [1.0, math.inf]), "candidates"),
        (lambda: exact_exposure(1.0, []), "candidates"),
        (lambda: fit_skew_normal([1.0] * 100), "sample"),
        (lambda: fit_skew_normal(range(19)), "sample"),
    ],
)
def test_values_that_cannot_be_ranked_or_fitted_are_rejected(call, key):
    with rejects(key):
        call()


PRIVACY = privacy_of({**private(), "epsilon": 1.0, "delta": 1e-6})


def canary(copies: int) -> Canary:
    return Canary(kind=EXPOSURE, read=(), learned=("a",), number=0, copies=copies, unit=f"{copies}")


def exposed(bits: float) -> Exposed:
    return Exposed(exact=bits, fitted=bits, goodness_of_fit=0.01, suffixes=2**16)


@pytest.mark.slow
def test_the_chance_is_of_the_largest_of_all_canaries_inserted_once() -> None:
    """A mean of several is no draw of one, so that the bound of one says nothing of it."""
    bits = {0: [9.0, 1.0], 1: [1.0, 8.0, 3.0], 10: [16.0]}
    canaries = [canary(copies) for copies, found in bits.items() for _ in found]
    after = [exposed(each) for found in bits.values() for each in found]
    said = finding(canaries, after, after, PRIVACY).notes[-1]
    chance = 3 * chance_bound(8.0, epsilon=1.0, delta=1e-6)
    assert (
        "The largest exposure of the 3 canaries inserted once is 8.00 bits; under this ε, one of"
        f" them reaches it with a probability of at most {chance:.2g}."
    ) in said
    assert math.isclose(chance, 3 * (math.e / 256 + 1e-6))


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


def canary_of_suffix_scores(words) -> Canary:
    read, learned = tuple(words), (words[1], words[1], words[2])
    return Canary(kind=EXPOSURE, read=read, learned=learned, number=0, copies=1, unit="u")


@pytest.mark.slow
def test_every_suffix_has_the_likelihood_that_it_has_by_itself(scored) -> None:
    task, scorer = scored
    words = vocabulary(FEW, whole_words(scorer.encoding.tokenizer))
    one = canary_of_suffix_scores(words)
    own, found = suffix_scores(scorer, task, one, words)
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
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert own == found[1 * 9 + 1 * 3 + 2]


@pytest.mark.slow
def test_words_of_several_tokens_are_refused(scored) -> None:
    task, scorer = scored
    words = ["pub", "zymurgically", "cheap"]
    with rejects():
        suffix_scores(scorer, task, canary_of_suffix_scores(words), words)
