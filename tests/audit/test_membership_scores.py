import numpy as np
import pytest

from dpft.audit.attack_curves import roc_curve
from dpft.audit.membership_scores import (
    lira_scores,
    logit_scaled,
    loss_ratio_scores,
    loss_scores,
    rmia_scores,
)
from dpft.errors import InputError

RECORDS, REFERENCES = 2000, 4


@pytest.fixture(scope="module")
def world():
    """Log-likelihoods of tokens: records differ much in difficulty, members gain a little."""
    rng = np.random.default_rng(9)
    difficulty = -3 + rng.normal(size=RECORDS)
    members = rng.random(RECORDS) < 0.5

    def model(trained_on, count=None, level=difficulty):
        shape = level.shape if count is None else (count, *level.shape)
        return level + 0.3 * trained_on + 0.1 * rng.normal(size=shape)

    everyday = -3 + rng.normal(size=500)
    return {
        "members": members,
        "target": model(members),
        "before": model(np.zeros(RECORDS)),
        "out": model(np.zeros(RECORDS), REFERENCES),
        "in": model(np.ones(RECORDS), REFERENCES),
        "population": model(np.zeros(500), level=everyday),
        "population_references": model(np.zeros(500), REFERENCES, everyday),
    }


def rmia(world, **options):
    return rmia_scores(
        world["target"],
        world["out"],
        world["population"],
        world["population_references"],
        **options,
    )


def auc(scores, world):
    return roc_curve(scores, world["members"]).auc


def test_references_take_the_difficulty_of_records_out_of_the_score(world):
    loss = auc(loss_scores(world["target"]), world)
    ratio = auc(loss_ratio_scores(world["target"], world["before"]), world)
    assert 0.5 < loss < 0.65
    # a gain of 0.3 against noise of 0.1 in both models: Phi(0.3 / 0.2)
    assert ratio == pytest.approx(0.933, abs=0.02)
    for scores in (
        lira_scores(world["target"], world["out"]),
        rmia(world),
        rmia(world, references_in=world["in"]),
    ):
        assert auc(scores, world) > ratio


def test_rmia_is_the_share_of_the_population_that_a_record_dominates(world):
    def by_hand(gamma, average, population_average):
        own = np.exp(world["target"]) / average
        others = np.exp(world["population"]) / population_average
        return np.mean(own[:, None] / others >= gamma, axis=1)

    outside = np.exp(world["out"]).mean(axis=0)
    inside = np.exp(world["in"]).mean(axis=0)
    others = np.exp(world["population_references"]).mean(axis=0)
    assert np.allclose(rmia(world), by_hand(1.0, outside, others))
    assert np.allclose(rmia(world, gamma=1.3), by_hand(1.3, outside, others))
    online = by_hand(1.0, (outside + inside) / 2, others)
    assert np.allclose(rmia(world, references_in=world["in"]), online)
    scaled = by_hand(1.0, (1.3 * outside + 0.7) / 2, others)
    assert np.allclose(rmia(world, offline_scale=0.3), scaled)


def test_rmia_works_with_one_reference_and_likelihoods_no_float_holds(world):
    # the logarithms of whole records: e^-3000 is no float
    scores = rmia_scores(
        world["target"] - 3000,
        world["out"][:1] - 3000,
        world["population"] - 3000,
        world["population_references"][:1] - 3000,
    )
    assert auc(scores, world) > 0.9


def test_lira_is_by_how_many_deviations_a_record_exceeds_its_references(world):
    scores = lira_scores([-1.0, -2.0], [[-2.0, -3.0], [-4.0, -5.0]])
    # means -3 and -4, variance 2 of each
    assert scores.tolist() == pytest.approx([2 / np.sqrt(2), 2 / np.sqrt(2)])


def test_logits_of_confidences_near_one_are_exact():
    assert logit_scaled([np.log(0.5)])[0] == pytest.approx(0.0, abs=1e-12)
    # p = 1 - 1e-12
    assert logit_scaled([-1e-12])[0] == pytest.approx(np.log(1e12), rel=1e-6)


@pytest.mark.parametrize(
    ("refused", "sentence"),
    [
        (lambda: loss_scores([0.0, np.nan]), "1 of 2 are not"),
        (lambda: loss_scores([]), "not empty"),
        (lambda: loss_ratio_scores([0.0], [0.0, 1.0]), "asked about 2 records"),
        (lambda: lira_scores([0.0], [[1.0]]), "at least 2 reference models, got 1"),
        (lambda: lira_scores([0.0], [[1.0], [1.0]]), "all reference models say the same"),
        (lambda: lira_scores([0.0], [1.0]), r"must be of shape \(k, n\)"),
        (lambda: rmia_scores([0.0], [[0.0]], [0.0], [[0.0]], gamma=0.5), "gamma must be"),
        (lambda: rmia_scores([0.0], [[0.0]], [0.0], [[0.0]], offline_scale=2), "offline_scale"),
        (lambda: rmia_scores([0.0], [[0.0]], [0.0], [[0.0, 1.0]]), "asked about 2 records"),
        (lambda: logit_scaled([0.0]), "must be below 0"),
    ],
)
def test_what_cannot_be_scored_is_refused(refused, sentence):
    with pytest.raises(InputError, match=sentence):
        refused()
