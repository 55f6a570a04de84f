import json
import math

import pytest

from dpft.commands.account import CostOfNumbers, answer
from dpft.config.account import AccountConfig
from tests.slowness import slow
from tests.stories.tiny import Outcome, Workspace

PRV_ITSELF = True
SIZE = ("num_examples=1000", "expected_batch_size=10", "epochs=1")
QUICK = (*SIZE, "noise_multiplier=1", "accountant=rdp")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("account"))


@pytest.fixture(scope="module")
def large_delta(workspace: Workspace) -> Outcome:
    return workspace.run("account", *QUICK, "delta=0.002", "output=json")


def test_noise_for_an_epsilon_is_printed_as_a_small_table(workspace: Workspace) -> None:
    outcome = workspace.run("account", *SIZE, "eps=3", "delta=1e-5", "accountant=rdp")
    assert (outcome.code, outcome.err, outcome.new) == (0, "", frozenset())
    assert outcome.out.startswith("noise multiplier    0.7")
    assert "upper bound by rdp" in outcome.out
    assert "steps               100\n" in outcome.out


@pytest.mark.slow
def test_json_output_is_one_object_under_the_keys_of_privacy_json(large_delta: Outcome) -> None:
    record = json.loads(large_delta.out)
    assert record["private"] is True and record["steps"] == 100
    assert set(record["epsilons"]) == {"rdp", "gdp", "pld", "prv"}
    assert set(record["epsilons"]["prv"]) == {"lower", "estimate", "upper"}
    assert "calibration" not in record


@pytest.mark.slow
def test_a_delta_above_one_over_the_examples_is_warned_of_on_stderr_and_in_the_record(
    large_delta: Outcome,
) -> None:
    assert large_delta.code == 0
    assert large_delta.err.startswith("WARNING: delta = 0.002 is above 1/num_examples = 0.001")
    assert any("delta = 0.002" in warning for warning in json.loads(large_delta.out)["warnings"])


@pytest.mark.slow
def test_the_papers_delta_has_a_note_and_no_warning_unless_it_is_chosen(
    workspace: Workspace,
) -> None:
    outcome = workspace.run("account", *QUICK)
    assert (outcome.code, outcome.err) == (0, "")
    note = " ".join(outcome.out.split()).partition("note: ")[2]
    assert note.startswith("delta is 1/(2n) for n = 1000, as in the papers: ")
    assert note.endswith("1/(10n), rounded down to one digit: 0.0001.")
    record = json.loads(workspace.run("account", *QUICK, "output=json").out)
    assert (record["delta_source"], record["delta"], record["warnings"]) == ("published", 5e-4, [])
    chosen = workspace.run("account", *QUICK, "delta=0.0005")
    assert chosen.err.startswith("WARNING: delta = 0.0005 is above 1/(10*num_examples) = 0.0001")
    assert "note: " not in chosen.out


@pytest.mark.slow
def test_a_sample_rate_needs_no_number_of_examples(workspace: Workspace) -> None:
    given = ("sample_rate=0.1", "steps=5", "delta=1e-5", "noise_multiplier=1", "accountant=rdp")
    outcome = workspace.run("account", *given, "output=json")
    record = json.loads(outcome.out)
    assert (outcome.code, record["mechanism"]["sample_rate"], record["steps"]) == (0, 0.1, 5)
    assert not {"num_examples", "expected_batch_size"} & set(record)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([*SIZE], ["eps", "noise_multiplier"]),
        ([*SIZE, "eps=3", "steps=5"], ["epochs", "steps"]),
        ([*SIZE, "epz=3"], ["epz", "eps=3"]),
        (["sample_rate=0.1", "steps=5", "eps=3"], ["num_examples", "delta"]),
        (
            ["num_examples=9", "expected_batch_size=10", "steps=1", "eps=3"],
            ["expected_batch_size", "num_examples=9"],
        ),
        (["sample_rate=1", "steps=1000000", "delta=1e-30", "eps=1e-9"], ["eps", "1e-09"]),
        *slow(
            ([*SIZE, "eps=3", "accountant=gdp"], ["accountant", "gdp"]),
            ([*SIZE, "eps=3", "sample_rate=0.1"], ["expected_batch_size", "sample_rate"]),
            (["expected_batch_size=9", "steps=5", "eps=3"], ["num_examples", "sample_rate"]),
        ),
    ],
)
def test_bad_input_is_refused_under_the_keys_of_this_subcommand(
    workspace: Workspace, arguments: list[str], parts: list[str]
) -> None:
    sentence = workspace.refusal("account", *arguments)
    assert [part for part in parts if part not in sentence] == [], sentence
    assert "privacy." not in sentence


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({"sample_rate": 0.1, "epochs": 3.0, "delta": 1e-5}, 30),
        *slow(
            ({"num_examples": 42061, "expected_batch_size": 1024, "epochs": 10.0}, 410),
            ({"num_examples": 10, "expected_batch_size": 10, "epochs": 0.1}, 1),
        ),
    ],
)
def test_steps_follow_from_epochs_by_the_one_formula(given: dict, steps: int) -> None:
    record = answer(AccountConfig(noise_multiplier=9.0, accountant="rdp", **given)).record
    assert isinstance(record, CostOfNumbers) and record.steps == steps
    assert math.isclose(record.delta, given.get("delta", 0.5 / given.get("num_examples", 1)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise_multiplier", "published"),
    [(0.40, 6.0573157), (0.35, 8.6898032), (0.30, 13.4586238), (0.20, 47.2630501),
     (0.10, 319.1941523)],
)  # fmt: skip
def test_ponomareva_2022_table_5(
    workspace: Workspace, noise_multiplier: float, published: float
) -> None:
    """Findings of ACL 2022, Table 5: RDP at batch 8192 and 100K steps; delta is 1/N."""
    outcome = workspace.run(
        "account",
        "num_examples=5240387307",
        "expected_batch_size=8192",
        "steps=100000",
        f"delta={1 / 5240387307!r}",
        f"noise_multiplier={noise_multiplier}",
        "accountant=rdp",
        "output=json",
    )
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    assert record["accountant"] == "rdp"
    assert record["epsilon"] == pytest.approx(published, rel=1e-3)
    assert record["epsilons"]["pld"] < record["epsilon"]
    assert "error" in record["epsilons"]["prv"]
