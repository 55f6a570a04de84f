"""An edited privacy.json is refused by what knows better, wherever it would be printed of."""

import json
import os
from pathlib import Path

import pytest
import yaml

from dpft.errors import InputError, StateError
from dpft.files import PAGE, REPORT
from dpft.privacy.ledger import Ledger, Noise, read_ledger
from dpft.privacy.mechanisms.banded import Banded
from dpft.privacy.mechanisms.histogram import GaussianHistogram
from dpft.privacy.plan import HistogramPlan, Phase, write_plan
from dpft.records.ledger import Calibration
from dpft.runs.saved_run import (
    find_ledgers,
    read_ended_ledger,
    read_finished_runs,
    read_spent,
    rebuild_report,
)
from tests.reports.folders import write_run
from tests.reports.test_privacy_record import without_privacy
from tests.runs.run_folders import (
    BATCH,
    NOISE,
    SIZE,
    edit,
    make_plan,
    make_run,
    mechanism,
    write_privacy,
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
    (folder / "config.yaml").write_text("[")  # What else is damaged hides nothing.
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


CANARIES = {"canaries": 7, "exposure_canaries": 2, "repetitions": [1, 10]}


@pytest.mark.parametrize(
    ("audit", "given", "unit"),
    [
        (None, SIZE, "example"),
        (CANARIES, SIZE - 29, "example"),
        (CANARIES, SIZE - 11, "customer"),
        (CANARIES, SIZE, "example"),
        (None, SIZE - 29, "example"),
    ],
)
def test_canaries_stand_in_the_plan_beside_the_number_that_was_given(
    tmp_path: Path, audit: dict | None, given: int, unit: str
) -> None:
    folder = make_run(tmp_path / "a", plan=make_plan(unit=unit))
    edit(folder, unit=unit)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["privacy"] |= {"num_examples": given, "unit": unit}
    config["audit"] = audit
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    own = SIZE if audit is None else SIZE - (29 if unit == "example" else 11)
    found = [each for each in read_spent(str(folder)).differences if "num_examples" in each]
    named = f"config.yaml: privacy.num_examples must be {own}, as the ledger says, got {given}"
    assert len(found) == (given != own) and all(named in each for each in found)


PHASES = {
    "full": ("full",),
    "lora": ("lora",),
    "two_phase": ("full", "bitfit"),
    "of another version": ("of another version",),
}


@pytest.mark.parametrize("named", [*PHASES, None])
@pytest.mark.parametrize("trained", PHASES)
def test_a_method_that_did_not_train_is_named(
    tmp_path: Path, trained: str, named: str | None
) -> None:
    steps = {name: 5 // len(PHASES[trained]) for name in PHASES[trained]}
    steps[PHASES[trained][-1]] += 5 - sum(steps.values())
    phases = tuple(
        Phase(method=name, steps=count, max_grad_norm=0.1, sensitivity=0.1)
        for name, count in steps.items()
    )
    folder = make_run(tmp_path / "a", plan=make_plan(phases=phases))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["method"] = None if named is None else {"name": named}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    # One that ends before the second phase begins has the first alone.
    if named in (trained, None) or (trained, named) == ("full", "two_phase"):
        assert read_spent(str(folder)).differences == ()
        read_ended_ledger(folder)
    else:
        words = f"method.name must be that of {', then '.join(PHASES[trained])}, which trained"
        with pytest.raises(StateError, match=words):
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


CALIBRATION = Calibration(accountant="rdp", epsilon=1.0, grid="g", target=1.0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that ended, without its ``private/``."""
    return make_run(tmp_path / "run", plan=make_plan(calibration=CALIBRATION), eps=1.0)


def refused(folder: Path, name: str) -> str:
    """Returns the sentence in which an edited key is refused, by all that print of the file."""
    sentences = []
    for read in (read_ended_ledger, lambda path: read_finished_runs([path])):
        pattern = rf"privacy\.json(:| is damaged:) {name}( must be | is missing)"
        with pytest.raises(StateError, match=pattern) as error:
            read(folder)
        assert error.value.exit_code == 3
        sentences.append(str(error.value))
    assert sentences[0] == sentences[1]
    return sentences[0]


def test_what_a_run_wrote_is_believed(run: Path) -> None:
    assert read_ended_ledger(run) is not None
    (finished,), _ = read_finished_runs([run])
    assert finished.privacy.epsilon == 1.0


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"steps_taken": 4}, "steps_taken"),
        ({"noise_multiplier": 9.0}, "noise_multiplier"),
        ({"sample_rate": 0.1}, "sample_rate"),
        ({"num_examples": 10 * SIZE}, "num_examples"),
        ({"epsilon": 0.5}, "epsilon"),
        ({"epsilon": 0.5, "epsilons": {"rdp": 0.5}}, "epsilon"),
        ({"accountant": "prv"}, "accountant"),
        ({"unit": "customer_id"}, "unit"),
        ({"epsilon": 0.5, "calibration": None}, "calibration"),
        ({"delta": 0.4}, "delta"),
        ({"steps": 4}, "steps"),
        ({"unit_definition": "all records of one"}, "unit_definition"),
        ({"neighboring_relation": "replace_one"}, "neighboring_relation"),
        ({"private": False}, "private"),
        ({"epsilon": 0.5, "calibration": {**vars(CALIBRATION), "epsilon": 0.5}}, "calibration"),
        ({"num_examples": 10 * SIZE, "expected_batch_size": None}, "expected_batch_size"),
        ({"num_examples": 2 * SIZE, "expected_batch_size": 2 * BATCH}, "expected_batch_size"),
    ],
)
def test_an_edit_that_contradicts_the_ledger_or_the_file_itself_is_refused(
    run: Path, changes: dict, name: str
) -> None:
    edit(run, **changes)
    refused(run, name)


@pytest.mark.parametrize(
    ("begins", "cost", "is_planned"),
    [((0, 0, 0, 0, 0), 3, True), ((0, 1, 2, 2, 2), 4, False), ((0, 0, 0, 0, 4, 4), 3, True)],
)
def test_streams_that_cost_what_is_planned_have_its_epsilon_and_no_others(
    tmp_path: Path, begins: tuple[int, ...], cost: int, is_planned: bool
) -> None:
    banded = Banded(bands=2, coefficients=(0.8, 0.6))
    plan = make_plan(
        mechanism=banded, sample_rate=2 * BATCH / SIZE, sampler=banded.sampler_name,
        calibration=CALIBRATION,
    )  # fmt: skip
    entries = [plan.entry_at(0, stream=stream) for stream in begins]
    run = make_run(tmp_path / "run", *entries, plan=plan, eps=1.0)
    record = read_ledger(run / "ledger.jsonl")
    assert plan.event(record.streams).steps == cost
    if is_planned:
        assert read_ended_ledger(run) is not None
        edit(run, participations=cost)
        assert read_ended_ledger(run) is not None
        edit(run, participations=cost - 1)
        assert f"must be {cost}" in refused(run, "participations")
    else:
        edit(run, epsilon=0.9, epsilons={"rdp": 1.0})
        assert "must be 1.0" in refused(run, "epsilon")
        edit(run, epsilon=9.0, epsilons={"rdp": 9.0})
        assert read_ended_ledger(run) is not None


def test_a_private_runs_file_states_an_epsilon(run: Path) -> None:
    """Without one it passed for a run without privacy, or lent its delta to the ledger's steps."""
    edit(run, epsilon=None, ledger=None, delta=0.4)
    with pytest.raises(StateError, match=r"privacy.json is damaged: epsilon is missing"):
        read_ended_ledger(run)
    openly = without_privacy(num_examples=80, expected_batch_size=10, steps=5)
    (run / "privacy.json").write_text(json.dumps(openly))
    with pytest.raises(StateError, match="must state the epsilon of the 5 noisy steps"):
        read_ended_ledger(run)


@pytest.mark.parametrize("changes", [{"accountant": "gdp"}, {"epsilons": None}, {"epsilon": 0.5}])
def test_without_a_calibration_epsilon_is_the_answer_of_an_accountant_that_may_lead(
    tmp_path: Path, changes: dict
) -> None:
    run = make_run(tmp_path / "run")
    assert read_ended_ledger(run) is not None
    edit(run, **changes)
    (name,) = changes
    refused(run, name)


def test_a_search_has_the_bound_that_it_was_bound_to(tmp_path: Path) -> None:
    bound = {"accountant": "rdp-selection", "epsilon": 3.0, "grid": "g"}
    plan = make_plan(is_trial=True, calibration=Calibration(**bound))
    selection = {"theorem": "T", "eta": 1.0, "gamma": 0.1, "expected_trials": 9.0}
    known = {"selection": {**selection, "search_space": {}}, "calibration": None}
    run = make_run(tmp_path / "run", plan=plan, known=known)
    assert read_ended_ledger(run) is not None
    edit(run, epsilon=0.5, epsilons={"rdp-selection": 0.5})
    refused(run, "epsilon")


def test_an_epsilon_below_what_the_ledgers_steps_show_is_refused(tmp_path: Path) -> None:
    """Nothing else contradicts it where the noise was given."""
    run = make_run(tmp_path / "run")
    edit(run, epsilon=0.05, epsilons={"rdp": 0.05})
    assert "must be at least 0." in refused(run, "epsilon")


@pytest.mark.parametrize("name", ["rdp", "pld", "prv"])
def test_another_bound_below_what_the_ledgers_steps_show_is_refused(run: Path, name: str) -> None:
    """The headline is what it was; a report has every accountant's bound beside it."""
    interval = {"lower": 0.0, "estimate": 0.01, "upper": 0.05}
    edit(run, epsilons={"rdp": 1.0, name: interval if name == "prv" else 0.05})
    with pytest.raises(StateError, match=rf"privacy\.json: epsilons\.{name} must be at least 0\."):
        read_ended_ledger(run)


def test_bounds_of_first_steps_below_what_the_ledger_shows_are_refused(run: Path) -> None:
    """They stand in the report's figure, and beside the scores of each step."""
    curve = {"steps": [2, 5], "epsilons": [0.6, 1.0], "accountants": ["rdp", "rdp"]}
    edit(run, epsilon_curve=curve)
    assert read_ended_ledger(run) is not None
    for low in ([0.001, 1.0], [0.6, 0.05]):
        edit(run, epsilon_curve=curve | {"epsilons": low})
        with pytest.raises(StateError, match=r"epsilon_curve at step \d must be at least 0\."):
            read_ended_ledger(run)
    edit(run, epsilon_curve=curve | {"epsilons": [0.6]})
    with pytest.raises(StateError, match=r"epsilon_curve: .* must be as many"):
        read_ended_ledger(run)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.05, 0.013), (0.05, None), (None, 0.013), (1.0, 2.0)]
)
def test_the_epsilon_with_a_tokenizer_is_held_against_the_ledger_too(
    run: Path, epsilon: float | None, delta: float | None
) -> None:
    """It is what a report leads with."""
    tokenizer = {"epsilon": 0.2, "delta": 1e-6, "simple_composition": 1.2}
    tokenizer["ledger"] = {"lines": 3, "head": "a" * 64}
    edit(run, epsilon_with_tokenizer=1.2, delta_with_tokenizer=0.013, tokenizer=tokenizer)
    assert read_ended_ledger(run) is not None
    edit(run, epsilon_with_tokenizer=epsilon, delta_with_tokenizer=delta)
    with pytest.raises(StateError, match=r"privacy\.json.* (epsilon|delta)_with_tokenizer"):
        read_ended_ledger(run)


