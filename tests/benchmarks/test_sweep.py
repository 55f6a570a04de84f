import json
from pathlib import Path

import yaml

from benchmarks.sweep import table
from dpft.reports.records import find_runs, read_record


def write_run(folder: Path, method: str, privacy: dict[str, object], bleu: float) -> Path:
    folder.mkdir(parents=True)
    config = {"method": {"name": method}, "train": {"learning_rate": 0.004}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    counts = {"trainable_parameters": 1000, "total_parameters": 20000}
    (folder / "privacy.json").write_text(json.dumps(privacy | counts))
    evaluations = [{"metrics": {"bleu": 1.0}}, {"metrics": {"bleu": bleu}}]
    (folder / "metrics.json").write_text(json.dumps({"evaluations": evaluations}))
    return folder


def test_a_row_holds_the_promise_the_share_and_the_last_scores(tmp_path: Path) -> None:
    private = write_run(tmp_path / "0", "lora", {"epsilon": 2.9981, "noise_multiplier": 0.7}, 50.0)
    ordinary = write_run(tmp_path / "1", "full", {"private": False}, 60.0)
    lines = table([read_record(private), read_record(ordinary)]).splitlines()
    assert lines[0].endswith("| trainable | share | bleu |")
    assert lines[2] == "| lora | 0.004 | 2.998 | 0.700 | 1,000 | 5.00% | 50.000 |"
    assert lines[3] == "| full | 0.004 | not private |  | 1,000 | 5.00% | 60.000 |"


def test_the_runs_of_a_sweep_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in ("0", "2", "10"):
        write_run(tmp_path / number, "full", {"private": False}, 1.0)
    (tmp_path / "11").mkdir()
    assert [path.name for path in find_runs([tmp_path])[0]] == ["0", "2", "10"]
