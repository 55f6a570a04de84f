from pathlib import Path

import pytest
import yaml

from dpft.errors import InputError, StateError
from dpft.privacy.spending import Noise
from dpft.records.ledger import Calibration
from dpft.runs.saved_run import find_ledgers, read_ended_ledger, read_spent
from tests.runs.spending.run_folders import (
    BATCH,
    NOISE,
    SIZE,
    edit,
    make_plan,
    make_run,
    mechanism,
)

USUAL = Noise(noise_multiplier=NOISE, sample_rate=BATCH / SIZE)


@pytest.mark.parametrize("kept", [6, 3, 0])
def test_a_ledger_cut_after_the_run_ended_is_refused_by_line_number(
    tmp_path: Path, kept: int
) -> None:
    folder = make_run(tmp_path / "a")
    lines = (folder / "ledger.jsonl").read_text().splitlines(keepends=True)
    (folder / "ledger.jsonl").write_text("".join(lines[:kept]))
    with pytest.raises(StateError, match=f"line {kept + 1}: the ledger must have 7 lines"):
        read_spent(str(folder))


@pytest.mark.parametrize("ended", [True, False])
def test_the_ledger_alone_says_what_a_run_spent(tmp_path: Path, ended: bool) -> None:
    """What stands in other files, or whether they are there, changes nothing."""
    folder = make_run(tmp_path / "a", ended=ended, delta=0.01)
    whole = read_spent(str(folder))
    assert (whole.taken, whole.plan.delta, whole.differences) == ({USUAL: 5}, 0.01, ())
    (folder / "config.yaml").unlink()
    (folder / "privacy.json").unlink(missing_ok=True)
    alone = read_spent(str(folder))
    assert (alone.taken, alone.plan, alone.end) == (whole.taken, whole.plan, whole.end)


@pytest.mark.parametrize(
    ("file", "changes", "named"),
    [
        ("privacy", {"delta": 0.3}, "privacy.json: delta must be 0.0125, as the ledger says"),
        ("privacy", {"unit": "city"}, "privacy.json: unit must be 'example', as the ledger says"),
        ("privacy", {"epsilon": 0.1}, "privacy.json: epsilon must be 1.0, as the ledger says"),
        ("config", {"delta": 0.3}, "config.yaml: privacy.delta must be 0.0125, as the ledger"),
        ("config", {"unit": "city"}, "config.yaml: privacy.unit must be 'example', as the"),
        ("config", {"eps": 8.0}, "config.yaml: privacy.eps must be 1.0, as the ledger says"),
        ("config", {"noise_seed": 3}, "config.yaml: privacy.noise_seed must be False"),
    ],
)
def test_what_another_file_says_otherwise_is_named_and_not_believed(
    tmp_path: Path, file: str, changes: dict, named: str
) -> None:
    calibration = Calibration(accountant="rdp", epsilon=1.0, grid="g", target=1.0)
    folder = make_run(tmp_path / "a", plan=make_plan(calibration=calibration), eps=1.0)
    if file == "privacy":
        edit(folder, **changes)
    else:
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["privacy"] |= changes
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    run = read_spent(str(folder))
    assert (run.plan.delta, run.plan.unit, run.plan.reproducible) == (1 / 80, "example", False)
    assert any(named in text for text in run.differences)
    with pytest.raises(StateError, match=named.replace(".", r"\.")):
        read_ended_ledger(folder)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("privacy.json", "{"),
        ("privacy.json", '{"schema_version": 9}'),
        ("config.yaml", "[" * 5000),
        ("config.yaml", f"privacy: {{delta: 1{'0' * 400}}}"),
    ],
)
def test_a_damaged_file_beside_the_ledger_is_named_and_not_needed(
    tmp_path: Path, name: str, text: str
) -> None:
    folder = make_run(tmp_path / "a")
    (folder / name).write_text(text)
    run = read_spent(str(folder))
    assert run.steps == 5 and any(name in text for text in run.differences)


@pytest.mark.parametrize("ledger", [{}, {"lines": "x", "head": 3}, {"lines": 99, "head": "f" * 64}])
def test_what_privacy_json_says_of_a_ledger_that_has_ended_is_its_own_fault(
    tmp_path: Path, ledger: dict
) -> None:
    folder = make_run(tmp_path / "a")
    edit(folder, ledger=ledger)
    run = read_spent(str(folder))
    assert run.steps == 5 and all("privacy.json" in text for text in run.differences)
    with pytest.raises(StateError, match=r"privacy\.json"):
        read_ended_ledger(folder)


def test_a_flipped_head_is_the_fault_of_the_file_that_has_it(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    edit(folder, ledger={"lines": 7, "head": "f" * 64})
    (text,) = read_spent(str(folder)).differences
    assert text.startswith(f"{folder / 'privacy.json'}: ledger.head must be ")


def test_another_runs_ledger_in_its_place_answers_for_itself_and_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    other = make_run(tmp_path / "b", mechanism(9.0), plan=make_plan(1, noise_multiplier=9.0))
    (other / "ledger.jsonl").replace(folder / "ledger.jsonl")
    assert read_spent(str(folder)).plan.noise_multiplier == 9.0
    with pytest.raises(StateError, match=r"privacy\.json: ledger\.lines must be 3"):
        read_ended_ledger(folder)


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "laplace", "noise_multiplier": 1.0, "sample_rate": 0.1},
        mechanism(noise_multiplier=9.0),
        mechanism(sample_rate=0.1),
        mechanism() | {"sensitivity": 0.2},
        mechanism() | {"noise_multiplier": 10**400},
    ],
)
def test_a_step_that_is_not_the_plans_is_refused_by_line_number(
    tmp_path: Path, entry: dict
) -> None:
    folder = make_run(tmp_path / "a", mechanism(), entry, ended=False)
    with pytest.raises(StateError, match="line 3: the step must be of a mechanism of the plan"):
        read_spent(str(folder))


