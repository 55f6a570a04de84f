"""A run whose noise hangs together: kill and resume, what is kept of it, and what breaks cost."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from dpft.commands.ledger_account import read_spent
from dpft.errors import StateError
from dpft.privacy.engine import PrivacyEngine
from dpft.privacy.journal import read_run_ledger
from dpft.privacy.ledger import Ledger, Noise, check_ledger, read_ledger, steps_taken
from dpft.privacy.mechanisms.banded import Banded
from dpft.run_folder import HISTORY, KEYS
from dpft.training import loop as loop_module
from dpft.training.checkpoint import find_resume_point
from tests.training import killed_runs as runs
from tests.training.killed_runs import MOMENTS, killed, same
from tests.training.toy import plan

pytestmark = pytest.mark.slow

BANDED = Banded(bands=2, coefficients=(0.8, 0.59))
PLAN = plan().replace(mechanism=BANDED, sample_rate=1.0, sampler=BANDED.sampler_name)
"""Five steps of two groups: a unit is in three at most."""
COST = Noise(noise_multiplier=1.0, sample_rate=1.0)


go, go_on, kill = (partial(each, of=PLAN) for each in (runs.go, runs.go_on, runs.kill))


def histories(folder: Path) -> list[Path]:
    return sorted(folder.rglob(f"{Path(HISTORY).stem}*"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, go(folder)


@pytest.mark.parametrize("moment", MOMENTS)
def test_trust_rule_9_a_killed_run_goes_on_bit_for_bit(tmp_path, undisturbed, moment):
    folder = kill(tmp_path / "run", moment)
    resume_point = find_resume_point(folder)
    if not resume_point.has_ended:
        assert same(go(folder, resume_point=resume_point), undisturbed[1])
    record = read_ledger(folder / "ledger.jsonl")
    assert (record.steps, record.streams, record.closed) == (5, (5,), True)
    assert steps_taken(record, folder) == {COST: 3}
    assert not histories(folder) and not list(folder.rglob(KEYS))


def test_the_noise_of_steps_is_kept_as_long_as_keys_are_and_no_longer(tmp_path):
    """It is as secret: beside what was released it gives sums of gradients away."""
    folder = kill(tmp_path / "run", "before the ledger is closed", keep=3)
    (kept,) = histories(folder)
    assert kept.parent.name == "step-00000005" and kept.stat().st_mode & 0o777 == 0o600
    group_key = json.loads(kept.with_name(KEYS).read_text())["group_key"]
    files = [path for path in folder.rglob("*") if path.is_file()]
    for form in (group_key.encode(), bytes.fromhex(group_key)):
        assert {path for path in files if form in path.read_bytes()} <= {kept.with_name(KEYS)}
    go_on(folder)
    assert not histories(folder)


def test_without_what_is_kept_of_it_noise_would_come_out_otherwise(tmp_path, caplog, undisturbed):
    """Or a run would go on under noise that takes back nothing: a new stream says so instead."""
    folder = kill(tmp_path / "run", "after the update")
    for path in histories(folder):
        path.unlink()
    weights = go_on(folder, overspend=True)
    assert "with which later noise is correlated" in caplog.text and not same(
        weights, undisturbed[1]
    )
    assert read_ledger(folder / "ledger.jsonl").streams == (4, 3)


def test_a_damaged_one_is_refused(tmp_path):
    folder = kill(tmp_path / "run", "after the update")
    (path,) = histories(folder)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(StateError, match="noise.safetensors"):
        find_resume_point(folder)


def test_a_break_that_draws_anew_begins_a_stream_and_each_is_paid_for(tmp_path):
    """Four steps cost two; of three in all one is left, two steps of a new stream."""
    folder = kill(tmp_path / "run", "after the update")
    go_on(folder, micro_batch_size=3, eps=1.0)
    record = read_ledger(folder / "ledger.jsonl")
    assert (record.streams, record.closed) == ((4, 2), True)
    assert [step.stream for step in record.mechanisms] == [0, 0, 0, 0, 4, 4]
    assert steps_taken(record, folder) == {COST: 3}
    assert [path.name for path in (folder / "private/checkpoints").iterdir()] == ["step-00000004"]


def test_an_abandoned_step_is_of_a_stream_of_its_own(tmp_path):
    """Three steps, the first of a stream that has no line, then three of a third one."""
    folder = tmp_path / "run"
    kill(folder, (PrivacyEngine, "draw", 4))
    assert steps_taken(read_run_ledger(folder), folder) == {COST: 2}
    resumed = {"resume_point": find_resume_point(folder), "overspend": True}
    kill(folder, (Ledger, "append", 1), **resumed, micro_batch_size=3)
    assert steps_taken(read_run_ledger(folder), folder) == {COST: 2 + 1}
    go_on(folder, overspend=True)
    record = read_run_ledger(folder)
    assert record.streams == (3, 1, 3) and steps_taken(record, folder) == {COST: 2 + 1 + 2}


def test_an_abandoned_step_of_the_last_stream_stays_within_the_budget(tmp_path):
    """Four steps cost two of three, and the two after them one, whoever abandons the last."""
    folder = tmp_path / "run"
    kill(folder, (loop_module, "check_weights", 4))
    broken = {"resume_point": find_resume_point(folder), "micro_batch_size": 3, "eps": 1.0}
    kill(folder, (Ledger, "append", 2), **broken)
    go_on(folder, eps=1.0)
    record = read_ledger(folder / "ledger.jsonl")
    assert (record.streams, record.closed) == ((4, 2), True)
    assert steps_taken(record, folder) == {COST: 3}


def test_each_stream_that_ended_is_paid_for_by_itself(tmp_path):
    """Two streams of a step each cost two of three, so that a third one has two steps."""
    folder, settings = tmp_path / "run", {"eps": 1.0}
    for _ in range(2):
        kill(folder, (PrivacyEngine, "draw", 2), **settings)
        point = find_resume_point(folder)
        settings |= {"resume_point": point, "micro_batch_size": 3}
    go(folder, **settings)
    record = read_ledger(folder / "ledger.jsonl")
    assert record.streams == (1, 1, 2) and steps_taken(record, folder) == {COST: 3}


def test_a_torn_line_may_be_of_another_stream(tmp_path):
    folder = kill(tmp_path / "run", "inside the ledger's write")
    shutil.rmtree(folder / "private")
    assert steps_taken(read_run_ledger(folder), folder) == {COST: 2 + 1}


def test_a_run_that_broke_off_ends_with_fewer_steps_that_cost_as_many(tmp_path):
    """Six steps cost three; three of them cost two, and what is left are two more."""
    folder, six = tmp_path / "run", PLAN.replace(steps=6, phases=plan(steps=6).phases)
    kill(folder, (PrivacyEngine, "draw", 4), of=six)
    go_on(folder, micro_batch_size=3, eps=1.0, of=six)
    record = read_ledger(folder / "ledger.jsonl")
    assert record.streams == (3, 2) and record.closed
    check_ledger(record, six)
    assert read_spent(str(folder)).taken == {COST: 3}
    assert six.may_end_after((5,)), "where nothing was left for another stream"
    assert not six.may_end_after((4,)) and not six.may_end_after((2, 2)), "they were cut"


def test_a_run_that_began_a_stream_is_replayed_in_it(tmp_path, caplog):
    folder = kill(tmp_path / "run", "after the update")
    settings = {"micro_batch_size": 3, "overspend": True}
    with killed(PrivacyEngine, "draw", 3):
        go_on(folder, **settings)
    resume_point = find_resume_point(folder)
    assert (resume_point.checkpoint.step, resume_point.checkpoint.run.stream) == (4, 4)
    caplog.clear()
    go(folder, resume_point=resume_point, **settings)
    assert "new noise" not in caplog.text
    assert read_ledger(folder / "ledger.jsonl").streams == (4, 3)


def test_a_copied_folder_begins_a_stream_of_its_own(tmp_path, caplog):
    kill(tmp_path / "run", "after the update")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    resume_point = find_resume_point(tmp_path / "copy")
    weights = go(tmp_path / "copy", resume_point=resume_point, overspend=True)
    assert "the folder was copied or restored" in caplog.text
    original = go_on(tmp_path / "run")
    assert not same(weights, original)


def test_its_draws_come_from_its_groups_in_turn(undisturbed, tmp_path, monkeypatch):
    """At rate 1 everybody is in every second step."""
    drawn: list[list[int]] = []
    draw = PrivacyEngine.draw

    def seen(engine, num_units):
        drawn.append(draw(engine, num_units))
        return drawn[-1]

    monkeypatch.setattr(PrivacyEngine, "draw", seen)
    go(tmp_path / "run")
    assert drawn[0] == drawn[2] == drawn[4] and drawn[1] == drawn[3]
    assert sorted(drawn[0] + drawn[1]) == list(range(12)) and drawn[0] != drawn[1]
