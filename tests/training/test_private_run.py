"""Runs that break off at the worst moments, and go on as if nothing had happened."""

import json
import os
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from dpft.errors import StateError
from dpft.privacy.engine import PrivacyEngine
from dpft.privacy.journal import KnownLedger, read_run_ledger
from dpft.privacy.ledger import first_line, hash_of, read_ledger
from dpft.run_folder import KEYS
from dpft.training import loop as loop_module
from dpft.training.checkpoint import check_promises, find_resume_point
from tests.privacy.test_ledger import as_before
from tests.rejections import rejects
from tests.slowness import slow_but
from tests.training.killed_runs import MOMENTS, Killed, go, go_on, kill, killed, on_call, same
from tests.training.toy import plan, privacy, session, tiny_model, train_ordinarily


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, go(folder)


@pytest.mark.parametrize("moment", slow_but(["between ledger and update"], MOMENTS))
def test_trust_rule_9_a_killed_run_goes_on_bit_by_bit(tmp_path, undisturbed, moment):
    folder, expected = kill(tmp_path / "run", moment), undisturbed[1]
    resume_point = find_resume_point(folder)
    if not resume_point.has_ended:
        assert same(go(folder, resume_point=resume_point), expected)
    records = [read_ledger(each / "ledger.jsonl") for each in (folder, undisturbed[0])]
    assert records[0].mechanisms == records[1].mechanisms
    assert [record.closed for record in records] == [True, True]
    assert records[0].run_id == resume_point.run_id != records[1].run_id
    assert not list(folder.rglob("*.partial"))


@pytest.mark.slow
def test_a_run_that_goes_on_has_the_ratios_of_one_that_was_never_disturbed(tmp_path, undisturbed):
    """Step 3 and 4 are taken again, and measured again."""
    folder = kill(tmp_path / "run", "inside a checkpoint's write")
    broken = signal_to_noise(folder)
    go_on(folder)
    expected = signal_to_noise(undisturbed[0])
    assert [step for step, _ in expected] == [1, 2, 3, 4, 5]
    assert broken == expected[:4]
    assert signal_to_noise(folder) == [*broken, *expected[2:]]


def signal_to_noise(folder):
    """Return each measured step and its ratio, in the order in which the steps were taken."""
    lines = (folder / "private/diagnostics.jsonl").read_text().splitlines()
    entries = [entry for line in lines if "step" in (entry := json.loads(line))]
    return [(entry["step"], entry["signal_to_noise"]) for entry in entries]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rgp", "bitfit", "lora"])
def test_a_methods_own_state_survives_too(tmp_path, method):
    expected = go(tmp_path / "whole", method=method)
    folder = kill(tmp_path / "run", "after the update", method=method)
    assert same(go_on(folder, method=method), expected)


@pytest.mark.slow
def test_trust_rule_9_another_environment_draws_new_noise_and_counts_it(tmp_path, undisturbed):
    """Four steps are in the ledger and two in the checkpoint: five in all leave one to take."""
    folder = kill(tmp_path / "run", "after the update")
    weights = go_on(folder, micro_batch_size=3, eps=1.0)
    record = read_ledger(folder / "ledger.jsonl")
    assert (record.steps, record.closed) == (5, True)
    assert [path.name for path in (folder / "private/checkpoints").iterdir()] == ["step-00000003"]
    assert not same(weights, undisturbed[1])


@pytest.mark.slow
def test_trust_rule_4_no_generator_state_outlives_a_run_that_broke_off_while_saving_them(tmp_path):
    """With a budget the run ends before the step whose checkpoint was half-written."""
    folder = kill(tmp_path / "run", "before a checkpoint has its name")
    assert list(folder.rglob(".step-*.partial/" + KEYS))
    go_on(folder, micro_batch_size=3, eps=1.0)
    assert read_ledger(folder / "ledger.jsonl").closed
    assert not list(folder.rglob(KEYS)) and not list(folder.rglob("*.partial"))


@pytest.mark.slow
def test_trust_rule_9_a_run_with_redone_steps_is_replayed_like_any_other(tmp_path, caplog):
    """Step 3 and 4 are redone as lines 5 and 6; step 5, line 7, is replayed at no cost."""
    folder = kill(tmp_path / "run", "after the update")
    settings = {"micro_batch_size": 3, "overspend": True}
    with killed(loop_module, "check_weights", 3):
        go_on(folder, **settings)
    resume_point = find_resume_point(folder)
    assert (resume_point.checkpoint.step, resume_point.ledger.steps) == (4, 7)
    caplog.clear()
    go(folder, resume_point=resume_point, **settings)
    assert "differs from the original" not in caplog.text and "new noise" not in caplog.text
    assert read_ledger(folder / "ledger.jsonl").steps == 7


