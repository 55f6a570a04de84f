"""``dpft account curve=true``."""

import json
from pathlib import Path

import pytest

from tests.stories.tiny import Workspace

PRV_ITSELF = True
# The sizes of tests.stories.tiny, whose mechanism other tests account for too.
CURVE = (
    "num_examples=40", "accountant=rdp", "expected_batch_size=8", "steps=3", "noise_multiplier=1",
    "delta=0.001", "curve=true",
)  # fmt: skip


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


@pytest.mark.slow
def test_in_json_the_points_are_in_the_one_object(workspace: Workspace) -> None:
    record = json.loads(workspace.run("account", *CURVE, "output=json").out)
    points = record["curve"]
    assert [point["mechanism"]["steps"] for point in points] == [1, 2, 3]
    assert points[-1]["epsilon"] == record["epsilon"]
    assert set(points[0]["epsilons"]) == {"rdp", "gdp", "pld", "prv"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([*CURVE, "to=curve.pdf"], "'curve.pdf'"),
        ([*CURVE, "to=none/curve.svg"], "'none/curve.svg'"),
        ([*CURVE[:-1], "to=curve.svg"], "Try: curve=true"),
        ([*CURVE, f"head={'0' * 64}"], "Try: run="),
    ],
)
def test_bad_input_is_one_sentence(workspace: Workspace, arguments: list[str], part: str) -> None:
    assert part in workspace.refusal("account", *arguments)
