import json
import re

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
def test_a_large_delta_that_is_allowed_is_warned_of(measured: Outcome) -> None:
    assert measured.code == 0
    (warning,) = measured.err.splitlines()
    assert warning.startswith("WARNING: delta = 0.03 is above 1/num_examples")


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
    assert re.match(r"about .*, ε 3\.\d+\n\ntrainable parameters", outcome.out)


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
        ([], ["privacy.eps", "privacy.noise_multiplier"]),
        ([NOISE, "plan.mesure=true"], ["plan.mesure", "plan.measure=true"]),
        *slow(
            ([NOISE, "train.expected_batch_size=41"], ["train.expected_batch_size", "40", "41"]),
            ([NOISE, "task.max_length=129"], ["task.max_length", "128"]),
            ([NOISE, "train.steps=1", "train.epochs=1"], ["train.epochs", "train.steps"]),
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    workspace: Workspace, arguments: list[str], parts: list[str]
) -> None:
    sentence = workspace.refusal("plan", *TRAINING, *arguments)
    assert [part for part in parts if part not in sentence] == [], sentence
