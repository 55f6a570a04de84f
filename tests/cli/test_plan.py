import json

import pytest

from tests.slowness import slow
from tests.stories.tiny import TRAINING, Outcome, Workspace, make_workspace

NOISE = "privacy.noise_multiplier=1"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_workspace(tmp_path_factory.mktemp("plan"))


@pytest.fixture(scope="module")
def measured(workspace: Workspace) -> Outcome:
    arguments = (*TRAINING, NOISE, "train.epochs=1", "privacy.delta=0.03", "task.max_length=16")
    arguments += ("privacy.allow_large_delta=true",)
    return workspace.run("plan", *arguments, "output=json")


@pytest.mark.slow
def test_json_output_has_the_mechanism_and_the_parameters(measured: Outcome) -> None:
    record = json.loads(measured.out)
    assert record["plan"]["num_examples"] == 40
    assert (record["plan"]["steps"], record["plan"]["sample_rate"]) == (5, 0.2)
    parameters = record["parameters"]
    assert parameters["trainable"] == parameters["total"] > 0
    assert parameters["new"] == 0
    assert set(record["epsilons"]) == {"rdp", "gdp", "pld", "prv"}
    assert "ledger" not in record and "steps_taken" not in record


@pytest.mark.slow
def test_the_time_of_a_step_is_measured(measured: Outcome) -> None:
    record = json.loads(measured.out)["measured"]
    assert record["seconds_total"] == pytest.approx(5 * record["seconds_per_step"])


@pytest.mark.slow
def test_a_large_delta_that_is_allowed_is_warned_of(measured: Outcome) -> None:
    assert measured.code == 0
    (warning,) = measured.err.splitlines()
    assert warning.startswith("WARNING: delta = 0.03 is above 1/num_examples")


@pytest.mark.slow
def test_noise_that_drowns_any_signal_is_warned_of(workspace: Workspace) -> None:
    given = ("privacy.noise_multiplier=1e5", "privacy.accountant=rdp", "output=json")
    outcome = workspace.run("plan", *TRAINING, *given)
    assert "WARNING: the noise drowns any signal" in outcome.err
    warning = json.loads(outcome.out)["warnings"][-1]
    assert warning.startswith("the noise drowns any signal") and "parameters" in warning


@pytest.mark.slow
def test_planning_leaves_no_files(measured: Outcome) -> None:
    assert measured.new == frozenset()


@pytest.mark.slow
def test_a_plan_needs_no_weights_and_no_data_where_the_size_is_public(
    workspace: Workspace,
) -> None:
    bare = workspace.root / "bare"
    bare.mkdir()
    (bare / "config.json").write_bytes((workspace.root / "model" / "config.json").read_bytes())
    arguments = ("task=e2e", "model=gpt2", "model.path=bare", NOISE, "privacy.accountant=rdp")
    outcome = workspace.run("plan", *arguments)
    assert outcome.code == 0, outcome.err
    assert "examples            42061 (taken as public)" in outcome.out
    assert "steps               410" in outcome.out
    assert outcome.out.startswith("trainable parameters")


@pytest.mark.slow
def test_a_plan_without_privacy_says_so_first(workspace: Workspace) -> None:
    outcome = workspace.run("plan", *TRAINING[:-1], "experiment=demo", "privacy=none")
    assert outcome.out.startswith("NOT PRIVATE")
    record = workspace.run("plan", *TRAINING[:-1], "privacy=none", "output=json")
    assert json.loads(record.out)["private"] is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["privacy.eps and privacy.noise_multiplier", "neither"]),
        ([NOISE, "plan.mesure=true"], ["plan.mesure", "did you mean plan.measure=true?"]),
        *slow(
            ([NOISE, "train.expected_batch_size=41"], ["at most the 40 examples, got 41"]),
            ([NOISE, "task.max_length=129"], ["task.max_length", "128 positions"]),
            ([NOISE, "output=xml"], ['output must be table | json, got "xml"']),
            ([NOISE, "train.steps=1", "train.epochs=1"], ["train.epochs and train.steps", "both"]),
            ([NOISE, "privacy.delta=1"], ["privacy.delta must be below 1, got 1"]),
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    workspace: Workspace, arguments: list[str], parts: list[str]
) -> None:
    sentence = workspace.refusal("plan", *TRAINING, *arguments)
    assert [part for part in parts if part not in sentence] == [], sentence


@pytest.mark.slow
def test_an_unreachable_configuration_names_the_ways_out(workspace: Workspace) -> None:
    sentence = workspace.refusal("plan", "task=e2e", "model=gpt2", NOISE)
    assert all(way in sentence for way in ("model.path=DIR", "task.data_dir=DIR", "model=tiny"))
