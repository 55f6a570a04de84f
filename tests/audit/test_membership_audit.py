"""``audit=membership`` over finished runs: what is told apart, and what is refused."""

import html
import json
import shutil
import stat

import numpy as np
import pytest

from dpft.audit.membership_audit import _curves
from tests.stories.tiny import Outcome, Workspace

ATTACKS = {"loss", "loss beside the model before"}


def audited(workspace: Workspace, run: str, *words: str) -> Outcome:
    return workspace.run("audit", f"run={run}", "audit=membership", "output=json", *words)


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
    """Returns the page of what the audit found, as text."""
    return html.unescape((workspace.root / run / "private/audit/membership.html").read_text())


def test_epsilon_of_units_bounds_no_attack_on_a_record(texts_runs: Workspace) -> None:
    done = texts_runs.run("audit", "run=owners", "audit=membership", "audit.limit=5")
    assert done.code == 0, done.err
    page = found(texts_runs, "owners")
    assert "at most" not in page
    assert "The unit of privacy is not a record" in page


def test_without_the_private_folder_nothing_bounds_the_attack_and_that_is_said(
    texts_runs: Workspace,
) -> None:
    """The plan is in private/checkpoints; the attack itself needs the model and records alone."""
    shutil.rmtree(texts_runs.root / "pairs/private")
    done = texts_runs.run("audit", "run=pairs", "audit=membership", "audit.limit=5")
    assert done.code == 0, done.err
    assert "private/checkpoints is gone, and the plan with it" in done.err
    page = found(texts_runs, "pairs")
    assert "The run's plan is gone with its checkpoints: nothing bounds an attack." in page
    assert "at most" not in page


@pytest.mark.slow
def test_reference_runs_make_rmia_and_two_make_lira(texts_runs: Workspace) -> None:
    done = audited(texts_runs, "held", "audit.limit=10", "audit.reference_runs=[owners]")
    assert done.code == 0, done.err
    assert set(json.loads(done.out)["attacks"]) == {*ATTACKS, "RMIA"}
    done = audited(texts_runs, "held", "audit.limit=10", "audit.reference_runs=[owners,pairs]")
    assert (done.code, "must be of the run's own task, custom, got pairs" in done.err) == (2, True)
    done = audited(texts_runs, "held", "audit.reference_runs=[held]")
    assert (done.code, "must be other runs, got held, the run itself" in done.err) == (2, True)


def test_an_attack_on_what_is_remembered_finds_it_and_on_nothing_finds_nothing() -> None:
    generator = np.random.default_rng(0)
    inside = np.arange(400) < 200
    before = generator.normal(-40, 5, 400)
    references = before + generator.normal(0, 1, (2, 400))
    remembered = _curves(inside, before + 10 * inside, before, references)
    assert set(remembered) == {*ATTACKS, "LiRA", "RMIA"}
    assert remembered["loss beside the model before"].auc == 1.0
    assert min(remembered["LiRA"].auc, remembered["RMIA"].auc) > 0.98
    nothing = _curves(inside, before + generator.normal(0, 1, 400), before, references)
    assert all(0.4 < curve.auc < 0.6 for curve in nothing.values())


def test_no_records_but_those_trained_on_is_refused(texts_runs: Workspace) -> None:
    path = texts_runs.root / "data/test.jsonl"
    aside = path.rename(path.with_name("aside"))
    done = audited(texts_runs, "pairs")
    aside.rename(path)
    assert done.code == 2
    assert "needs records that were not trained on, and" in done.err


@pytest.mark.parametrize("word", ["audit.limit=0", "audit.batch_size=0"])
def test_numbers_that_ask_for_nothing_are_refused(texts_runs: Workspace, word: str) -> None:
    done = audited(texts_runs, "held", word)
    assert (done.code, "must be at least 1, got 0" in done.err) == (2, True)
