from pathlib import Path

from benchmarks.sweep import table
from dpft.reports.run_record import find_runs
from dpft.run_folder import write_json
from tests.reports import folders
from tests.reports.folders import read
from tests.reports.test_report import non_private, private


def write_run(folder: Path, method: str, privacy: dict[str, object], bleu: float) -> Path:
    parameters = {"trainable": 1000, "new": 0, "total": 20000}
    config = {"method": {"name": method}, "train": {"learning_rate": 0.004}}
    folders.write_run(folder, bleu=bleu, **config)
    write_json(folder / "privacy.json", {**privacy, "parameters": parameters})
    return folder


def test_a_row_holds_the_promise_the_share_and_the_last_scores(tmp_path: Path) -> None:
    kept = {**private(noise_multiplier=0.7), "epsilon": 2.9981}
    first = write_run(tmp_path / "0", "lora", kept, 50.0)
    ordinary = write_run(tmp_path / "1", "full", non_private(), 60.0)
    lines = table([read(first), read(ordinary)]).splitlines()
    assert lines[0].endswith("| trainable | share | bleu |")
    assert lines[2] == "| lora | 0.004 | 2.998 | 0.700 | 1,000 | 5.00% | 50.000 |"
    assert lines[3] == "| full | 0.004 | not private |  | 1,000 | 5.00% | 60.000 |"


def test_the_runs_of_a_sweep_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in ("0", "2", "10"):
        write_run(tmp_path / number, "full", non_private(), 1.0)
    (tmp_path / "11").mkdir()
    assert [path.name for path in find_runs([tmp_path])[0]] == ["0", "2", "10"]