def test_steps_that_were_taken_again_keep_no_calibrated_epsilon(tmp_path: Path) -> None:
    plan = make_plan(calibration=CALIBRATION)
    known = {"epsilon": 2.0, "epsilons": {"rdp": 2.0}}
    longer = make_run(tmp_path / "run", *[mechanism()] * 6, plan=plan, known=known, eps=1.0)
    assert read_ended_ledger(longer) is not None
    edit(longer, epsilon=1.0)
    refused(longer, "epsilon")


@pytest.mark.parametrize("changes", [{"epsilon": 0.5}, {"delta": 0.1}, {"num_examples": 9}])
def test_a_tokenizers_file_says_what_its_ledger_does(tmp_path: Path, changes: dict) -> None:
    histogram = GaussianHistogram(
        noise_std=40.0, l2_cap=4.0, linf_cap=1.0, words_per_record=64, delta=1e-6
    )
    step = {**histogram.entry(), "num_examples": SIZE, "num_examples_source": "given"}
    plan = HistogramPlan(
        histogram=step, num_examples=SIZE, delta=1e-6, unit_definition="one record"
    )
    with Ledger(tmp_path / "ledger.jsonl", plan=write_plan(plan)) as ledger:
        ledger.append(1, step)
        ledger.close()
    own = {name: value for name, value in step.items() if name != "name"}
    known = {"epsilon": histogram.epsilon, "accountant": "gaussian", "words_kept": 3}
    known |= {"mechanism": step["name"], "steps": 1, "sample_rate": 1.0, **own}
    known |= {"epsilon_classical": 1.0, "histogram_sha256": "a" * 64, "algorithm": "unigram"}
    known |= {"sampler": "none"}
    write_privacy(tmp_path, plan, **known)
    assert read_ended_ledger(tmp_path) is not None
    edit(tmp_path, **changes)
    (name,) = changes
    with pytest.raises(StateError, match=f"privacy.json: {name} must be .*as the ledger says"):
        read_ended_ledger(tmp_path)


