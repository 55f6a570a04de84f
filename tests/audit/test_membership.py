"""``audit=membership`` over finished runs: what is told apart, and what is refused."""

import html
import json
import shutil
import stat

import numpy as np
import pytest

from dpft.audit.membership import (
    attack_curves,
    lira_scores,
    rmia_scores,
)
from dpft.audit.trade_off import roc_curve
from tests.rejections import rejects
from tests.stories.tiny import Outcome, Workspace

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
        "population": model(np.zeros(500), level=everyday),
        "population_references": model(np.zeros(500), REFERENCES, everyday),
    }


def rmia(world):
    return rmia_scores(
        world["target"],
        world["out"],
        world["population"],
        world["population_references"],
    )


def auc(scores, world):
    return roc_curve(scores, world["members"]).auc


def test_references_take_the_difficulty_of_records_out_of_the_score(world):
    loss = auc(world["target"], world)
    ratio = auc(world["target"] - world["before"], world)
    assert 0.5 < loss < 0.65
    # a gain of 0.3 against noise of 0.1 in both models: Phi(0.3 / 0.2)
    assert ratio == pytest.approx(0.933, abs=0.02)
    for scores in (
        lira_scores(world["target"], world["out"]),
        rmia(world),
    ):
        assert auc(scores, world) > ratio


def test_rmia_is_the_share_of_the_population_that_a_record_dominates(world):
    own = np.exp(world["target"]) / np.exp(world["out"]).mean(axis=0)
    others = np.exp(world["population"]) / np.exp(world["population_references"]).mean(axis=0)
    assert np.allclose(rmia(world), np.mean(own[:, None] / others >= 1, axis=1))


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


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: lira_scores([0.0, np.nan], [[1.0, 1.0]]), "log_likelihoods"),
        (lambda: lira_scores([], [[1.0]]), "log_likelihoods"),
        (lambda: lira_scores([0.0], [[1.0]]), "references_out"),
        (lambda: lira_scores([0.0], [[1.0], [1.0]]), "references_out"),
        (lambda: lira_scores([0.0], [1.0]), "references_out"),
        (lambda: rmia_scores([0.0], [[0.0]], [0.0], [[0.0, 1.0]]), "references_out"),
    ],
)
def test_values_that_cannot_be_scored_are_rejected(call, key):
    with rejects(key):
        call()


ATTACKS = {"loss", "loss compared with the model before"}


def audited(workspace: Workspace, run: str, *words: str) -> Outcome:
    return workspace.run("audit", f"run={run}", "audit=membership", "output=json", *words)


@pytest.mark.slow
def test_members_and_others_are_told_beside_what_the_mechanism_allows(
    texts_runs: Workspace,
) -> None:
    done = audited(texts_runs, "held", "audit.limit=20")
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert set(record["attacks"]) == ATTACKS
    assert record["members"] == 20
    assert 0 < record["non_members"] <= 20
    assert record["non_members_of"] == "held_out"
    for attack in record["attacks"].values():
        assert 0 <= attack["auc"] <= 1
        assert 0.5 < attack["allowed"]["auc"] <= 1
        assert attack["allowed"]["0.001"] <= attack["allowed"]["0.01"]
        rate = attack["tpr_at_fpr"]["0.01"]["true_positive_rate"]
        assert rate["lower"] <= rate["rate"] <= rate["upper"]


@pytest.mark.slow
def test_it_is_the_owners_alone(texts_runs: Workspace) -> None:
    before = {path for path in texts_runs.root.rglob("*") if "private" not in path.parts}
    privacy = (texts_runs.root / "held/privacy.json").read_bytes()
    assert audited(texts_runs, "held", "audit.limit=5").code == 0
    assert {path for path in texts_runs.root.rglob("*") if "private" not in path.parts} == before
    assert (texts_runs.root / "held/privacy.json").read_bytes() == privacy
    for kind in ("json", "html"):
        path = texts_runs.root / f"held/private/audit/membership.{kind}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def found(workspace: Workspace, run: str) -> str:
    """Return the page of what the audit found, as text."""
    return html.unescape((workspace.root / run / "private/audit/membership.html").read_text())


@pytest.mark.slow
def test_epsilon_of_units_bounds_no_attack_on_a_record(texts_runs: Workspace) -> None:
    done = texts_runs.run("audit", "run=owners", "audit=membership", "audit.limit=5")
    assert done.code == 0, done.err
    page = found(texts_runs, "owners")
    assert "at most" not in page
    assert "The unit of privacy is not a record" in page


@pytest.mark.slow
def test_without_the_private_folder_nothing_bounds_the_attack_and_that_is_said(
    texts_runs: Workspace,
) -> None:
    """The plan is in private/checkpoints; the attack itself needs the model and records alone."""
    shutil.rmtree(texts_runs.root / "pairs/private")
    done = texts_runs.run("audit", "run=pairs", "audit=membership", "audit.limit=5")
    assert done.code == 0, done.err
    assert "private/checkpoints has no checkpoint with the plan" in done.err
    page = found(texts_runs, "pairs")
    assert (
        "The run's plan was deleted with its checkpoints, so no bound on attacks is known." in page
    )
    assert "at most" not in page


@pytest.mark.slow
def test_reference_runs_make_rmia_and_two_make_lira(texts_runs: Workspace) -> None:
    done = audited(texts_runs, "held", "audit.limit=10", "audit.reference_runs=[owners]")
    assert done.code == 0, done.err
    assert set(json.loads(done.out)["attacks"]) == {*ATTACKS, "RMIA"}
    done = audited(texts_runs, "held", "audit.limit=10", "audit.reference_runs=[owners,pairs]")
    assert (done.code, "audit.reference_runs" in done.err) == (2, True)
    done = audited(texts_runs, "held", "audit.reference_runs=[held]")
    assert (done.code, "audit.reference_runs" in done.err) == (2, True)


def test_an_attack_on_what_is_remembered_finds_it_and_on_nothing_finds_nothing() -> None:
    generator = np.random.default_rng(0)
    inside = np.arange(400) < 200
    before = generator.normal(-40, 5, 400)
    references = before + generator.normal(0, 1, (2, 400))
    remembered = attack_curves(inside, before + 10 * inside, before, references)
    assert set(remembered) == {*ATTACKS, "LiRA", "RMIA"}
    assert remembered["loss compared with the model before"].auc == 1.0
    assert min(remembered["LiRA"].auc, remembered["RMIA"].auc) > 0.98
    nothing = attack_curves(inside, before + generator.normal(0, 1, 400), before, references)
    assert all(0.4 < curve.auc < 0.6 for curve in nothing.values())


@pytest.mark.slow
def test_no_records_but_those_trained_on_is_refused(texts_runs: Workspace) -> None:
    path = texts_runs.root / "data/test.jsonl"
    aside = path.rename(path.with_name("aside"))
    done = audited(texts_runs, "pairs")
    aside.rename(path)
    assert done.code == 2
    assert "eval.held_out" in done.err
