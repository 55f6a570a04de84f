import json
import os
import re
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn

from dpft.cli.main import main


def files_left() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


def test_overrides_reach_the_subcommand_as_dataclasses(
    fake: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake", "privacy.eps=3", "method=lora", "method.rank=2"]) == 0
    assert json.loads(capsys.readouterr().out) == {"eps": 3.0, "name": "lora"}


def test_a_number_in_scientific_notation_is_a_number(fake: ModuleType) -> None:
    assert main(["fake", "privacy.eps=3", "privacy.delta=1e-5"]) == 0


def test_a_failing_job_does_not_stop_its_sweep_and_the_worst_code_is_returned(
    fake: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["fake", "--multirun", "privacy.eps=3", "outcome=corrupt,crash,done"]
    assert main(arguments) == 3
    assert json.loads(capsys.readouterr().out) == {"eps": 3.0, "name": "full"}


class ForkingLauncher(BasicLauncher):
    """Runs each job in a process of its own, as other launchers do."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> list[JobReturn]:
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            child = os.fork()
            if child == 0:
                try:
                    super().launch([overrides], number)
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
        return []


@pytest.fixture
def other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for ``hydra/launcher=joblib``."""
    known = Plugins.instance().class_name_to_class
    name = f"{BasicLauncher.__module__}.{BasicLauncher.__qualname__}"
    monkeypatch.setitem(known, name, ForkingLauncher)


def test_jobs_in_other_processes_give_the_sweep_its_exit_code(
    fake: ModuleType, other_processes: None
) -> None:
    assert main(["fake", "-m", "privacy.eps=3", "outcome=corrupt,crash,done"]) == 3
    assert main(["fake", "-m", "privacy.eps=-1,3"]) == 2
    assert files_left() == []
    assert main(["fake", "-m", "privacy.eps=3,8", "outcome=record"]) == 0
    assert main(["fake", "-m", "privacy.eps=3,8", "outcome=leave,record"]) == 1


@pytest.mark.slow
def test_a_later_sweep_into_the_same_folder_has_an_exit_code_of_its_own(
    fake: ModuleType, other_processes: None
) -> None:
    words = ["fake", "-m", "hydra.sweep.dir=mine", "privacy.eps=3"]
    assert main([*words, "outcome=record,corrupt"]) == 3
    assert main([*words, "outcome=record"]) == 0


def test_runs_in_other_processes_are_on_the_bill(
    fake: ModuleType, other_processes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    billed = []
    monkeypatch.setattr(
        "dpft.runs.tuning.bill.write_tuning_bill",
        lambda sweep, folders: billed.append((sweep, folders)),
    )
    assert main(["fake", "-m", "hydra.sweep.dir=mine", "privacy.eps=3", "outcome=spend,done"]) == 0
    sweep = Path("mine").absolute()
    assert billed == [(sweep, [sweep / "0", sweep / "1"])]


def test_how_jobs_ended_is_the_owners_and_not_written_through_a_link(
    fake: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fake", "-m", "privacy.eps=3", "outcome=record"]
    assert main([*words, "hydra.sweep.dir=mine"]) == 0
    assert stat.S_IMODE(Path("mine/private").stat().st_mode) == 0o700
    Path("linked").mkdir()
    Path("elsewhere").mkdir()
    Path("linked/private").symlink_to(Path("elsewhere").absolute())
    assert main([*words, "hydra.sweep.dir=linked"]) == 2
    assert "symbolic link" in capsys.readouterr().err
    assert list(Path("elsewhere").iterdir()) == []


def test_a_sweep_that_cannot_be_composed_leaves_nothing(fake: ModuleType) -> None:
    assert main(["fake", "--multirun", "privacy.epz=1,2"]) == 2
    assert files_left() == []


def test_jobs_of_a_sweep_have_folders_of_their_own(fake: ModuleType) -> None:
    assert main(["fake", "-m", "privacy.eps=3,8", "outcome=record"]) == 0
    (sweep,) = Path("outputs/multirun").glob("*/*")
    assert sorted(path.name for path in sweep.iterdir()) == ["0", "1", "multirun.yaml", "private"]


def test_flags_may_stand_anywhere_among_the_overrides(
    fake: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake", "privacy.eps=3,8", "--multirun", "method=lora"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["eps"] for line in lines] == [3.0, 8.0]


def test_log_lines_go_to_stderr_and_into_no_file(
    fake: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake", "privacy.eps=3", "outcome=log"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "INFO: a public line\n")
    assert files_left() == []


def test_a_subcommand_without_a_folder_leaves_none(
    fake: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    primary = tmp_path / "conf" / "fake.yaml"
    primary.write_text(primary.read_text().replace("hydra: run_folder", "hydra: no_folder"))
    assert main(["fake", "privacy.eps=3"]) == 0
    assert main(["fake", "privacy.eps=-1"]) == 2
    assert main(["fake", "--multirun", "privacy.eps=3,8"]) == 0
    assert files_left() == []
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_cfg_job_prints_the_composition_and_runs_nothing(
    fake: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake", "--cfg", "job", "privacy.eps=3"]) == 0
    assert "eps: 3" in capsys.readouterr().out
    assert files_left() == []


def test_help_of_a_subcommand_lists_groups_and_keys(
    fake: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: dpft fake ")
    assert "  method=full*\n  method=lora\n" in text
    assert "  privacy.eps=VALUE " in text and " (a number)" in text
    assert "--cfg job" in text


def test_help_of_an_option_lists_its_own_keys_and_no_others(
    fake: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake", "--help", "method=lora"]) == 0
    text = capsys.readouterr().out
    assert "method=lora*\n" in text and "method.rank=4 " in text
    assert "privacy" not in text and "usage" not in text


def test_help_of_what_there_is_not_says_what_it_may_have_been(
    fake: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake", "privacy", "--help", "privcy"]) == 2
    assert "there is no such group or key; did you mean privacy?" in capsys.readouterr().err


def test_help_counts_a_configuration_folder_of_the_users_own(
    fake: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "extra" / "method").mkdir(parents=True)
    (tmp_path / "extra" / "method" / "mine.yaml").write_text("# My own. Run: dpft\nname: mine\n")
    own = ["--config-dir", str(tmp_path / "extra"), "method=mine"]
    assert main(["fake", "--help", *own]) == 0
    assert re.search(r"method=mine\* +My own\.\n", capsys.readouterr().out)


def test_a_configuration_folder_of_the_users_own_is_searched(
    fake: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "extra" / "method").mkdir(parents=True)
    (tmp_path / "extra" / "method" / "mine.yaml").write_text("name: mine\n")
    own = ["--config-dir", str(tmp_path / "extra"), "method=mine"]
    assert main(["fake", *own, "privacy.eps=3"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "mine"


def test_expand_sees_the_overrides_before_hydra_does(
    fake: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    vars(fake)["expand"] = lambda overrides: [*overrides, "method=lora"]
    assert main(["fake", "privacy.eps=3"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "lora"


def test_trust_rule_11_unpickling_an_earlier_job_is_refused(
    fake: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake", "--experimental-rerun", "job.pickle"]) == 2
    assert "pickle" in capsys.readouterr().err


def test_the_environment_and_the_arguments_are_restored(fake: ModuleType) -> None:
    before = (dict(os.environ), list(sys.argv))
    assert main(["fake", "privacy.eps=3"]) == 0
    assert main(["fake", "privacy.epz=3"]) == 2
    assert (dict(os.environ), list(sys.argv)) == before
