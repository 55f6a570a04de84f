import json
import stat
from pathlib import Path

import pytest

from dpft.cli.report import expand
from tests.reports.folders import write_run
from tests.runs.measured import measure
from tests.slowness import slow
from tests.stories.tiny import Workspace


@pytest.fixture
def runs(tmp_path: Path) -> Workspace:
    """A folder with a sweep of two settings and two seeds, and a run beside it."""
    for number in range(4):
        write_run(
            tmp_path / "sweep" / str(number),
            bleu=50.0 + number,
            eps=3.0 if number < 2 else 8.0,
            train={"seed": number % 2},
        )
    write_run(tmp_path / "one, (odd)", eps=1.0)
    return Workspace(tmp_path)


def test_folders_alone_are_runs(runs: Workspace) -> None:
    outcome = runs.run("report", "sweep", "one, (odd)")
    assert outcome.code == 0, outcome.err
    assert outcome.new == frozenset()
    assert outcome.out.startswith("# 5 runs, 3 settings\n")
    assert outcome.out == runs.run("report", "runs=[sweep,'one, (odd)']").out


def test_a_folder_takes_markdown_csv_and_html(runs: Workspace) -> None:
    outcome = runs.run("report", "runs=sweep", "to=tables")
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    written = {path.name for path in (runs.root / "tables").iterdir()}
    assert written == {"report.md", "table.csv", "report.html"}
    rows = json.loads(runs.run("report", "sweep", "output=json").out)["runs"]
    assert [row["bleu"] for row in rows] == [50.0, 51.0, 52.0, 53.0]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (
            ["none"],
            "runs must be folders of runs, or of sweeps of them, got 'none', which does not exist",
        ),
        ([], "runs must name at least one folder, got none; give runs=FOLDER."),
        (["sweep", "ratings=a.csv"], "ratings was removed from dpft. Compute means"),
        (["sweep", "metric=blue"], "metric must be one that the runs were scored by, got 'blue'"),
        *slow(
            (["sweep", "over=[a,a]"], "over must be one to three different keys"),
            (["sweep", "to=sweep/0/config.yaml"], "to must be a folder"),
        ),
    ],
)
def test_bad_questions_about_runs_are_refused(
    runs: Workspace, arguments: list[str], part: str
) -> None:
    assert part in runs.refusal("report", *arguments)


def test_words_alone_are_quoted_for_hydra() -> None:
    assert expand(["a", "output=json", "b's"]) == ["output=json", "runs=['a','b\\'s']"]


def test_repeated_runs_are_joined() -> None:
    assert expand(["runs=a", "to=x", "runs=[b,c]"]) == ["to=x", "runs=[a,b,c]"]


def test_a_runs_own_report_is_rebuilt_and_no_table_printed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    outcome = Workspace(tmp_path).run("report", "run", "rebuild=true")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == "INFO: run: report.md and report.html written anew\n"
    assert "60.0" in (folder / "report.html").read_text()


def test_signal_to_noise_goes_to_a_private_folder_and_no_value_of_it_is_said(
    runs: Workspace,
) -> None:
    for number in range(4):
        measure(runs.root / f"sweep/{number}", 0.0371 + number)
    outcome = runs.run("report", "sweep", "to=tables", "signal_to_noise=true")
    assert outcome.code == 0, outcome.err
    path = runs.root / "tables/private/signal_to_noise.html"
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (path.parent, path)]
    assert modes == [0o700, 0o600]
    sentence = "it reads the records, no epsilon covers it, and it stays with the owner of the data"
    assert outcome.err.splitlines()[0] == f"INFO: tables/private/signal_to_noise.html: {sentence}"
    assert "0.0371" in path.read_text()
    public = [each.read_text() for each in (runs.root / "tables").iterdir() if each.is_file()]
    assert len(public) == 3
    assert not [text for text in (outcome.out, outcome.err, *public) if "0371" in text]


def test_where_it_is_not_asked_for_no_ratio_is_read(runs: Workspace) -> None:
    measure(runs.root / "sweep/0", 0.0371)
    assert runs.run("report", "sweep", "to=tables").code == 0
    assert not (runs.root / "tables/private").exists()
