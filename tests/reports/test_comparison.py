"""Reports of many runs: which are compared, and what is averaged."""

import itertools
from pathlib import Path

import pytest
from scipy import stats

from dpft.errors import InputError
from dpft.reports.comparison import best, p_value
from dpft.reports.comparison_page import csv_table, latex, markdown, page
from dpft.reports.run_record import find_runs
from tests.reports.folders import compared, sweep, write_run


def test_runs_that_differ_in_seeds_alone_are_averaged(tmp_path: Path) -> None:
    """Mean and sample standard deviation of 60, 61 and 62 are 61 and 1."""
    comparison = compared(sweep(tmp_path))
    assert comparison.keys == ["method.name", "privacy.eps"]
    text = markdown(comparison)
    assert "| full | 2.9900 | 3 | 500 | " in text and "**61.000 ± 1.000** |" in text
    assert "### bleu: method.name × privacy.eps\n\n|  | 3 | 8 |" in text


def test_no_mean_is_taken_over_two_settings(tmp_path: Path) -> None:
    rates = [write_run(tmp_path / str(r), train={"learning_rate": r}) for r in (0.1, 0.2)]
    comparison = compared(rates)
    assert comparison.keys == ["train.learning_rate"]
    assert [len(setting.runs) for setting in comparison.settings] == [1, 1]


def test_a_sweep_gives_its_runs_and_those_that_have_not_ended(tmp_path: Path) -> None:
    for number in ("0", "2", "10"):
        write_run(tmp_path / number)
    (tmp_path / "2" / "privacy.json").unlink()
    finished, unfinished = find_runs([tmp_path, tmp_path / "0"])
    assert [folder.name for folder in finished] == ["0", "10"]
    assert [folder.name for folder in unfinished] == ["2"]
    with pytest.raises(InputError, match="which does not exist"):
        find_runs([tmp_path / "none"])


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"over": ("method.nam", "privacy.eps")}, "got 'method.nam'"),
        ({"metrics": ("blue",)}, "got 'blue'; there are bleu"),
    ],
)
def test_unknown_keys_and_metrics_are_refused(
    tmp_path: Path, options: dict[str, tuple[str, ...]], part: str
) -> None:
    with pytest.raises(InputError, match=part):
        compared([write_run(tmp_path / "run")], **options)


def test_a_sweep_over_one_key_has_a_table_by_its_values_and_a_line(tmp_path: Path) -> None:
    rates = [
        write_run(tmp_path / str(r), bleu=score, train={"learning_rate": r})
        for r, score in ((0.2, 30.0), (0.1, 20.0))
    ]
    comparison = compared(rates)
    table = "| train.learning_rate | bleu |\n|---|---:|\n| 0.1 | 20.000 |\n| 0.2 | 30.000 |"
    assert f"### bleu: train.learning_rate\n\n{table}\n" in markdown(comparison)
    assert 'aria-label="bleu against train.learning_rate"' in page(comparison)


def test_seeds_tell_settings_apart_where_they_are_asked_for(tmp_path: Path) -> None:
    folders = sweep(tmp_path)
    comparison = compared(folders, over=("method.name", "train.seed", "privacy.eps"))
    assert len(comparison.settings) == 12
    shown = comparison.pivots(comparison.splits[0])
    assert [pivot.fixed for pivot in shown] == ["privacy.eps = 3", "privacy.eps = 8"]
    assert [str(cell) for cell in shown[0].cells[0]] == ["60.000", "61.000", "62.000"]
    alone = compared(folders[:3], over=("train.seed",))
    assert 'aria-label="bleu against train.seed"' in page(alone), "0 has no logarithm"


def test_latex_has_every_table_and_escapes_what_is_not_its_own(tmp_path: Path) -> None:
    text = latex(compared(sweep(tmp_path)))
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 2
    assert r"method.name & $\varepsilon$ & runs & bleu \\" in text
    assert r"full & \textbf{61.000 $\pm$ 1.000} & " in text
    odd = [write_run(tmp_path / "odd" / name, method={"name": name}) for name in ("a_b", "50%&")]
    text = latex(compared(odd))
    assert r"a\_b & " in text and r"50\%\& & " in text and "a_b" not in text


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


def test_the_p_value_is_welchs() -> None:
    """Closed form: t = (m1 - m2) / √(s1²/n1 + s2²/n2), Welch-Satterthwaite degrees of freedom."""
    one, other = (1.0, 2.0, 3.0), (2.0, 6.0, 10.0)  # means 2 and 6, variances 1 and 16
    error = 1 / 3 + 16 / 3
    freedom = error**2 / ((1 / 3) ** 2 / 2 + (16 / 3) ** 2 / 2)
    expected = 2 * stats.t.sf(4 / error**0.5, freedom)
    assert p_value(one, other) == pytest.approx(expected, rel=1e-9)
    assert (p_value((1, 1), (1, 1)), p_value((1, 1), (2, 2))) == (1.0, 0.0)


@pytest.mark.filterwarnings("error")
def test_scores_that_are_all_but_alike_are_compared_without_a_warning() -> None:
    assert p_value((1.0, 1.0 + 1e-15), (2.0, 2.0)) < 1e-6


def test_lower_perplexity_is_better_and_single_runs_are_not_tested() -> None:
    scores = {0: (20.0, 20.1, 20.2), 1: (30.0, 30.1, 30.2)}
    assert best(scores, "perplexity") == {0} and best(scores, "bleu") == {1}
    assert best(scores, "mean_length") == set()
    assert best({**scores, 2: (1.0,)}, "perplexity") == set()


def test_two_keys_that_are_asked_for_have_a_table_for_each_value_of_a_third(
    tmp_path: Path,
) -> None:
    for rate, size, eps in itertools.product((0.1, 0.2), (8, 16), (3.0, 8.0)):
        train = {"learning_rate": rate, "expected_batch_size": size}
        write_run(tmp_path / f"{rate}-{size}-{eps}", bleu=100 * rate + size, eps=eps, train=train)
    keys = ("train.expected_batch_size", "train.learning_rate")
    comparison = compared(sorted(tmp_path.iterdir()), over=keys)
    first, second = comparison.pivots(comparison.splits[0])
    assert (first.fixed, second.fixed) == ("privacy.eps = 3", "privacy.eps = 8")
    means = [[cell.mean for cell in row] for row in first.cells]
    assert (first.rows, first.columns, means) == (["8", "16"], ["0.1", "0.2"], [[18, 28], [26, 36]])
    assert f"### bleu: {' × '.join(keys)}, privacy.eps = 8\n\n|  | 0.1 | 0.2 |" in markdown(
        comparison
    )
    assert page(comparison).count("<figure>") >= 3


def test_a_two_way_table_that_would_hide_a_third_key_is_left_out(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / f"{m}{e}{r}", eps=e, method={"name": m}, train={"learning_rate": r})
        for m in ("full", "lora")
        for e in (3.0, 8.0)
        for r in (0.1, 0.2)
    ]
    assert "###" not in markdown(compared(folders))
    assert "###" in markdown(compared(folders[::2]))
    assert markdown(compared(folders[:1])).startswith("# 1 run, 1 setting\n")
