"""Published figures by ``dpft account output=json``."""

import json
from pathlib import Path

import pytest

from tests.stories.tiny import Workspace

pytestmark = pytest.mark.slow

# Li et al. 2022, Tables 1, 3, 7 and 8: noise by RDP for (eps, 1 / 2N); then what GDP + CLT and
# composing tradeoff functions (PRV) say of it. (name, N, B, epochs, eps, GDP, its tolerance, PRV)
LI = [
    ("e2e", 42061, 1024, 10, 3, 2.33, 0.03, 2.67),
    ("e2e", 42061, 1024, 10, 8, 5.51, 0.03, 6.98),
    ("e2e-rgp", 42061, 512, 10, 3, 2.18, 0.03, 2.59),
    ("e2e-rgp", 42061, 512, 10, 8, 5.19, 0.03, 6.89),
    ("e2e-lora", 42061, 512, 50, 3, 2.68, 0.03, 2.75),
    ("e2e-lora", 42061, 512, 50, 8, 6.77, 0.03, 7.28),
    ("dart", 62659, 1024, 10, 3, 2.28, 0.06, 2.65),
    ("dart", 62659, 1024, 10, 8, 5.35, 0.06, 6.95),
    ("dart-rgp", 62659, 512, 10, 3, 2.10, 0.06, 2.54),
    ("dart-rgp", 62659, 512, 10, 8, 5.02, 0.06, 6.86),
    ("dart-lora", 62659, 512, 50, 3, 2.68, 0.06, 2.76),
    ("dart-lora", 62659, 512, 50, 8, 6.68, 0.06, 7.26),
    ("personachat", 131438, 2048, 20, 3, 2.54, 0.03, 2.73),
    ("personachat", 131438, 2048, 20, 8, 6.00, 0.03, 7.13),
    ("qnli", 104743, 2000, 6, 3, 2.00, 0.05, 2.57),
    ("qnli", 104743, 2000, 6, 8, 4.75, 0.05, 6.87),
    ("qqp", 363846, 6000, 18, 3, 2.52, 0.05, 2.75),
    ("qqp", 363846, 6000, 18, 8, 5.85, 0.05, 7.16),
    ("mnli", 392702, 6000, 18, 3, 2.52, 0.05, 2.75),
    ("mnli", 392702, 6000, 18, 8, 5.83, 0.05, 7.15),
]


def account(tmp_path: Path, *arguments: str) -> dict:
    outcome = Workspace(tmp_path).run("account", *arguments, "output=json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


@pytest.mark.parametrize("row", LI, ids=lambda row: f"{row[0]}-{row[4]}")
def test_li_2022(tmp_path: Path, row: tuple) -> None:
    _, size, batch, epochs, eps, gdp, tolerance, prv = row
    record = account(
        tmp_path,
        f"num_examples={size}",
        f"expected_batch_size={batch}",
        f"epochs={epochs}",
        f"eps={eps}",
        "accountant=rdp",
    )
    assert record["delta"] == 1 / (2 * size)
    assert eps - 0.02 <= record["epsilon"] <= eps
    assert record["epsilons"]["gdp"] == pytest.approx(gdp, abs=tolerance)
    assert record["epsilons"]["prv"]["estimate"] == pytest.approx(prv, abs=0.03)


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
