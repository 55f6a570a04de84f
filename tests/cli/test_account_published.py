"""Published figures by ``dpft account output=json``."""

import json
from pathlib import Path

import pytest

from tests.stories.tiny import Workspace

PRV_ITSELF = True
pytestmark = pytest.mark.slow


def account(tmp_path: Path, *arguments: str) -> dict:
    outcome = Workspace(tmp_path).run("account", *arguments, "output=json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


@pytest.mark.parametrize(
    ("noise_multiplier", "published"),
    [(0.40, 6.0573157), (0.35, 8.6898032), (0.30, 13.4586238), (0.20, 47.2630501),
     (0.10, 319.1941523)],
)  # fmt: skip
def test_ponomareva_2022_table_5(tmp_path: Path, noise_multiplier: float, published: float) -> None:
    # Findings of ACL 2022, Table 5: RDP at batch 8192 and 100K steps; delta is 1/N.
    record = account(
        tmp_path,
        "num_examples=5240387307",
        "expected_batch_size=8192",
        "steps=100000",
        f"delta={1 / 5240387307!r}",
        f"noise_multiplier={noise_multiplier}",
        "accountant=rdp",
    )
    assert record["accountant"] == "rdp"
    assert record["epsilon"] == pytest.approx(published, rel=1e-3)
    assert record["epsilons"]["pld"] < record["epsilon"]
    assert "error" in record["epsilons"]["prv"]