@pytest.mark.slow
def test_trust_rule_9_a_replay_after_redone_steps_stays_within_the_budget(tmp_path):
    """Step 1 is lines 1 and 2, step 2 line 3, step 3 line 4, replayed; step 4 ends it."""
    settings = {"micro_batch_size": 2, "eps": 1.0}
    folder = kill(tmp_path / "run", (loop_module, "check_weights", 1))
    with killed(loop_module, "check_weights", 3):
        go_on(folder, **settings)
    assert find_resume_point(folder).checkpoint.step == 2
    go_on(folder, **settings)
    assert read_ledger(folder / "ledger.jsonl").steps == plan().steps
    assert find_resume_point(folder).checkpoint.step == plan().steps - 1


@pytest.mark.slow
def test_trust_rule_9_a_run_may_overspend_if_it_is_told_to(tmp_path):
    folder = kill(tmp_path / "run", "after the update")
    resume_point = find_resume_point(folder)
    go(folder, resume_point=resume_point, micro_batch_size=3, eps=1.0, overspend=True)
    assert read_ledger(folder / "ledger.jsonl").steps == 7
    assert (folder / "private/checkpoints/step-00000005").is_dir()


@pytest.mark.slow
def test_trust_rule_9_a_torn_line_counts_and_is_a_step_of_its_own_where_noise_is_new(tmp_path):
    folder = kill(tmp_path / "run", "inside the ledger's write")
    torn = read_ledger(folder / "ledger.jsonl")
    assert (torn.steps, torn.counted_steps) == (3, 4)
    go_on(folder, micro_batch_size=3, eps=1.0, overspend=True)
    assert read_ledger(folder / "ledger.jsonl").steps == 4 + 3


@pytest.mark.slow
def test_trust_rule_9_a_replay_that_comes_out_otherwise_stops_before_the_update(tmp_path, caplog):
    folder = kill(tmp_path / "run", "after the update")
    journal = folder / "private" / "steps.jsonl"
    lines = journal.read_text().splitlines()
    entry = json.loads(lines[2])
    lines[2] = json.dumps(entry | {"sum": (float.fromhex(entry["sum"]) + 1e-12).hex()})
    journal.write_text("\n".join(lines) + "\n")
    go_on(folder, eps=1.0)
    assert "a repeated step differs from the original" in caplog.text
    assert read_ledger(folder / "ledger.jsonl").steps == 5


@pytest.mark.slow
@pytest.mark.parametrize(("key", "value"), [("noise_seed", None), ("show_diagnostics", True)])
def test_trust_rule_4_what_the_report_says_of_a_run_is_what_it_began_with(tmp_path, key, value):
    """Else a run of predictable noise would be private once its seed was edited out."""
    kill(tmp_path / "run", "after the update")
    resume_point = find_resume_point(tmp_path / "run")
    check_promises(resume_point, privacy())
    with rejects(f"privacy.{key}"):
        check_promises(resume_point, privacy().replace(**{key: value}))


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["after the update", "before a checkpoint has its name"])
def test_trust_rule_4_a_copied_folder_draws_new_noise(tmp_path, caplog, moment):
    """Original and copy both go on: no step of one has noise of the other, nor of its own past."""
    kill(tmp_path / "run", moment)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    weights = go_on(tmp_path / "copy", overspend=True)
    assert "the folder was copied or restored" in caplog.text
    assert "new noise from step" in caplog.text
    assert read_ledger(tmp_path / "copy" / "ledger.jsonl").steps > plan().steps
    original = go_on(tmp_path / "run")
    assert not same(weights, original)


@pytest.mark.slow
def test_trust_rule_4_a_copy_draws_new_noise_with_nothing_to_redo(tmp_path, caplog):
    """Killed right after a checkpoint: the copy would go on with the original's next noise."""
    folder = kill(tmp_path / "run", (PrivacyEngine, "draw", 3))
    resume_point = find_resume_point(folder)
    assert resume_point.checkpoint.step == resume_point.ledger.steps == 2
    shutil.copytree(folder, tmp_path / "copy")
    keys = [moved_keys(tmp_path / name) for name in ("copy", "run")]
    assert "the folder was copied or restored" in caplog.text
    assert keys[1] == resume_point.checkpoint.read_keys().content["keys"]["noise"] != keys[0]


def moved_keys(folder) -> str:
    """The noise key that the run in a folder takes its next step with, as it goes on."""
    seen = []

    def stop(engine, num_units):
        seen.append(engine.state().generators["keys"]["noise"])
        raise Killed

    with killed(PrivacyEngine, "draw", lambda _: stop):
        go_on(folder)
    return seen[0]


