"""The figure of final scores over signal to noise (Li et al. 2022, Figure 3, right)."""

from pathlib import Path

import pytest

from dpft.errors import InputError
from dpft.reports import comparison_page
from dpft.reports.comparison import Comparison, compare
from dpft.reports.comparison_page import write_signal_to_noise
from dpft.reports.run_record import read_run, with_own_scores
from dpft.training.session import read_signal_to_noise
from tests.reports.folders import write_run
from tests.reports.swept_runs import compared
from tests.runs.measured import measure


def sweep(root: Path, **options: bool) -> list[Path]:
    """Two batch sizes, two seeds each, the larger ones with more signal."""
    return [
        measure(
            write_run(
                root / f"{size}-{seed}",
                bleu=50.0 + size / 10 + seed,
                train={"expected_batch_size": size, "seed": seed},
                **options,
            ),
            size / 1000 + seed / 10_000,
        )
        for size in (10, 20)
        for seed in (0, 1)
    ]


def written(comparison: Comparison, folder: Path) -> Path:
    ratios = {run.folder: read_signal_to_noise(run.folder) for run in comparison.runs}
    return write_signal_to_noise(comparison, ratios, folder)


def test_each_run_is_a_point_and_a_row_with_its_mean_ratio_and_its_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    plot = comparison_page.scatter_plot
    monkeypatch.setattr(
        comparison_page,
        "scatter_plot",
        lambda series, **about: drawn.append((series, about)) or plot(series, **about),
    )
    page = written(compared(sweep(tmp_path)), tmp_path / "to").read_text()
    ((series, about),) = drawn
    expected = {
        "10": [(0.01, 51.0), (0.0101, 52.0)],
        "20": [(0.02, 52.0), (0.0201, 53.0)],
    }
    assert series == {key: [pytest.approx(each) for each in expected[key]] for key in expected}
    assert (about["metric"], about["title"]) == ("bleu", "train.expected_batch_size")
    assert about["axis"] == "mean signal-to-noise ratio of the first 30 updates"
    assert page.count("<tr>") == 5
    assert '<td class="n">30</td><td class="n">0.0201</td><td class="n">53.0000</td>' in page
    assert "This page is private: it reads the records" in page
    assert "bleu on e2e, test" in page


def test_scores_of_a_private_split_are_named_so(tmp_path: Path) -> None:
    records = [with_own_scores(read_run(run)) for run in sweep(tmp_path, public=False)]
    path = written(compare(records), tmp_path / "to")
    assert "bleu on e2e, private test" in path.read_text()


def test_a_run_shorter_than_thirty_steps_says_over_how_many_it_is_averaged(tmp_path: Path) -> None:
    run = measure(write_run(tmp_path / "run"), 0.5, steps=4)
    page = written(compared([run]), tmp_path / "to").read_text()
    assert '<td class="n">4</td><td class="n">0.500</td>' in page


def test_a_run_that_was_not_measured_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    runs = sweep(tmp_path)
    (runs[2] / "private/diagnostics.jsonl").unlink()
    with pytest.raises(InputError) as error:
        written(compared(runs), tmp_path / "to")
    assert f"of their first 30 updates, got {runs[2]} without;" in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "to").exists()
