import json
import stat
from pathlib import Path

import pytest

from dpft.cli.report import expand
from dpft.evaluation.ratings import REFERENCE, Item, sheet_key, sheet_rows
from dpft.files import SHEET, SHEET_KEY
from dpft.records.form import write_record
from tests.evaluation.test_ratings import ABOUT
from tests.reports.folders import write_run
from tests.runs.measured import measure
from tests.slowness import slow
from tests.stories.tiny import Workspace

SYSTEMS = ("outputs/a", REFERENCE)
ROWS = sheet_rows([Item(context="c", responses=dict.fromkeys(SYSTEMS, "x"))] * 3, seed=0)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A folder with a key and two filled sheets: the run gets 1 to 3, then 4; the reference 5."""
    key = sheet_key(ROWS, SYSTEMS, **ABOUT | {"split_is_public": True})
    write_record(tmp_path / SHEET_KEY, key)
    for name, first in ((SHEET, None), ("other.csv", "4")):
        lines = [
            f"{row.item},{row.response_id},{5 if row.system == REFERENCE else first or row.item}\n"
            for row in ROWS
        ]
        (tmp_path / name).write_text("item,response_id,rating\n" + "".join(lines))
    return Workspace(tmp_path)


def systems(workspace: Workspace, *arguments: str) -> dict[str, dict]:
    outcome = workspace.run("report", *arguments, "output=json")
    assert outcome.code == 0, outcome.err
    assert outcome.new == frozenset()
    return {system["system"]: system for system in json.loads(outcome.out)["systems"]}


def test_the_key_beside_the_sheet_tells_whose_the_ratings_are(workspace: Workspace) -> None:
    found = systems(workspace, f"ratings={SHEET}")
    assert list(found) == list(SYSTEMS)
    assert (found["outputs/a"]["mean"], found["outputs/a"]["ratings"]) == (2.0, 3)
    assert found[REFERENCE]["interval"] == [5.0, 5.0]


@pytest.mark.parametrize(
    "arguments",
    [[f"ratings=[{SHEET},other.csv]"], [f"ratings={SHEET}", "ratings=other.csv"]],
)
def test_several_sheets_are_several_raters(workspace: Workspace, arguments: list[str]) -> None:
    assert systems(workspace, *arguments)["outputs/a"]["mean"] == 3.0


def test_the_table_and_a_key_elsewhere(workspace: Workspace) -> None:
    (workspace.root / "keys").mkdir()
    (workspace.root / SHEET_KEY).rename(workspace.root / "keys" / "k.json")
    outcome = workspace.run("report", f"ratings={SHEET}", "key=keys/k.json")
    assert outcome.out.startswith("chat, split test: 6 ratings by 1 rater, 0 rows not rated\n")
    assert "key=FILE" in workspace.refusal("report", f"ratings={SHEET}")


def test_only_repeated_sheets_are_joined() -> None:
    assert expand(["ratings=a", "key=k"]) == ["ratings=a", "key=k"]
    assert expand(["ratings=a", "key=k", "ratings=[b,c]"]) == ["key=k", "ratings=[a,b,c]"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "exactly one of runs and ratings must be given, got neither; give runs=FOLDER"),
        ([f"ratings=[{SHEET},./{SHEET}]"], "one of them twice"),
        (["ratings=none.csv"], "none.csv: no such file"),
        *slow(
            (["ratings=[]"], "exactly one of runs and ratings"),
            ([f"ratings={SHEET}", "output=xml"], "output must be one of table, json"),
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    workspace: Workspace, arguments: list[str], part: str
) -> None:
    assert part in workspace.refusal("report", *arguments)


def test_a_rating_off_the_scale_is_refused_by_file_and_line(workspace: Workspace) -> None:
    path = workspace.root / "other.csv"
    path.write_text(path.read_text().replace(",4\n", ",44\n", 1))
    assert "other.csv:" in (sentence := workspace.refusal("report", "ratings=other.csv"))
    assert sentence.endswith("got 44.")


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
        (["sweep", f"ratings={SHEET}"], "exactly one of runs and ratings must be given, got both"),
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


def test_a_runs_own_report_is_rebuilt_and_no_table_printed(workspace: Workspace) -> None:
    folder = write_run(workspace.root / "run")
    outcome = workspace.run("report", "run", "rebuild=true")
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