@pytest.mark.slow
def test_trust_rule_4_another_environment_draws_new_noise_with_nothing_to_redo(
    tmp_path, monkeypatch
):
    folder = kill(tmp_path / "run", (PrivacyEngine, "draw", 3))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 77)
        key = moved_keys(folder)
    assert key != find_resume_point(folder).checkpoint.read_keys().content["keys"]["noise"]


@pytest.mark.slow
def test_trust_rule_4_older_checkpoints_that_are_kept_have_lost_their_keys(tmp_path):
    """Their keys would give, step by step, the noise of all that came after them."""
    kill(tmp_path / "run", "before the ledger is closed", keep=3)
    paths = sorted((tmp_path / "run/private/checkpoints").iterdir())
    assert [path.name for path in paths] == ["step-00000002", "step-00000004", "step-00000005"]
    assert [(path / KEYS).exists() for path in paths] == [False, False, True]


@pytest.mark.slow
@pytest.mark.parametrize("torn", [True, False])
def test_trust_rule_9_a_journaled_step_never_comes_out_otherwise(tmp_path, caplog, torn):
    """Step 4 is in the journal; its ledger line, torn or not begun, does not excuse another sum."""
    folder = tmp_path / "run"
    moment = "inside the ledger's write" if torn else "between journal and ledger"
    kill(folder, moment)
    journal = folder / "private" / "steps.jsonl"
    *lines, last = journal.read_text().splitlines()
    entry = json.loads(last)
    assert entry["step"] == 4
    last = json.dumps(entry | {"sum": (float.fromhex(entry["sum"]) + 1e-12).hex()})
    journal.write_text("\n".join([*lines, last]) + "\n")
    go_on(folder, overspend=True)
    assert "a repeated step differs from the original" in caplog.text
    # the three steps before, the abandoned one and, from the checkpoint of step 2, three again
    assert read_run_ledger(folder).steps == 4 + 3


@pytest.mark.slow
def test_trust_rule_9_a_step_that_only_the_journal_has_counts_where_noise_is_new(tmp_path):
    folder = kill(tmp_path / "run", "between journal and ledger")
    resume_point = find_resume_point(folder)
    assert (resume_point.ledger.steps, resume_point.ledger.counted_steps) == (3, 4)
    go(folder, resume_point=resume_point, micro_batch_size=3, eps=1.0)
    # two of five are in the weights and four are spent: one more
    assert read_run_ledger(folder).steps == 5
    assert [path.name for path in (folder / "private/checkpoints").iterdir()] == ["step-00000003"]


@pytest.mark.slow
def test_trust_rule_9_a_torn_step_without_a_journal_entry_gets_one_that_says_so(tmp_path):
    folder = kill(tmp_path / "run", "after the update")
    with (folder / "ledger.jsonl").open("a") as file:
        file.write('{"mechanism": {"na')
    go_on(folder, micro_batch_size=3, overspend=True)
    entries = (folder / "private" / "steps.jsonl").read_text().splitlines()
    assert json.loads(entries[4]) == {"step": 5, "abandoned": True}
    assert read_run_ledger(folder).steps == len(entries) == 5 + 3


@pytest.mark.slow
def test_trust_rule_9_a_ledger_that_lost_two_lines_of_its_journal_is_refused(tmp_path):
    folder = kill(tmp_path / "run", "after the update")
    ledger = folder / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:3]))
    with pytest.raises(StateError, match="4 .* 2"):
        find_resume_point(folder)


@pytest.mark.slow
def test_trust_rule_4_the_first_checkpoint_is_whole_before_the_ledgers_first_line(tmp_path):
    """It has the head of the line to come, so that no other run's can take its place."""
    folder = kill(tmp_path / "run", "before the first line")
    assert (folder / "ledger.jsonl").read_bytes() == b""
    known = find_resume_point(folder).checkpoint.run
    line = first_line(known.run_id, known.plan, known.clipper).text
    assert known.ledger == KnownLedger(lines=1, head=hash_of(line), position=0)
    (folder / "ledger.jsonl").write_text(first_line("0" * 32, known.plan).text + "\n")
    with pytest.raises(StateError, match="line 1"):
        find_resume_point(folder)
    (folder / "ledger.jsonl").write_text(line + "\n")
    assert find_resume_point(folder).ledger.run_id == known.run_id


@pytest.mark.slow
def test_a_seeded_run_has_a_random_name_all_the_same(tmp_path):
    """The seed makes its noise known; two runs are two runs."""
    names = []
    for name in ("a", "b"):
        go(tmp_path / name)
        names.append(read_ledger(tmp_path / name / "ledger.jsonl").run_id)
    assert privacy().noise_seed is not None and names[0] != names[1]


@pytest.mark.slow
def test_a_run_of_an_earlier_version_does_not_go_on(tmp_path):
    """Its ledger has no plan."""
    folder = kill(tmp_path / "run", "after the update")
    as_before(folder / "ledger.jsonl")
    with rejects():
        find_resume_point(folder)


