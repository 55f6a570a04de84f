"""Comparisons of runs: the frame, which runs are averaged, tables, plots, and what is escaped."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from PIL import Image

from dpft.reports.comparison import choose_metrics, frame_of, notes_of, plot, render, table
from dpft.reports.run_record import find_runs
from tests.rejections import rejects
from tests.reports.folders import EVIL, read, sweep, write_run

COST = {"epsilon": 2.98991, "delta": 1e-5, "accountant": "prv", "private": True}
NO_COST = {"epsilon": None, "delta": None, "accountant": None, "private": False}


def compared(folders: list[Path], cost: Mapping[str, Any] = COST, **options: Any):
    return frame_of([(read(folder), cost) for folder in folders], **options)


def rendered(to: str, folders: list[Path], **options: Any) -> str:
    notes = notes_of([read(folder) for folder in folders], [])
    return render(to, *compared(folders, **options), notes)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The runs of a sweep, which no test changes."""
    return sweep(tmp_path_factory.mktemp("swept"))


@pytest.fixture(scope="module")
def private_sweep(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same on a private split."""
    return sweep(tmp_path_factory.mktemp("private"), public=False)


@pytest.mark.slow
def test_the_frame_has_one_row_per_run_and_a_column_for_what_differs(swept: list[Path]) -> None:
    frame, keys, metrics = compared(swept)
    assert (len(frame), keys, metrics) == (12, ["method.name", "privacy.eps"], ["bleu"])
    first = frame.iloc[0].to_dict()
    assert first == {
        "run": str(swept[0]), "method.name": "full", "privacy.eps": 3,
        "train.seed": 0, **COST, "trainable_parameters": 500, "total_parameters": 900,
        "bleu": 60.0, "before.bleu": 1.0,
    }  # fmt: skip


@pytest.mark.slow
def test_runs_that_differ_only_in_seeds_are_averaged(swept: list[Path]) -> None:
    """The mean and the sample standard deviation of 60, 61 and 62 are 61 and 1."""
    rows = table(*compared(swept))
    assert rows["bleu"].tolist() == [
        *("61.000 ± 1.000", "51.000 ± 1.000", "61.000 ± 1.000", "61.333 ± 1.528")
    ]
    assert rows["runs"].tolist() == ["3"] * 4
    assert rows["epsilon"].tolist() == ["2.9900"] * 4, "rounded up"
    seeds = table(*compared(swept[:3]))
    assert (seeds["task.name"].tolist(), seeds["bleu"].tolist()) == (["e2e"], ["61.000 ± 1.000"])


@pytest.mark.slow
def test_no_mean_is_taken_over_two_settings(tmp_path: Path) -> None:
    rates = [write_run(tmp_path / str(r), train={"learning_rate": r}) for r in (0.1, 0.2)]
    rows = table(*compared(rates))
    assert rows["train.learning_rate"].tolist() == ["0.1", "0.2"]
    assert rows["runs"].tolist() == ["1", "1"]


@pytest.mark.slow
def test_speed_and_published_rows_do_not_separate_settings(tmp_path: Path) -> None:
    for number, batch in enumerate((1, 2)):
        row = {"source": f"Table {batch}", "what": "x", "metrics": {"bleu": 1.0}}
        train = {"micro_batch_size": batch, "seed": number}
        write_run(tmp_path / str(number), train=train, reference=[row])
    assert len(table(*compared(sorted(tmp_path.iterdir())))) == 1


@pytest.mark.slow
def test_a_methods_own_key_counts_only_if_it_differs_under_that_method(tmp_path: Path) -> None:
    methods = [{"name": "full"}, {"name": "lora", "rank": 4}]
    folders = [write_run(tmp_path / str(n), method=one) for n, one in enumerate(methods)]
    assert compared(folders)[1] == ["method.name"]
    folders.append(write_run(tmp_path / "2", method={"name": "lora", "rank": 8}))
    frame, keys, _ = compared(folders)
    assert keys == ["method.name", "method.rank"]
    rows = table(frame, keys, ["bleu"])
    assert rows["method.rank"].tolist() == ["–", "4", "8"]


@pytest.mark.slow
def test_over_puts_keys_first_and_separates_seeds(swept: list[Path]) -> None:
    frame, keys, _ = compared(swept, over=("train.seed",))
    assert keys == ["train.seed", "method.name", "privacy.eps"]
    assert len(table(frame, keys, ["bleu"])) == 12
    with rejects("over", "method.nam"):
        compared(swept, over=("method.nam",))


def test_a_sweep_gives_its_runs_and_those_that_have_not_ended(tmp_path: Path) -> None:
    for number in ("0", "2", "10"):
        write_run(tmp_path / number)
    (tmp_path / "2" / "privacy.json").unlink()
    finished, unfinished = find_runs([tmp_path, tmp_path / "0"])
    assert [folder.name for folder in finished] == ["0", "10"]
    assert [folder.name for folder in unfinished] == ["2"]
    with rejects("runs", str(tmp_path / "none")):
        find_runs([tmp_path / "none"])


@pytest.mark.slow
def test_metrics_are_chosen_by_name(tmp_path: Path) -> None:
    _, _, metrics = compared([write_run(tmp_path / "run", publish=True, public=False)])
    assert metrics == ["bleu (private)"]
    assert choose_metrics(metrics, ["bleu"]) == metrics
    with rejects("metric", "blue") as faults:
        choose_metrics(metrics, ["blue"])
    assert "private/metrics.json" in faults[0].message


@pytest.mark.slow
def test_scores_of_several_splits_are_named_after_their_split(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / split, scores={"split": split}) for split in ("test", "validation")
    ]
    assert compared(folders)[2] == ["test.bleu", "validation.bleu"]
    other = write_run(tmp_path / "other", scores={"task": "dart"})
    assert compared([folders[0], other])[2] == ["test.bleu", "dart.test.bleu"]


@pytest.mark.slow
@pytest.mark.parametrize("to", ["csv", "markdown", "latex", "html"])
def test_trust_rule_8_no_form_has_a_private_score(private_sweep: list[Path], to: str) -> None:
    text = rendered(to, private_sweep)
    assert "bleu" not in text and "61.0" not in text
    assert to == "csv" or "private/metrics.json" in text


@pytest.mark.slow
@pytest.mark.parametrize("to", ["csv", "markdown", "latex", "html"])
def test_trust_rule_8_published_scores_of_private_splits_are_rounded_and_marked(
    tmp_path: Path, to: str
) -> None:
    folder = write_run(tmp_path / "run", bleu=60.4321, public=False, publish=True)
    text = rendered(to, [folder])
    assert "bleu (private)" in text and "60.4" not in text and "60" in text
    assert to == "csv" or "epsilon does not cover them" in text


@pytest.mark.slow
def test_a_run_without_privacy_or_with_a_test_seed_is_called_not_private(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    rows = table(*compared([folder], NO_COST))
    assert rows[["epsilon", "delta", "accountant"]].to_numpy().tolist() == [
        ["not private", "–", "–"]
    ]
    seeded = table(*compared([folder], {**COST, "private": False}))
    assert seeded["epsilon"].tolist() == ["2.9900 (not private: noise_seed)"]


@pytest.mark.slow
def test_csv_is_unrounded_and_is_read_back(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "run", bleu=60.123456789)]
    frame = pd.read_csv(io.StringIO(rendered("csv", folders)))
    assert frame[["epsilon", "bleu"]].to_numpy().tolist() == [[2.98991, 60.123456789]]


@pytest.mark.slow
def test_published_scores_of_a_runs_model_epsilon_and_settings_are_a_column(
    tmp_path: Path,
) -> None:
    table_2 = {"source": "Table 2", "what": "x", "model": "tiny", "metrics": {"bleu": 61.5}}
    rows = [
        {**table_2, "eps": 8.0},
        {**table_2, "eps": 3.0},
        {**table_2, "eps": 3.0, "model": "gpt2"},
        {**table_2, "eps": 3.0, "source": "Table 9", "settings": {"train.learning_rate": 1.0}},
        {
            **{**table_2, "eps": 3.0, "source": "Table 7", "metrics": {"bleu": 70.5}},
            "settings": {"train.learning_rate": 0.002},
        },
        {**table_2, "eps": None, "metrics": {"bleu": 80.5}},
    ]
    rows = json.loads(json.dumps(rows))  # YAML has aliases for objects that occur twice
    runs = [
        write_run(tmp_path / "private", reference=rows),
        write_run(tmp_path / "open", reference=rows),
    ]
    config = yaml.safe_load((runs[1] / "config.yaml").read_text())
    config["privacy"] = {"name": "none"}
    (runs[1] / "config.yaml").write_text(yaml.safe_dump(config))
    frame, keys, metrics = compared(runs)
    assert frame["published.bleu"].tolist() == [70.5, 80.5]
    assert frame["published.source"].tolist() == ["Table 7; Table 2", "Table 2"]
    assert table(frame, keys, metrics)["published.bleu"].tolist() == ["70.5", "80.5"]


@pytest.mark.slow
def test_what_files_contain_is_escaped_in_every_form(tmp_path: Path) -> None:
    names = [f"{EVIL}|", "a_b 50%&"]
    folders = [write_run(tmp_path / str(n), model={"name": name}) for n, name in enumerate(names)]
    assert "<script>" not in rendered("markdown", folders) + rendered("html", folders)
    assert r"alert(1)&lt;/script>\| |" in rendered("markdown", folders)
    latex = rendered("latex", folders)
    assert r"a\_b 50\%\& & " in latex and r"model.name & epsilon" in latex
    assert latex.count(r"\begin{tabular}") == 1 and latex.startswith("% 2 runs, 2 settings\n% ")


@pytest.mark.slow
def test_markdown_has_a_title_a_table_and_notes(swept: list[Path], tmp_path: Path) -> None:
    title, table_, scores, cost = rendered("markdown", swept).split("\n\n")
    assert title == "# 12 runs, 4 settings"
    assert len(table_.splitlines()) == 6
    assert scores.startswith("Scores are after fine-tuning: the mean, ±")
    assert "`dpft account runs=…`" in cost
    begun = notes_of([read(swept[0])], [tmp_path / "begun"])[-1]
    assert begun == f"Skipped, because they have not ended: {tmp_path / 'begun'}."


@pytest.mark.slow
@pytest.mark.parametrize("over", [(), ("train.seed",)])
def test_a_plot_is_drawn_over_numbers_or_as_bars(
    swept: list[Path], tmp_path: Path, over: tuple[str, ...]
) -> None:
    plot(*compared(swept, over=over), tmp_path / "lines.png")
    plot(*compared(swept[:6]), tmp_path / "bars.svg")
    with Image.open(tmp_path / "lines.png") as image:
        assert image.width > 500
    drawn = (tmp_path / "bars.svg").read_text()
    assert drawn.startswith("<?xml") and "<svg" in drawn
