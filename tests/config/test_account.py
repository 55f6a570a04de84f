from pathlib import Path

import pytest

from dpft.config.account import ReportConfig
from dpft.config.load import from_values
from dpft.errors import InputError


def refusal(**values: object) -> str:
    with pytest.raises(InputError) as error:
        ReportConfig(**values)
    return str(error.value)


def test_one_name_and_a_list_of_names_are_both_taken() -> None:
    assert from_values({"runs": "a"}, ReportConfig).folders == (Path("a"),)
    config = from_values({"runs": ["a", "b"], "metric": "bleu"}, ReportConfig)
    assert (config.folders, config.metrics) == ((Path("a"), Path("b")), ("bleu",))
    assert ReportConfig(runs="a").metrics is None


def test_a_report_without_runs_is_refused() -> None:
    assert (
        refusal()
        == refusal(runs=())
        == ("runs must name at least one folder, got none; give runs=FOLDER.")
    )


@pytest.mark.parametrize("over", [(), ("a", "b", "c", "d"), ("privacy.eps", "privacy.eps")])
def test_a_table_over_anything_but_one_to_three_keys_is_refused(over: tuple[str, ...]) -> None:
    assert f"one to three different keys, of rows, of columns and of tables, got {list(over)}" in (
        refusal(runs="a", over=over)
    )


def test_a_key_alone_needs_no_brackets_and_latex_is_no_folder() -> None:
    config = ReportConfig(runs="a", over="train.seed", to="latex")
    assert config.keys == ("train.seed",) and config.folder is None
    assert "to=latex is for output=table" in refusal(runs="a", to="latex", output="json")
    assert "got to=latex" in refusal(runs="a", to="latex", signal_to_noise=True)


def test_a_report_is_not_written_where_a_file_lies(tmp_path: Path) -> None:
    taken = tmp_path / "report.md"
    taken.write_text("")
    said = refusal(runs="a", to=str(taken))
    assert said == f"to must be a folder, got {str(taken)!r}, which is a file."


def test_rebuilding_writes_into_the_runs_own_folders() -> None:
    assert "into its folder, got it with to;" in refusal(rebuild=True, runs="a", to="x")


def test_signal_to_noise_needs_a_folder_that_is_named() -> None:
    said = refusal(signal_to_noise=True, runs="a")
    assert "into the private folder of to=FOLDER, got no to;" in said
    assert ReportConfig(runs="a", to="x", signal_to_noise=True).signal_to_noise