@pytest.mark.slow
def test_a_checkpoint_of_another_plan_is_refused(tmp_path):
    folder = kill(tmp_path / "run", "after the update")
    found = find_resume_point(folder)
    bound = found.checkpoint.run
    run = bound.replace(plan=bound.plan.replace(delta=1e-9))
    edited = replace(found, checkpoint=replace(found.checkpoint, run=run))
    with pytest.raises(StateError, match=str(found.checkpoint.path)):
        edited.plan()
    assert found.plan() == found.ledger.plan


def test_the_journal_is_private_and_ahead_of_the_ledger(undisturbed):
    journal = undisturbed[0] / "private" / "steps.jsonl"
    assert journal.stat().st_mode & 0o777 == 0o600
    steps = [json.loads(line)["step"] for line in journal.read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("cut", [slice(1, None), slice(None, 2)])
def test_a_ledger_that_the_checkpoint_does_not_know_is_refused(tmp_path, cut):
    folder = kill(tmp_path / "run", "before the ledger is closed")
    ledger = folder / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[cut]))
    with pytest.raises(StateError) as error:
        find_resume_point(folder)
    assert error.value.exit_code == 3


@pytest.mark.slow
def test_a_damaged_byte_of_any_file_of_a_checkpoint_is_refused(tmp_path):
    folder = kill(tmp_path / "run", "after the update")
    (checkpoint,) = (folder / "private" / "checkpoints").glob("step-*")
    for file in sorted(checkpoint.iterdir()):
        whole = file.read_bytes()
        for damaged in (whole[:-2], whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]):
            file.write_bytes(damaged)
            with pytest.raises(StateError):
                find_resume_point(folder)
        file.write_bytes(whole)
    assert find_resume_point(folder).checkpoint.step == 2


def test_a_closed_run_has_ended_and_its_secrets_are_gone(undisturbed):
    resume_point = find_resume_point(undisturbed[0])
    assert resume_point.has_ended and not resume_point.checkpoint.has_keys
    assert not list(undisturbed[0].rglob(KEYS))
    assert resume_point.plan() == plan()


@pytest.mark.slow
def test_an_ordinary_run_goes_on_bit_by_bit(tmp_path):
    weights = []
    for name in ("whole", "killed"):
        own, resume_point = session(tmp_path / name, tiny_model(), checkpoint_every=2), None
        torch.manual_seed(4)
        if name == "killed":
            with killed(loop_module, "check_weights", 4):
                train_ordinarily(own, 5)
            own = session(tmp_path / name, tiny_model(seed=8), checkpoint_every=2)
            resume_point = find_resume_point(tmp_path / name)
        train_ordinarily(own, 5, resume_point)
        weights.append({key: p.detach().clone() for key, p in own.model.named_parameters()})
    assert same(*weights)
    assert find_resume_point(tmp_path / "killed").has_ended


@pytest.mark.slow
def test_sigterm_ends_the_run_after_a_whole_step_with_a_checkpoint(
    tmp_path, monkeypatch, undisturbed
):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        signaled = on_call(3, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        patch.setattr(loop_module, "check_weights", signaled(loop_module.check_weights))
        with pytest.raises(SystemExit) as ended:
            go(folder)
    assert ended.value.code == 143
    resume_point = find_resume_point(folder)
    assert resume_point.checkpoint.step == resume_point.ledger.steps == 3
    assert same(go(folder, resume_point=resume_point), undisturbed[1])


def test_a_checkpoint_holds_what_noise_covers_and_no_norm_or_activation(undisturbed):
    """Weights and the optimizer's moments are post-processing of noisy gradients."""
    (checkpoint,) = (undisturbed[0] / "private" / "checkpoints").iterdir()
    files = {path.name for path in checkpoint.iterdir()}
    assert files == {"model.safetensors", "optimizer.safetensors", "state.json"}
    model, weights = tiny_model(), load_file(checkpoint / "model.safetensors")
    assert weights.keys() == dict(model.named_parameters()).keys()
    moments = load_file(checkpoint / "optimizer.safetensors")
    expected = {f"{name}/{key}" for name in weights for key in ("step", "exp_avg", "exp_avg_sq")}
    assert moments.keys() == expected
    state = json.loads((checkpoint / "state.json").read_text())
    assert state.keys() == {
        "schema_version", "step", "scheduler_step", "run", "shards", "keys_changed", "checksums",
        "checksum",
    }  # fmt: skip
    assert state["run"].keys() == {
        "plan", "clipper", "environment", "frozen", "ledger", "promises", "run_id", "stream"
    }  # fmt: skip
    assert state["run"]["frozen"] == {}  # Everything trains.
