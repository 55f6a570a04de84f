from pathlib import Path

from tests.reports.comparison.swept_runs import compared, sweep
from tests.reports.run.folders import write_run


def test_the_costs_of_all_runs_are_added_up(tmp_path: Path) -> None:
    """Basic composition: 12 runs of ε = 2.99 and δ = 0.001 cost 35.88 and 0.012."""
    (costs,) = compared(sweep(tmp_path)).costs
    assert "ε add up to 35.8800, their δ to 0.012;" in costs
    assert "dpft account runs=…" in costs
    one = write_run(tmp_path / "other", privacy={"unit": "customer_id"})
    assert "different units" in compared([*tmp_path.glob("full-3-*"), one]).costs[0]
    seeded = write_run(tmp_path / "seeded", privacy={"private": False})
    assert "not private" in compared([seeded]).costs[0]
    unfinished = compared([one], unfinished=[tmp_path / "begun"])
    assert "1 more run has begun" in unfinished.costs[1]
