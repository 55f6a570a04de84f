"""``make mutants`` tells faults that are caught from faults that survive or cannot be planted."""

from pathlib import Path

import pytest

from tests.planted.__main__ import Copies, judge, not_failed
from tests.planted.fault import Edit, Fault

UNIQUE = "tests/hygiene/test_faults.py::test_the_names_of_faults_are_unique"


def planted(*edits: Edit, tests: tuple[str, ...] = (UNIQUE,)) -> Fault:
    return Fault(name="runner/example", breaks="Nothing.", edits=edits, tests=tests)


DUPLICATE = Edit(
    "tests/planted/faults/sampling.py", "sampling/fixed-batch-size", "sampling/without-replacement"
)
FAULTS = {
    "caught": planted(DUPLICATE),
    "survived": planted(Edit("dpft/errors.py", "class InputError(", "class InputError(  ")),
    "broken": planted(Edit("dpft/errors.py", "no such passage", "")),
}


@pytest.mark.slow
@pytest.mark.parametrize("outcome", FAULTS)
def test_the_outcome_of_a_fault(outcome: str, tmp_path: Path) -> None:
    assert judge(Copies(tmp_path, 1), FAULTS[outcome], without_detectors=False).outcome == outcome


@pytest.mark.slow
def test_a_fault_that_one_of_its_tests_misses_survives(tmp_path: Path) -> None:
    other = "tests/planted/test_runner.py::test_a_copy_is_restored"
    fault = planted(DUPLICATE, tests=(UNIQUE, other))
    assert judge(Copies(tmp_path, 1), fault, without_detectors=False).outcome == "survived"


@pytest.mark.slow
def test_a_copy_is_restored(tmp_path: Path) -> None:
    copies, path = Copies(tmp_path, 1), "dpft/errors.py"
    with copies.one() as copy:
        before = (copy / path).read_bytes()
    with copies.one(FAULTS["survived"]) as copy:
        assert (copy / path).read_bytes() != before
    with copies.one() as copy:
        assert (copy / path).read_bytes() == before


def test_a_test_is_counted_as_failed_only_under_its_whole_name() -> None:
    output = "FAILED a.py::test_a[1] - x\nERROR a.py::test_b - y\n1 failed, 1 error in 1 s"
    tests = ["a.py::test_a", "a.py::test_a_b", "a.py::test_b"]
    assert not_failed(output, tests) == ["a.py::test_a_b"]
