"""The examples in docstrings say what happens."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import dpft

PACKAGE = Path(dpft.__file__).parent
SLOW = {"dpft.privacy.accounting"}
"""It asks every accountant, in their own processes too."""


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = [
    module_name(path)
    for path in sorted((PACKAGE / "privacy").rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [], id=name)
        for name in MODULES
    ],
)
def test_the_examples_of_a_module_hold(name: str) -> None:
    result = doctest.testmod(import_module(name))
    assert result.attempted and not result.failed
