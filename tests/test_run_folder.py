"""The private part of a run's folder is the owner's alone."""

import stat
from pathlib import Path

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
)
from tests.rejections import rejects


def test_private_is_made_for_the_owner_alone(tmp_path: Path) -> None:
    path = private_path(tmp_path, JOURNAL)
    assert path == tmp_path / "private" / "steps.jsonl"
    assert stat.S_IMODE((tmp_path / PRIVATE).stat().st_mode) == 0o700
    (tmp_path / PRIVATE).chmod(0o755)
    assert stat.S_IMODE(private_folder(tmp_path).stat().st_mode) == 0o700


def test_a_file_in_the_place_of_private_is_refused(tmp_path: Path) -> None:
    (tmp_path / "private").touch()
    with rejects(str(tmp_path / "private")):
        private_folder(tmp_path)


def test_what_an_audit_finds_has_a_folder_on_either_side(tmp_path: Path) -> None:
    assert private_audit_path(tmp_path, MEMORIZATION) == tmp_path / MEMORIZATION
    assert stat.S_IMODE((tmp_path / MEMORIZATION).parent.stat().st_mode) == 0o700
    assert audit_path(tmp_path, SYNTHETIC_AUDIT).parent.is_dir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/audit").touch()
    with rejects(str(tmp_path / "other/audit")):
        audit_path(tmp_path / "other", SYNTHETIC_AUDIT)


def test_the_lock_of_a_run_is_the_owners_alone(tmp_path: Path) -> None:
    with hold_run(tmp_path):
        assert stat.S_IMODE((tmp_path / "private/lock").stat().st_mode) == 0o600
