"""Canaries in a run and the audits by them, as the command does them."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import sharing
from tests.stories.tiny import TRAINING, Outcome, Workspace, make_workspace

pytestmark = pytest.mark.slow

FEW = ("audit.exposure_canaries=1", "audit.vocabulary=3", "audit.suffix_words=3",
       "audit.repetitions=[1,3]", "audit.canary_words=4")  # fmt: skip
RUN = (*TRAINING, "task.data_dir=data", "train.steps=2", "eval.enabled=false",
       "train.expected_batch_size=16", "train.micro_batch_size=16",
       "privacy.noise_multiplier=1", "privacy.accountant=rdp")  # fmt: skip


@pytest.fixture(scope="module")
def workspace(
    tmp_path_factory: pytest.TempPathFactory, lasting_answers: dict[Any, Any]
) -> Workspace:
    made = make_workspace(tmp_path_factory.mktemp("canaries"))
    with sharing(lasting_answers):
        words = ("audit.canaries=12", "audit.white_box=true", *FEW)
        made.finished(*RUN, *words, "hydra.run.dir=run")
        made.finished(*RUN, "hydra.run.dir=plain")
    return made


def audited(workspace: Workspace, run: str, name: str) -> Outcome:
    return workspace.run("audit", f"run={run}", f"audit={name}", "output=json")


def canaries(run: Path) -> list[dict]:
    return json.loads((run / "private/audit/canaries.json").read_text())["canaries"]


def test_all_canaries_count_and_the_included_ones_are_trained_on(workspace: Workspace) -> None:
    run = workspace.root / "run"
    privacy = json.loads((run / "privacy.json").read_text())
    records = len((workspace.root / "data/train.jsonl").read_text().splitlines())
    assert privacy["plan"]["num_examples"] == records + 12 + 1 + 3
    assert privacy["num_examples_source"] == "counted in the data, with 16 canaries added"
    found = canaries(run)
    copies = sum(each["copies"] for each in found)
    assert f"| trained on | {records + copies} |" in (run / "private/data_summary.md").read_text()
    assert [each["copies"] for each in found if each["kind"] == "exposure"] == [0, 1, 3]


def test_canaries_and_their_coins_are_the_owners_alone(workspace: Workspace) -> None:
    run = workspace.root / "run"
    for name in ("audit/canaries.json", "audit_key", "white_box.jsonl"):
        assert stat.S_IMODE((run / "private" / name).stat().st_mode) == 0o600
    words = {text for each in canaries(run) for text in each["texts"]}
    public = [path for path in run.rglob("*") if path.is_file() and "private" not in path.parts]
    for path in public:
        content = path.read_bytes()
        assert not any(text.encode() in content for text in words if len(text) > 12), path


def test_one_run_says_what_the_issue_asks_and_the_report_shows_it(workspace: Workspace) -> None:
    run = workspace.root / "run"
    before = json.loads((run / "privacy.json").read_text())
    done = audited(workspace, "run", "one_run")
    assert done.code == 0, done.err
    record = json.loads(done.out)
    assert record["epsilon"] == before["epsilon"]
    assert record["canaries"] == 12
    assert 0 <= record["correct"] <= record["guesses"] <= 12
    assert 0 <= record["epsilon_lower"] <= record["largest_epsilon_lower"]
    assert record["confidence"] == 0.95
    assert {view["view"] for view in record["views"]} == {
        "black box", "white box", "white box, steps against each other",
    }  # fmt: skip
    after = json.loads((run / "privacy.json").read_text())
    assert after.pop("audited")["one_run"]["threat_model"] == record["threat_model"]
    assert after == before
    assert "## Audit results" in (run / "report.md").read_text()
    assert (run / "report.html").read_text().count("<svg") >= 3


def test_exposure_is_by_repetition_with_a_control(workspace: Workspace) -> None:
    done = audited(workspace, "run", "exposure")
    assert done.code == 0, done.err
    assert re.search(r"audit=exposure: \d+ % of suffixes", done.err)
    record = json.loads(done.out)
    assert [group["copies"] for group in record["repetitions"]] == [0, 1, 3]
    for group in record["repetitions"]:
        for name in ("exact", "fitted", "exact_before"):
            assert group[name]["mean"] >= 0
        assert group["exact"]["mean"] <= record["largest_exposure"] + 1e-9
    assert "exposure, inserted 3 times" in (workspace.root / "run/report.md").read_text()


@pytest.mark.parametrize(
    ("audit", "says"),
    [
        ("one_run", "Try: audit.canaries=1000"),
        ("exposure", "Try: audit.exposure_canaries=5"),
    ],
)
def test_a_run_without_canaries_is_refused(workspace: Workspace, audit: str, says: str) -> None:
    done = audited(workspace, "plain", audit)
    assert done.code == 2
    assert says in done.err
    assert done.err.count("\n") == 1


def test_a_run_whose_coins_are_gone_says_what_can_still_be_done(workspace: Workspace) -> None:
    path = workspace.root / "run/private/audit/canaries.json"
    aside = path.rename(path.with_name("aside"))
    done = audited(workspace, "run", "one_run")
    aside.rename(path)
    assert done.code == 2
    assert "canaries.json" in done.err and "12" in done.err


@pytest.mark.parametrize("audit", ["one_run", "exposure"])
@pytest.mark.parametrize("edited", ["copies", "learned"])
def test_canaries_that_the_runs_key_does_not_make_are_refused(
    workspace: Workspace, audit: str, edited: str
) -> None:
    """Coins written to fit what the model knows would be a lower bound of nothing."""
    path = workspace.root / "run/private/audit/canaries.json"
    content = path.read_text()
    kept = json.loads(content)
    included = next(each for each in kept["canaries"] if each["copies"] > 0)
    left_out = next(each for each in kept["canaries"] if each["copies"] == 0)
    included[edited], left_out[edited] = left_out[edited], included[edited]
    path.write_text(json.dumps(kept))
    done = audited(workspace, "run", audit)
    path.write_text(content)
    assert done.code == 3
    assert "canaries.json" in done.err
    assert "Traceback" not in done.err


def test_canaries_whose_key_is_gone_are_audited_with_a_warning(workspace: Workspace) -> None:
    key = workspace.root / "run/private/audit_key"
    aside = key.rename(key.with_name("aside"))
    done = audited(workspace, "run", "one_run")
    aside.rename(key)
    assert done.code == 0, done.err
    assert "canaries.json not checked: " in done.err


def test_scores_of_a_step_that_are_missing_are_refused(workspace: Workspace) -> None:
    path = workspace.root / "run/private/white_box.jsonl"
    content = path.read_text()
    path.write_text(content.splitlines()[0] + "\n")
    done = audited(workspace, "run", "one_run")
    path.write_text(content)
    assert done.code == 2
    assert "all 2 steps, got 1" in done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("audit.canaries=4", "audit.canary_words=400"), "must have room for the canaries, got"),
        (
            ("audit.canaries=4", "audit.white_box=true", "method=lora"),
            "trains the input",
        ),
        (("audit.canaries=400",), "audit.outnumber=true"),
        (
            (
                "audit.exposure_canaries=1",
                "audit.repetitions=[1]",
                "audit.vocabulary=100000",
                "audit.suffix_words=1",
            ),
            "canaries need 100000 words",
        ),
        *(
            (
                ("audit.exposure_canaries=1", f"audit.vocabulary={v}", f"audit.suffix_words={s}"),
                f"must be 20 to 1e+07, got {v} ** {s}.",
            )
            for v, s in ((2, 4), (100, 4))
        ),
    ],
)
def test_canaries_that_cannot_be_are_refused(workspace: Workspace, words, says) -> None:
    done = workspace.run("train", *RUN, *words, "hydra.run.dir=refused")
    assert done.code == 2
    assert says in done.err
    assert not (workspace.root / "refused/ledger.jsonl").exists()


def test_synthetic_text_and_the_other_audits_keep_to_themselves(workspace: Workspace) -> None:
    done = workspace.run("audit", "run=run", "audit=synthetic")
    assert (done.code, "synthetic=FILE" in done.err) == (2, True)
    done = workspace.run("audit", "run=run", "audit=one_run", "synthetic=x.jsonl")
    assert (done.code, "audit=one_run" in done.err) == (2, True)


def test_a_run_without_privacy_may_have_canaries_and_says_that_it_is_not_private(
    workspace: Workspace,
) -> None:
    words = [word for word in RUN if not word.startswith("privacy.")]
    run = ("privacy=none", "audit.canaries=24", "audit.canary_words=4", "hydra.run.dir=open")
    assert workspace.run("train", *words, *run).code == 0
    done = audited(workspace, "open", "one_run")
    assert done.code == 0, done.err
    assert "epsilon" not in json.loads(done.out)
    report = (workspace.root / "open/report.md").read_text()
    assert "none: this run is not private" in report
