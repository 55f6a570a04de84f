"""The pairs of docs/how-to/migrate.md: each script after runs, each before where its library is."""

import os
import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs.tools.examples import LONGEST, environment
from docs.tools.pages import DOCS, File, parts_of
from tests.stories.murder import forking

FILES = {
    part.name: part.content
    for part in parts_of((DOCS / "how-to" / "migrate.md").read_text())
    if isinstance(part, File)
}
PAIRS = {
    "opacus": "opacus",
    "trl": "trl",
    "private_transformers": "private_transformers",
    "trainer": "transformers",
    "fastdp": "fastDP",
}
"""What each pair's script before needs; CI runs the first and the fourth."""
BUDGETS = {"opacus": 3.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    return tmp_path


def printed(folder: Path, script: str) -> str:
    process = forking().Process(target=run_script, args=(folder, script))
    process.start()
    process.join(LONGEST)
    process.kill()
    said = (folder / "said").read_text()
    assert process.exitcode == 0, said
    return said


def run_script(folder: Path, script: str) -> None:
    """Run a script as its reader does, but for what this process has imported already."""
    os.chdir(folder)
    os.environ.update(environment())
    said = os.open("said", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(said, stream)
    sys.path.insert(0, str(folder))
    runpy.run_path(script, run_name="__main__")


def test_the_page_holds_a_script_before_and_one_after_for_each_library() -> None:
    scripts = {f"{name}_{when}.py" for name in PAIRS for when in ("before", "after")}
    assert set(FILES) == {"desk.py", *scripts}
    for name, library in PAIRS.items():
        assert re.search(rf"^from {library}\b", FILES[f"{name}_before.py"], re.MULTILINE)
        assert "import dpft" in FILES[f"{name}_after.py"]
        assert "torch.randn(" not in re.sub(r"inputs, .*", "", FILES[f"{name}_after.py"])


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_a_script_after_trains_within_its_budget(folder: Path, name: str) -> None:
    lines = printed(folder, f"{name}_after.py")
    (said,) = re.findall(r"^epsilon ([\d.]+) at delta", lines, re.MULTILINE)
    budget = BUDGETS.get(name, 8.0)
    assert budget - 0.05 < float(said) <= budget


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_a_script_before_runs_where_its_library_is_installed(folder: Path, name: str) -> None:
    if find_spec(PAIRS[name]) is None:
        compile(FILES[f"{name}_before.py"], f"{name}_before.py", "exec")
        return
    printed(folder, f"{name}_before.py")
