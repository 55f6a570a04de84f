"""Reports of many runs: which are compared, and what is averaged."""

from pathlib import Path

import pytest

from dpft.errors import InputError
from dpft.reports.comparison.pages import markdown
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
