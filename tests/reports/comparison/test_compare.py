"""Reports of many runs: which are compared, and what is averaged."""

from pathlib import Path

import pytest

from dpft.errors import InputError
from dpft.reports.comparison.latex import latex
from dpft.reports.comparison.pages import markdown, page
from dpft.reports.run.run_record import find_runs
from tests.reports.comparison.swept_runs import compared, sweep
from tests.reports.run.folders import write_run


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
