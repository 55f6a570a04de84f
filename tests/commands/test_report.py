import csv
import io
import json
from pathlib import Path

import pytest
import yaml

from dpft.commands.report import expand
from dpft.privacy.plan import SpentBefore
from dpft.reports.run_record import write_metrics
from tests.commands.run_folders import edit, make_plan, make_run
from tests.commands.test_composition import HISTOGRAM
from tests.reports.plain import TOKENIZER
from tests.reports.test_report import entry
from tests.stories.tiny import Workspace


def finished(folder: Path, *, bleu: float = 60.0, seed: int = 0, **section: object) -> Path:
    """Make a run with a ledger of five steps and a public score."""
    make_run(folder, **section)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["train"]["seed"] = seed
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    write_metrics(folder, [entry("after", bleu)], public=True)
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Workspace:
    """A folder with a sweep of two settings and two seeds, and a run beside it."""
    for number in range(4):
        finished(
            tmp_path / "sweep" / str(number),
            bleu=50.0 + number,
            seed=number % 2,
            eps=3.0 if number < 2 else 8.0,
        )
    finished(tmp_path / "one, (odd)", eps=1.0)
    return Workspace(tmp_path)


def rows(workspace: Workspace, *arguments: str) -> list[dict[str, object]]:
    outcome = workspace.run("report", *arguments, "output=json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)["runs"]


@pytest.mark.slow
def test_folders_alone_are_runs(runs: Workspace) -> None:
    outcome = runs.run("report", "sweep", "one, (odd)")
    assert outcome.code == 0, outcome.err
    assert outcome.new == frozenset()
    assert outcome.out.startswith("# 5 runs, 3 settings\n")
    assert outcome.out == runs.run("report", "runs=[sweep,'one, (odd)']").out


@pytest.mark.slow
def test_csv_has_one_row_per_run_and_json_the_same(runs: Workspace) -> None:
    outcome = runs.run("report", "sweep", "to=csv")
    printed = list(csv.DictReader(io.StringIO(outcome.out)))
    assert [row["run"] for row in printed] == [f"sweep/{number}" for number in range(4)]
    found = rows(runs, "sweep")
    assert [row["bleu"] for row in found] == [50.0, 51.0, 52.0, 53.0]
    assert [float(row["epsilon"]) for row in printed] == [row["epsilon"] for row in found]


@pytest.mark.slow
def test_a_table_and_a_plot_are_written_to_files(runs: Workspace) -> None:
    outcome = runs.run("report", "sweep", "to=html", "file=runs.html")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "INFO: table: runs.html\n")
    assert "50.500\u00a0±\u00a00.707" in (runs.root / "runs.html").read_text()
    outcome = runs.run("report", "sweep", "to=plot")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "INFO: plot: report.png\n")
    assert (runs.root / "report.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_epsilon_is_that_of_the_ledger_as_account_computes_it(runs: Workspace) -> None:
    edit(runs.root / "sweep/0", epsilon=0.001, epsilons={"rdp": 0.001})
    account = json.loads(runs.run("account", "run=sweep/1", "output=json").out)
    for row in rows(runs, "sweep/1"):
        assert {key: row[key] for key in ("epsilon", "delta", "accountant", "private")} == {
            key: account[key] for key in ("epsilon", "delta", "accountant", "private")
        }
    assert "0.0010" not in runs.run("report", "sweep").out


@pytest.mark.slow
def test_epsilon_includes_a_tokenizer_that_the_same_records_made(tmp_path: Path) -> None:
    """The account of two runs with that tokenizer counts it once; of one run it is this."""
    workspace = Workspace(tmp_path)
    before = SpentBefore(run_id="a" * 32, lines=3, head="b" * 64, delta=1e-6, mechanism=HISTOGRAM)
    finished(tmp_path / "alone")
    known = {"with_tokenizer": {"epsilon": 9.0, "delta": 0.1, "tokenizer": TOKENIZER}}
    finished(tmp_path / "both", plan=make_plan(tokenizer=before), known=known)
    (alone,), (both,) = rows(workspace, "alone"), rows(workspace, "both")
    account = json.loads(workspace.run("account", "runs=[both]", "output=json").out)
    assert both["epsilon"] == account["epsilon"] > alone["epsilon"]
    assert both["delta"] == account["delta"] > alone["delta"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["none"], "runs"),
        ([], "runs"),
        (["sweep", "ratings=a.csv"], "ratings"),
        (["sweep", "metric=blue"], "metric"),
        (["sweep", "over=a.b"], "over"),
    ],
)
def test_bad_questions_about_runs_are_refused(
    runs: Workspace, arguments: list[str], key: str
) -> None:
    assert runs.refusal("report", *arguments).startswith(key)


def test_words_alone_are_quoted_for_hydra() -> None:
    assert expand(["a", "output=json", "b's"]) == ["output=json", "runs=['a','b\\'s']"]


def test_repeated_runs_are_joined() -> None:
    assert expand(["runs=a", "to=x", "runs=[b,c]"]) == ["to=x", "runs=[a,b,c]"]


@pytest.mark.slow
def test_a_runs_own_report_is_rebuilt_and_no_table_printed(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    outcome = Workspace(tmp_path).run("report", "run", "rebuild=true")
    assert (outcome.code, outcome.out) == (0, "")
    assert "60.0" in (folder / "report.html").read_text()
