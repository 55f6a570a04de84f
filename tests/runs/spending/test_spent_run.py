import json
from pathlib import Path

import pytest
import yaml

from dpft.errors import InputError, StateError
from dpft.privacy.spending import Noise
from dpft.runs.spending.spent_run import read_spent, run_folders
from tests.runs.spending.run_folders import BATCH, NOISE, SIZE, make_run, mechanism, tear

USUAL = Noise(noise_multiplier=NOISE, sample_rate=BATCH / SIZE)


def test_an_ended_run_is_read_from_its_ledger_and_privacy_json(tmp_path: Path) -> None:
    known = {"delta": 1e-4, "epsilon": 2.0, "epsilons": {"rdp": 2.0}}
    run = read_spent(str(make_run(tmp_path / "a", known=known)))
    assert (run.taken, run.delta, run.num_examples) == ({USUAL: 5}, 1e-4, SIZE)
    assert (run.planned_steps, run.unit_definition) == (5, "one pair")


def test_a_run_that_broke_off_needs_its_ledger_and_configuration_alone(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", *[mechanism()] * 3, ended=False)
    run = read_spent(str(folder))
    # batch over sample rate is the number of units, of which delta is half the inverse
    assert (run.taken, run.num_examples, run.delta) == ({USUAL: 3}, SIZE, 1 / (2 * SIZE))
    assert not run.ledger.closed


@pytest.mark.parametrize(
    ("rule", "delta"), [(None, 1 / (2 * SIZE)), ("published", 1 / (2 * SIZE)), ("own_data", 0.002)]
)
def test_a_delta_that_nobody_gave_follows_the_rule_of_its_task(
    tmp_path: Path, rule: str | None, delta: float
) -> None:
    folder = make_run(tmp_path / "a", *[mechanism()] * 3, ended=False)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["task"] = {} if rule is None else {"default_delta": rule}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    run = read_spent(str(folder))
    assert (run.delta, run.delta_source) == (delta, rule or "published")


def test_a_torn_line_counts_as_a_step_of_the_least_noise_and_largest_rate(tmp_path: Path) -> None:
    steps = [mechanism(2.0, 0.2), mechanism(1.0, 0.1)]
    folder = make_run(tmp_path / "a", *steps, ended=False, num_examples=SIZE)
    tear(folder)
    run = read_spent(str(folder))
    assert run.steps == 3
    assert run.taken[Noise(noise_multiplier=1.0, sample_rate=0.2)] == 1


def test_a_torn_first_line_is_a_step_of_the_plan_in_the_checkpoint(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", planned=2, ended=False, num_examples=SIZE)
    (folder / "ledger.jsonl").write_text("")
    tear(folder)
    with pytest.raises(StateError, match="line 1: the first line is torn"):
        read_spent(str(folder))
    state = folder / "private" / "checkpoints" / "step-00000000" / "state.json"
    state.parent.mkdir(parents=True)
    plan = {"noise_multiplier": NOISE, "sample_rate": BATCH / SIZE, "delta": 0.001, "steps": 2}
    run = {"plan": plan, "ledger": {"lines": 0, "head": "0" * 64}}
    state.write_text(json.dumps({"schema_version": 1, "run": run}))
    spent = read_spent(str(folder))
    assert (spent.taken, spent.delta) == ({USUAL: 1}, 0.001)


@pytest.mark.parametrize("kept", [6, 3, 0])
def test_a_ledger_cut_after_the_run_ended_is_refused_by_line_number(
    tmp_path: Path, kept: int
) -> None:
    folder = make_run(tmp_path / "a")
    lines = (folder / "ledger.jsonl").read_text().splitlines(keepends=True)
    (folder / "ledger.jsonl").write_text("".join(lines[:kept]))
    with pytest.raises(StateError, match=f"line {kept + 1}: the ledger must have 7 lines"):
        read_spent(str(folder))


def test_another_runs_ledger_in_its_place_is_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    other = make_run(tmp_path / "b", *[mechanism(9.0)] * 5)
    (other / "ledger.jsonl").replace(folder / "ledger.jsonl")
    with pytest.raises(StateError, match="line 7: the ledger's head must be"):
        read_spent(str(folder))


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "laplace", "noise_multiplier": 1.0, "sample_rate": 0.1},
        mechanism(noise_multiplier=-1.0),
        mechanism(sample_rate=2.0),
        {"name": "poisson_sampled_gaussian", "noise_multiplier": "1", "sample_rate": 0.1},
    ],
)
def test_a_step_no_accountant_can_bound_is_refused_by_line_number(
    tmp_path: Path, entry: dict
) -> None:
    folder = make_run(tmp_path / "a", mechanism(), entry, ended=False)
    with pytest.raises(StateError, match="line 3: expected a poisson_sampled_gaussian"):
        read_spent(str(folder))