def test_finished_runs_are_read_and_unfinished_ones_are_named(tmp_path: Path) -> None:
    ended = make_run(tmp_path / "sweep" / "0")
    open_ = make_run(tmp_path / "sweep" / "1", ended=False)
    records, unfinished = read_finished_runs([tmp_path / "sweep"])
    assert [record.folder for record in records] == [ended]
    assert records[0].privacy.steps_taken == 5
    assert unfinished == [open_]


def test_where_none_has_ended_the_way_to_end_them_is_said(tmp_path: Path) -> None:
    for name in "ab":
        make_run(tmp_path / name, ended=False)
    with pytest.raises(InputError, match="got 2 that have not; go on .* dpft train resume=RUN"):
        read_finished_runs([tmp_path / "a", tmp_path / "b"])


def test_a_run_whose_ledger_was_cut_has_no_record(tmp_path: Path) -> None:
    ledger = make_run(tmp_path / "run") / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(StateError, match="the ledger must have 7 lines"):
        read_finished_runs([tmp_path / "run"])


def test_a_ledger_without_its_closing_line_does_not_pass_by_an_edited_head(tmp_path: Path) -> None:
    """privacy.json is written once the ledger is closed; no head in it makes up for that line."""
    folder = make_run(tmp_path / "run")
    ledger = folder / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-1]))
    cut = read_ledger(ledger)
    edit(folder, ledger={"lines": cut.lines, "head": cut.head})
    for reads in (lambda: read_finished_runs([folder]), lambda: read_spent(str(folder))):
        with pytest.raises(StateError, match="must have its closing line, after which .*privacy"):
            reads()


