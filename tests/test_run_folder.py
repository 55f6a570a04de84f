"""What a run's folder holds is named in one module, and its private part is the owner's alone."""

import ast
import stat
from pathlib import Path, PurePosixPath

import pytest

import dpft
from dpft import run_folder as files
from dpft.errors import InputError
from dpft.run_folder import (
    JOURNAL,
    MEMORIZATION,
    PRIVATE,
    SYNTHETIC_AUDIT,
    audit_path,
    hold_run,
    private_audit_path,
    private_folder,
    private_path,
    trial_folder,
)

PACKAGE = Path(dpft.__file__).parent
OTHERS = {"README.md", "model.safetensors", "config.json"}
"""Files of a model's folder, which Hugging Face names."""


def names() -> set[str]:
    """Returns the last part of every name and path in the module."""
    values = [
        value
        for name, value in vars(files).items()
        if name.isupper() and name != "RELEASED" and isinstance(value, str | tuple)
    ]
    flat = [each for value in values for each in ([value] if isinstance(value, str) else value)]
    return {PurePosixPath(each).name for each in flat}


def spelled(source: str) -> list[str]:
    """Returns the names of a run's folder that a source spells itself.

    A text that is such a file's name, or has it as a word, counts, docstrings aside; a plain word
    such as ``model``, which a configuration has too, counts where it is joined to a path.
    """
    tree, found = ast.parse(source), []
    told = {name for name in names() if "." in name and not name.startswith(".")} - OTHERS
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            joined = [part for part in (node.left, node.right) if isinstance(part, ast.Constant)]
            found += [str(part.value) for part in joined if part.value in names() - OTHERS]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.split("/")[-1]
            found += [node.value] if text in told else []
    return found


@pytest.mark.slow
def test_no_other_module_spells_a_name_of_a_runs_folder() -> None:
    others = set(PACKAGE.rglob("*.py")) - {PACKAGE / "run_folder.py"}
    assert len(others) > 200
    found = {str(path): spelled(path.read_text()) for path in sorted(others)}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        'path = folder / "private"',
        'NAME = "ledger.jsonl"',
        'path = folder / "private/steps.jsonl"',
        'found = folder / "model"',
    ],
)
def test_a_spelt_name_is_seen(source: str) -> None:
    assert len(spelled(source)) >= 1


def test_words_of_a_configuration_are_no_names() -> None:
    assert spelled('config["model"], privacy["private"], "log"') == []


def test_private_is_made_for_the_owner_alone(tmp_path: Path) -> None:
    path = private_path(tmp_path, JOURNAL)
    assert path == tmp_path / "private" / "steps.jsonl"
    assert stat.S_IMODE((tmp_path / PRIVATE).stat().st_mode) == 0o700
    (tmp_path / PRIVATE).chmod(0o755)
    assert stat.S_IMODE(private_folder(tmp_path).stat().st_mode) == 0o700


def test_a_file_in_the_place_of_private_is_refused(tmp_path: Path) -> None:
    (tmp_path / "private").touch()
    with pytest.raises(InputError, match="private must be a folder, .* got something else; move"):
        private_folder(tmp_path)


def test_what_an_audit_finds_has_a_folder_on_either_side(tmp_path: Path) -> None:
    assert private_audit_path(tmp_path, MEMORIZATION) == tmp_path / MEMORIZATION
    assert stat.S_IMODE((tmp_path / MEMORIZATION).parent.stat().st_mode) == 0o700
    assert audit_path(tmp_path, SYNTHETIC_AUDIT).parent.is_dir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/audit").touch()
    with pytest.raises(InputError, match="audit must be a folder, for what an audit finds, got"):
        audit_path(tmp_path / "other", SYNTHETIC_AUDIT)


def test_a_run_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    with hold_run(tmp_path), pytest.raises(InputError, match="in use"), hold_run(tmp_path):
        pass
    with hold_run(tmp_path):
        assert stat.S_IMODE((tmp_path / "private/lock").stat().st_mode) == 0o600


def test_trials_are_private(tmp_path: Path) -> None:
    assert trial_folder(tmp_path, 2) == tmp_path / "private" / "tuning" / "trial-2"
