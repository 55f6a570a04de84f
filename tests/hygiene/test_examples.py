"""The examples in docstrings say what happens, in every module that has some."""

import doctest
import importlib
from pathlib import Path

import pytest

import dpft

PACKAGE = Path(dpft.__file__).parent
SLOW = {"dpft.privacy.accounting", "dpft.commands.python_api"}
"""They ask every accountant, in processes of their own too."""
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [], id=name)
        for name in MODULES
    ],
)
def test_the_examples_of_a_module_hold(name: str) -> None:
    module = importlib.import_module(name)
    found = doctest.testmod(module)
    assert not found.failed
    # of some, dpft.synthesize's for instance, every line is skipped
    assert found.attempted or "+SKIP" in Path(str(module.__file__)).read_text(encoding="utf-8")