def test_a_report_that_was_handed_on_without_its_ledger_is_read(tmp_path: Path) -> None:
    (make_run(tmp_path / "run") / "ledger.jsonl").unlink()
    records, _ = read_finished_runs([tmp_path / "run"])
    assert records[0].privacy.epsilon == 1.0


def test_a_ledger_that_private_knows_of_must_be_there(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "ledger.jsonl").unlink()
    (folder / "private").mkdir()
    (folder / "private/steps.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(StateError, match=r"ledger\.jsonl"):
        read_finished_runs([folder])


def test_a_link_in_a_received_folder_is_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "metrics.json").symlink_to(tmp_path / "mine")
    with pytest.raises(InputError, match="symbolic link"):
        read_finished_runs([folder])


@pytest.mark.parametrize("searched", [True, False])
def test_a_rebuilt_report_is_the_same_and_of_a_search_as_old(
    tmp_path: Path, searched: bool
) -> None:
    selection = {"theorem": "T", "eta": 1.0, "gamma": 0.1, "expected_trials": 3.0}
    selection["search_space"] = {}
    folder = write_run(tmp_path / "run", privacy={"selection": selection} if searched else {})
    (record,), _ = read_finished_runs([folder])
    rebuild_report(record)
    first = (folder / PAGE).read_bytes()
    os.utime(folder / PAGE, (1, 1))
    (folder / REPORT).unlink()
    rebuild_report(record)
    assert (folder / PAGE).read_bytes() == first and (folder / REPORT).exists()
    assert ((folder / PAGE).stat().st_mtime == 1) == searched
