import json
import shutil

import pytest

from dpft.errors import InputError
from dpft.training.key_file import read_key_file, write_key_file

CONTENT = {"step": 3, "keys": {"noise": "00" * 32}}


def test_a_key_file_gives_its_content_back_and_is_for_its_owner_alone(tmp_path):
    path = tmp_path / "keys.json"
    write_key_file(path, CONTENT)
    read = read_key_file(path)
    assert read.content == CONTENT and read.original
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_renamed_file_and_a_renamed_folder_are_still_the_original(tmp_path):
    (tmp_path / "partial").mkdir()
    write_key_file(tmp_path / "partial" / "a", CONTENT)
    (tmp_path / "partial" / "a").rename(tmp_path / "partial" / "b")
    (tmp_path / "partial").rename(tmp_path / "whole")
    assert read_key_file(tmp_path / "whole" / "b").original


@pytest.mark.parametrize("copy", [shutil.copy, shutil.copy2])
def test_trust_rule_4_a_copy_is_no_original(tmp_path, copy):
    path = tmp_path / "keys.json"
    write_key_file(path, CONTENT)
    copy(path, tmp_path / "copy.json")
    read = read_key_file(tmp_path / "copy.json")
    assert read.content == CONTENT and not read.original
    assert read_key_file(path).original


def test_a_file_without_a_place_is_no_original(tmp_path):
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"schema_version": 1, **CONTENT}))
    assert not read_key_file(path).original


def test_another_schema_is_refused(tmp_path):
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"schema_version": 2, **CONTENT}))
    with pytest.raises(InputError, match="schema_version"):
        read_key_file(path)
