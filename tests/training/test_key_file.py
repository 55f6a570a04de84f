import shutil
from pathlib import Path

import pytest

from dpft.training import checkpoint
from dpft.training.checkpoint import read_key_file, write_key_file

CONTENT = {"step": 3, "keys": {"noise": "00" * 32}}


def test_a_key_file_gives_its_content_back_and_is_for_its_owner_alone(tmp_path):
    path = tmp_path / "keys.json"
    changed = write_key_file(path, CONTENT)
    read = read_key_file(path, changed=changed)
    assert read.content == CONTENT and read.original
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_in_a_renamed_folder_is_still_the_original(tmp_path):
    (tmp_path / "partial").mkdir()
    changed = write_key_file(tmp_path / "partial" / "a", CONTENT)
    (tmp_path / "partial").rename(tmp_path / "whole")
    assert read_key_file(tmp_path / "whole" / "a", changed=changed).original


def over_itself(path: Path, backup: Path) -> None:
    """Restores in place: the inode stays."""
    path.write_bytes(backup.read_bytes())


def in_its_place(path: Path, backup: Path) -> None:
    """Restores anew: a file system may give the freed inode's number out again."""
    path.unlink()
    shutil.copy2(backup, path)


def by_another_name(path: Path, backup: Path) -> None:
    """Make a second name for the file, as ``cp -al`` does."""
    (path.parent / "link").hardlink_to(path)


@pytest.mark.parametrize("restore", [over_itself, in_its_place, by_another_name])
def test_trust_rule_4_a_restored_file_is_no_original(tmp_path, monkeypatch, restore):
    """Whatever its inode's number: here every file has the same."""
    monkeypatch.setattr(checkpoint, "_place", lambda status: {"device": 1, "inode": 2})
    path = tmp_path / "keys.json"
    changed = write_key_file(path, CONTENT)
    shutil.copy2(path, tmp_path / "backup")
    assert read_key_file(path, changed=changed).original
    restore(path, tmp_path / "backup")
    read = read_key_file(path, changed=changed)
    assert read.content == CONTENT and not read.original


@pytest.mark.parametrize("copy", [shutil.copy, shutil.copy2])
def test_trust_rule_4_a_copy_is_no_original(tmp_path, copy):
    path = tmp_path / "keys.json"
    changed = write_key_file(path, CONTENT)
    copy(path, tmp_path / "copy.json")
    own = (tmp_path / "copy.json").stat().st_ctime_ns
    for known in (changed, own):
        read = read_key_file(tmp_path / "copy.json", changed=known)
        assert read.content == CONTENT and not read.original
    assert read_key_file(path, changed=changed).original
