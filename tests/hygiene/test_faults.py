"""The planted faults still fit the source, so ``make mutants`` tests what it claims to test."""

import ast
import re
from pathlib import Path

import pytest

from tests.planted.fault import ROOT, Fault
from tests.planted.faults import FAULTS

NAME = re.compile(r"[a-z]+/[a-z0-9]+(-[a-z0-9]+)*")


def test_the_names_of_faults_are_unique() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)
    assert [name for name in names if not NAME.fullmatch(name)] == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fits_the_source(fault: Fault, tmp_path: Path) -> None:
    """If this fails, the code has moved: move the fault with it and keep its name."""
    for file in {edit.file for edit in fault.edits}:
        copy = tmp_path / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / file).read_bytes())
    for edit in fault.edits:
        edit.apply(tmp_path)
    for file in {edit.file for edit in fault.edits}:
        ast.parse((tmp_path / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_tests_of_a_fault_exist(fault: Fault) -> None:
    assert fault.tests
    for test in fault.tests:
        file, _, name = test.partition("::")
        functions = ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
        assert name.partition("[")[0] in [getattr(each, "name", None) for each in functions], test
