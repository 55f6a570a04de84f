from pathlib import Path

from dpft.reports.comparison.latex import latex
from dpft.reports.comparison.pages import csv_table, markdown
from tests.reports.comparison.swept_runs import compared, sweep
from tests.reports.run.folders import write_run


def test_the_costs_of_all_runs_are_added_up(tmp_path: Path) -> None:
    """Basic composition: 12 runs of ε = 2.99 and δ = 0.001 cost 35.88 and 0.012."""
    costs, whose = compared(sweep(tmp_path)).costs
    assert whose.startswith("Every ε here is by prv at δ = 0.001, as its run's privacy.json states")
    assert "ε add up to 35.8800, their δ to 0.012;" in costs
    assert "dpft account runs=…" in costs
    one = write_run(tmp_path / "other", privacy={"unit": "customer_id"})
    assert "different units" in compared([*tmp_path.glob("full-3-*"), one]).costs[0]
    seeded = write_run(tmp_path / "seeded", privacy={"private": False})
    assert "not private" in compared([seeded]).costs[0]
    unfinished = compared([one], unfinished=[tmp_path / "begun"])
    assert "1 more run has begun" in unfinished.costs[1]


def test_epsilons_of_other_deltas_or_accountants_name_their_own(tmp_path: Path) -> None:
    """Side by side a larger δ would look like more privacy."""
    first = write_run(tmp_path / "a")
    same = compared([first, write_run(tmp_path / "b", train={"seed": 1})])
    assert "(by" not in markdown(same) and " by prv at $\\delta$ = 0.001." in latex(same)
    for name, other in {"d": {"delta": 1e-5}, "e": {"accountant": "rdp"}}.items():
        run = write_run(tmp_path / name, method={"name": "lora"}, privacy=other)
        found = compared([first, run])
        assert found.costs[-1].startswith("The ε here are not all by one accountant at one δ")
        by, at = other.get("accountant", "prv"), other.get("delta", 0.001)
        for text in (markdown(found), latex(found).replace("$\\delta$", "δ")):
            assert f"2.9900 (by {by} at δ = {at:g})" in text
            assert "2.9900 (by prv at δ = 0.001)" in text
        assert f",{at},{by}," in csv_table(found)


def test_a_private_tokenizer_is_counted_with_its_run(tmp_path: Path) -> None:
    both = {"epsilon_with_tokenizer": 4.5, "delta_with_tokenizer": 0.002}
    own = {"epsilon": 2.0, "delta": 0.001, "simple_composition": 5.0}
    own["ledger"] = {"lines": 2, "head": "ab" * 32}
    runs = [
        write_run(tmp_path / name, privacy={**both, "tokenizer": own}) for name in ("one", "two")
    ]
    found = compared(runs)
    assert "ε add up to 9.0000, their δ to 0.004;" in found.costs[0]
    assert "4.5000" in markdown(found)
    assert "epsilon_with_tokenizer" in csv_table(found).partition("\n")[0]
