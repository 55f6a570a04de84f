"""The tests near a module are found by its name, or by who imports it."""

from pathlib import Path

import pytest

from tests.near import near


def test_a_module_has_the_test_file_of_its_name() -> None:
    assert near(Path("dpft/methods/lora.py")) == [Path("tests/methods/test_lora.py")]


def test_a_module_without_one_has_those_that_import_it() -> None:
    found = near(Path("dpft/errors.py"))
    assert Path("tests/test_near.py") not in found
    assert len(found) > 3


def test_a_folder_has_its_mirror() -> None:
    assert near(Path("dpft/methods")) == [Path("tests/methods")]


@pytest.mark.parametrize("path", ["dpft/nothing.py", "conf/method/lora.yaml"])
def test_what_has_no_test_is_said(path: str) -> None:
    with pytest.raises(FileNotFoundError, match=path):
        near(Path(path))
