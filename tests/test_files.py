import json
import os
import stat

import pytest

from dpft.errors import StateError
from dpft.run_folder import (
    apply_umask,
    hold_run,
    read_json,
    read_yaml,
    sync_tree,
    what_lacks,
    write_json,
    write_jsonl,
    write_text,
)
from tests.rejections import rejects


def test_a_file_is_whole_and_nothing_temporary_is_left(tmp_path):
    write_text(tmp_path / "a.txt", "new\n")
    write_text(tmp_path / "a.txt", "newer\n")
    assert (tmp_path / "a.txt").read_text() == "newer\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_path_that_is_no_folder_of_the_kind_is_said_to_be_what_it_is(tmp_path):
    (tmp_path / "a.txt").touch()
    paths = {
        "has no x": tmp_path,
        "is not a folder": tmp_path / "a.txt",
        "does not exist": tmp_path / "b",
    }
    assert {what_lacks(path, "x"): path for path in paths.values()} == paths


def test_if_writing_fails_the_old_file_stays(tmp_path):
    write_text(tmp_path / "a.txt", "old\n")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "a.txt", "new \udcff\n")
    assert (tmp_path / "a.txt").read_text() == "old\n"


def test_json_has_sorted_keys_and_a_schema_version(tmp_path):
    write_json(tmp_path / "a.json", {"b": 1, "a": 2})
    text = (tmp_path / "a.json").read_text()
    assert list(json.loads(text)) == ["a", "b", "schema_version"]


def test_jsonl_has_one_object_a_line_and_keeps_text_as_it_is(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [{"text": "£\u2028"}, {"text": "b"}], mode=0o600)
    lines = (tmp_path / "a.jsonl").read_text().split("\n")
    assert [json.loads(line)["text"] for line in lines[:2]] == ["£\u2028", "b"]
    assert stat.S_IMODE((tmp_path / "a.jsonl").stat().st_mode) == 0o600


def test_a_lock_is_held_by_one_at_a_time(tmp_path):
    with hold_run(tmp_path), rejects(str(tmp_path)), hold_run(tmp_path):
        pass
    with hold_run(tmp_path):
        pass


@pytest.mark.parametrize("version", [1, 3, "2", None, True])
def test_json_of_another_schema_is_refused_by_its_version(tmp_path, version):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"schema_version": version}))
    with rejects(str(path), version):
        read_json(path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff{}", b"[" * 100_000])
def test_damaged_json_is_refused_as_corrupted(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(StateError, match=r"a\.json") as error:
        read_json(tmp_path / "a.json")
    assert error.value.exit_code == 3


def test_a_file_that_a_library_left_to_its_owner_is_shared_as_a_new_one_is(tmp_path):
    (tmp_path / "weights").write_bytes(b"1")
    (tmp_path / "weights").chmod(0o600)
    (tmp_path / "new").write_bytes(b"2")
    apply_umask(tmp_path)
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("weights", "new")}
    assert len(modes) == 1


def test_a_tree_is_on_disk_with_its_names(tmp_path, monkeypatch):
    (tmp_path / "model" / "base").mkdir(parents=True)
    (tmp_path / "model" / "base" / "weights").write_bytes(b"1")
    (tmp_path / "model" / "config").write_bytes(b"2")
    synced = set()
    place = "/proc/self/fd/{}".format
    monkeypatch.setattr(os, "fsync", lambda number: synced.add(os.readlink(place(number))))
    sync_tree(tmp_path / "model")
    names = ("", "model", "model/config", "model/base", "model/base/weights")
    assert synced == {str(tmp_path / name) for name in names}


def test_what_a_link_points_to_keeps_its_mode(tmp_path):
    for name in ("key", "elsewhere/key"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"secret")
        (tmp_path / name).chmod(0o600)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "x").symlink_to(tmp_path / "key")
    (tmp_path / "model" / "y").symlink_to(tmp_path / "elsewhere")
    apply_umask(tmp_path / "model")
    for name in ("key", "elsewhere/key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_json_that_is_a_folder_is_refused_as_corrupted(tmp_path):
    (tmp_path / "a.json").mkdir()
    with pytest.raises(StateError, match=r"a\.json"):
        read_json(tmp_path / "a.json")


def test_yaml_is_read_as_plain_values_of_which_none_is_resolved(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "hidden")
    (tmp_path / "a.yaml").write_text("a: ${oc.env:SECRET}\nb: [1, null, true]\n")
    assert read_yaml(tmp_path / "a.yaml") == {"a": "${oc.env:SECRET}", "b": [1, None, True]}


NO_YAML = {
    "nested too deeply": "[" * 5000,
    "with a day that is none": "2001-99-99",
    "with a text that is no time": "!!timestamp x",
    "with a tag of Python's": "!!python/object/apply:os.system [ls]",
    "open": "{",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", NO_YAML)
def test_yaml_that_dpft_did_not_write_is_refused(tmp_path, case):
    (tmp_path / "a.yaml").write_text(NO_YAML[case])
    with rejects(str(tmp_path / "a.yaml")) as faults:
        read_yaml(tmp_path / "a.yaml")
    assert "\n" not in faults[0].message


def test_yaml_that_is_a_folder_or_no_text_is_refused(tmp_path):
    (tmp_path / "a.yaml").mkdir()
    (tmp_path / "b.yaml").write_bytes(b"\xff")
    for name in ("a.yaml", "b.yaml", "c.yaml"):
        with rejects(str(tmp_path / name)):
            read_yaml(tmp_path / name)