def test_each_number_that_the_ledger_does_not_cover_has_its_file(tmp_path: Path) -> None:
    ended = read_spent(str(make_run(tmp_path / "a"))).not_covered
    planned = ("delta", "num_examples", "steps", "unit_definition", "neighboring_relation")
    assert {ended[name] for name in planned} == {"privacy.json"}
    broken = read_spent(str(make_run(tmp_path / "b", mechanism(), ended=False))).not_covered
    assert set(broken.values()) == {"config.yaml"}
    assert set(ended) - set(broken) == {"unit_definition", "neighboring_relation"}


def test_a_run_without_privacy_and_an_unknown_schema_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="privacy=none"):
        read_spent(str(make_run(tmp_path / "a", name="none")))
    with pytest.raises(InputError, match="schema_version 1, got 7"):
        read_spent(str(make_run(tmp_path / "b", known={"schema_version": 7})))
    folder = make_run(tmp_path / "c")
    (folder / "privacy.json").write_text("{")
    with pytest.raises(StateError, match="is damaged"):
        read_spent(str(folder))


def test_a_sweeps_folder_stands_for_its_runs_in_order_without_those_of_no_step(
    tmp_path: Path,
) -> None:
    for name in ("10", "2", "0"):
        make_run(tmp_path / "sweep" / name)
    for name in ("ledger.jsonl", "privacy.json"):
        (tmp_path / "sweep" / "0" / name).unlink()
    found = run_folders(str(tmp_path / "sweep"))
    assert [Path(folder).name for folder in found] == ["2", "10"]
    assert run_folders(found[0]) == (found[0],)
    (tmp_path / "sweep" / "2" / "ledger.jsonl").unlink()
    found = run_folders(str(tmp_path / "sweep"))
    assert len(found) == 2, "a run that lost its ledger is not left out"
    with pytest.raises(StateError, match="the ledger must have 7 lines, .* got none"):
        read_spent(found[0])


def test_a_sweep_with_a_run_without_privacy_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path / "sweep" / "0")
    make_run(tmp_path / "sweep" / "1", name="none")
    with pytest.raises(InputError, match="privacy=none"):
        run_folders(str(tmp_path / "sweep"))


@pytest.mark.parametrize("finished", [True, False])
def test_a_search_is_refused_since_its_ledger_is_one_run_of_many(
    tmp_path: Path, finished: bool
) -> None:
    known = {"selection": {"eta": 0.0}} if finished else {}
    folder = make_run(tmp_path / "a", known=known, ended=finished)
    if not finished:
        (folder / "private" / "tuning").mkdir(parents=True)
    with pytest.raises(InputError, match="one of a secret number of runs"):
        read_spent(str(folder))


@pytest.mark.parametrize("key", ["noise_multiplier", "sample_rate"])
def test_a_number_beyond_every_float_is_no_mechanism(tmp_path: Path, key: str) -> None:
    folder = make_run(tmp_path / "a", mechanism() | {key: 10**400}, ended=False)
    with pytest.raises(StateError, match=r"ledger\.jsonl, line 2: expected a poisson.* Put the"):
        read_spent(str(folder))


@pytest.mark.parametrize("text", ["[" * 5000, "a: &a [*a]", "privacy: []", ""])
def test_a_configuration_that_dpft_did_not_write_is_refused(tmp_path: Path, text: str) -> None:
    folder = make_run(tmp_path / "a", mechanism(), ended=False)
    (folder / "config.yaml").write_text(text)
    with pytest.raises(InputError, match=r"config\.yaml.*put it back"):
        read_spent(str(folder))
