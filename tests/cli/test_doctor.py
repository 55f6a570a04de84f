import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpft.commands import doctor
from dpft.commands.doctor import Check
from tests.stories.tiny import Workspace


@pytest.mark.slow
def test_a_machine_that_runs_this_test_can_train_and_nothing_is_left(tmp_path: Path) -> None:
    outcome = Workspace(tmp_path).run("doctor")
    assert outcome.code == 0, outcome.err
    assert outcome.out.endswith("dpft can train here.\n")
    assert outcome.new == frozenset()
    for what in ("torch", "device", "outputs/", "memory", "disk", "Java", "dpft[tracking]"):
        assert any(what in line for line in outcome.out.splitlines()), what


@pytest.mark.slow
def test_json_output_is_one_object_and_tells_no_path_of_the_users_home(tmp_path: Path) -> None:
    outcome = Workspace(tmp_path).run("doctor", "output=json")
    assert json.loads(outcome.out)["can_train"] is True
    assert str(Path.home()) not in outcome.out and str(tmp_path) not in outcome.out


@pytest.mark.slow
def test_something_essential_that_is_missing_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Check(what="torch", state="missing", found="not installed", essential=True)
    monkeypatch.setattr(doctor, "package_checks", lambda: [broken])
    outcome = Workspace(tmp_path).run("doctor", "output=json")
    assert outcome.code == 1
    assert json.loads(outcome.out)["can_train"] is False
    assert outcome.err.startswith("dpft: error: dpft cannot train here")


@pytest.mark.slow
def test_a_machine_without_the_large_libraries_is_described() -> None:
    program = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'huggingface_hub', 'safetensors', 'scipy', 'numpy',"
        " 'prv_accountant', 'dp_accounting'):\n"
        "    sys.modules[name] = None\n"
        "from dpft.cli.main import main; sys.exit(main(['doctor']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.endswith("dpft cannot train here: device.\n")
    assert "Traceback" not in done.stderr