@pytest.mark.parametrize("text", ["", '{"mechanism": {"name"', '{"plan": {"acc'])
def test_a_ledger_that_lost_its_plan_is_no_run_that_spent_nothing(
    tmp_path: Path, text: str
) -> None:
    folder = make_run(tmp_path / "a", ended=False)
    (folder / "ledger.jsonl").write_text(text)
    with pytest.raises(StateError, match="line 1: the first line is torn or gone"):
        read_spent(str(folder))


def test_a_run_without_privacy_is_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", name="none")
    (folder / "ledger.jsonl").unlink()
    (folder / "privacy.json").unlink()
    with pytest.raises(InputError, match="privacy=none"):
        read_spent(str(folder))
    with pytest.raises(InputError, match="does not exist"):
        read_spent(str(tmp_path / "b"))


def test_a_trials_ledger_answers_for_no_search(tmp_path: Path) -> None:
    """Its own line says so: the folder may be handed on without the search's files."""
    folder = make_run(tmp_path / "a", plan=make_plan(is_trial=True), ended=False)
    with pytest.raises(InputError, match="one of a secret number of runs"):
        read_spent(str(folder))
    assert read_spent(str(folder), trial=True).steps == 5


def test_every_ledger_below_a_folder_is_found(tmp_path: Path) -> None:
    """outputs/DATE/TIME is two folders deep: such runs were left out without a word."""
    for name in ("2026-01-01/10", "2026-01-01/2", "sweep/0/0", "top"):
        make_run(tmp_path / name, mechanism(), ended=False)
    made = make_run(tmp_path / "top/private/tuning/trial-0", mechanism(), ended=False)
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing/config.yaml").write_text("privacy: {name: dp}")
    found = find_ledgers([str(tmp_path)])
    names = [Path(name).relative_to(tmp_path).as_posix() for name in found.folders]
    assert names == ["2026-01-01/2", "2026-01-01/10", "sweep/0/0", "top"]
    assert found.left_out == (f"{tmp_path / 'nothing'}: no noisy step was taken in it",)
    assert find_ledgers([str(made)]).folders == (str(made),)


def test_runs_in_runs_and_links_are_not_passed_over(tmp_path: Path) -> None:
    top = make_run(tmp_path / "runs", mechanism(), ended=False)
    make_run(top / "again", mechanism(), ended=False)
    make_run(tmp_path / "runs/private", mechanism(), ended=False)
    make_run(tmp_path / "private/mine", mechanism(), ended=False)
    (tmp_path / "lost/private").mkdir(parents=True)
    (tmp_path / "lost/private/steps.jsonl").write_text('{"step": 1}\n')
    (top / "tracking").mkdir()
    (top / "tracking/config.yaml").write_text("privacy: {name: none}")
    (tmp_path / "linked").symlink_to(top)
    found = find_ledgers([str(tmp_path)])
    names = [Path(name).relative_to(tmp_path).as_posix() for name in found.folders]
    assert names == ["lost", "private/mine", "runs", "runs/again"]
    assert found.left_out == (
        f"{tmp_path / 'linked'}: a symbolic link, which is not followed; name its folder",
    )


def test_what_no_total_covers_is_refused_or_left_out_by_word(tmp_path: Path) -> None:
    private = make_run(tmp_path / "runs/a")
    open_run = make_run(tmp_path / "runs/b", name="none")
    state = open_run / "private/checkpoints/step-00000000/state.json"
    state.parent.mkdir(parents=True)
    state.write_text('{"schema_version": 1}')
    for name in ("ledger.jsonl", "privacy.json"):
        (open_run / name).unlink()
    with pytest.raises(InputError, match=r"privacy=none.*leave it out by leave_out="):
        find_ledgers([str(tmp_path)])
    found = find_ledgers([str(tmp_path)], leave_out=[str(open_run)])
    assert found.folders == (str(private),)
    assert found.left_out == (f"{open_run}: left out by leave_out",)
    with pytest.raises(InputError, match="leave_out must name runs below"):
        find_ledgers([str(private)], leave_out=[str(open_run)])
    with pytest.raises(InputError, match="got one twice"):
        find_ledgers([str(private), str(private)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"has no ledger\.jsonl in it or below"):
        find_ledgers([str(tmp_path / "empty")])


def test_runs_of_other_data_by_their_plans_are_left_out(tmp_path: Path) -> None:
    for name, data in (("a", "notes"), ("b", "mails"), ("c", None)):
        make_run(tmp_path / name, mechanism(), plan=make_plan(data_id=data), ended=False)
    found = find_ledgers([str(tmp_path)], data_id="notes")
    assert [Path(name).name for name in found.folders] == ["a", "c"]
    assert found.left_out == (f"{tmp_path / 'b'}: of other data, privacy.data_id=mails",)


def test_a_lost_ledger_is_not_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "runs/a")
    (folder / "ledger.jsonl").unlink()
    (lost,) = find_ledgers([str(tmp_path)]).folders
    with pytest.raises(InputError, match=r"has no ledger\.jsonl"):
        read_spent(lost)
    with pytest.raises(StateError, match="the ledger must have 7 lines, .* got none"):
        read_ended_ledger(folder)
