"""``dpft account curve=true`` and ``batch_sizes=[...]``."""

import json
from pathlib import Path

import pytest

from tests.slowness import slow
from tests.stories.tiny import Workspace

PRV_ITSELF = True
SIZE = ("num_examples=1000", "accountant=rdp")
# The sizes of tests.stories.tiny, whose mechanism other tests account for too.
CURVE = (
    "num_examples=40", "accountant=rdp", "expected_batch_size=8", "steps=3", "noise_multiplier=1",
    "delta=0.001", "curve=true",
)  # fmt: skip
BATCHES = (*SIZE, "batch_sizes=[1000,50]", "eps=3", "steps=20", "epochs=2")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


@pytest.mark.slow
def test_epsilon_over_steps_is_a_table_and_a_plot(workspace: Workspace) -> None:
    outcome = workspace.run("account", *CURVE, "to=curve.svg")
    assert outcome.code == 0, outcome.err
    assert outcome.new == {workspace.root / "curve.svg"}
    assert outcome.err == "INFO: plot: curve.svg\n"
    table = outcome.out.split("\n\n")[-2].splitlines()
    assert table[0].split() == ["steps", "rdp", "gdp*", "pld", "prv", "headline", "by"]
    assert [line.split()[0] for line in table[1:]] == ["1", "2", "3"]
    assert "<svg" in (workspace.root / "curve.svg").read_text()


def test_in_json_the_points_are_in_the_one_object(workspace: Workspace) -> None:
    record = json.loads(workspace.run("account", *CURVE, "output=json").out)
    points = record["curve"]
    assert [point["steps"] for point in points] == [1, 2, 3]
    assert points[-1]["epsilon"] == record["epsilon"]
    assert set(points[0]["epsilons"]) == {"rdp", "gdp", "pld", "prv"}


@pytest.mark.slow
def test_noise_over_batch_sizes_stands_beside_the_square_root_rule(workspace: Workspace) -> None:
    outcome = workspace.run("account", *BATCHES, "to=noise.png", "output=json")
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    for fixed, steps in (("steps", [20, 20]), ("epochs", [40, 2])):
        points = record[f"fixed_{fixed}"]["points"]
        assert [point["expected_batch_size"] for point in points] == [50, 1000]
        assert [point["steps"] for point in points] == steps
        whole = points[-1]
        assert whole["square_root_rule"] == pytest.approx(whole["effective_noise_multiplier"])
        assert points[0]["effective_noise_multiplier"] == points[0]["noise_multiplier"] / 0.05
    assert (workspace.root / "noise.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_says_what_was_fixed(workspace: Workspace) -> None:
    outcome = workspace.run("account", *BATCHES[:3], "eps=3", "epochs=2", "batch_sizes=[100]")
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0] == "noise for epsilon = 3 at delta = 0.0005, 1000 examples"
    assert "fixed epochs = 2.0" in lines
    assert not any("fixed steps" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([*BATCHES, "expected_batch_size=5"], "batch_sizes takes no expected_batch_size"),
        ([*BATCHES, "batch_sizes=[]"], "batch_sizes must be different ones, got []"),
        ([*BATCHES, "batch_sizes=[1001]"], "at most num_examples=1000, got 1001"),
        ([*SIZE, "batch_sizes=[5]", "eps=3"], "epochs or steps must be given with batch_sizes"),
        ([*CURVE, "to=curve.pdf"], "to must be a file named *.svg or *.png, got 'curve.pdf'"),
        ([*CURVE, f"head={'0' * 64}"], "head needs run=RUN"),
        *slow(
            ([*BATCHES, "curve=true"], "batch_sizes takes no curve"),
            ([*BATCHES, "batch_sizes=[5,5]"], "batch_sizes must be different ones"),
            ([*BATCHES, "batch_sizes=[0]"], "must be above 0"),
            ([*SIZE, "batch_sizes=[5]", "steps=3"], "eps must be given with batch_sizes"),
            ([*BATCHES, "delta=1.5"], "delta must be in (0, 1)"),
            ([*CURVE, "to=none/curve.svg"], "to must be in a folder that exists"),
            ([*CURVE[:-1], "to=curve.svg"], "to needs curve=true or batch_sizes"),
        ),
    ],
)
def test_bad_input_is_one_sentence(workspace: Workspace, arguments: list[str], part: str) -> None:
    assert part in workspace.refusal("account", *arguments)
