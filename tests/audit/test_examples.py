import doctest
import importlib
from pathlib import Path

import pytest

import dpft.audit

FOLDER = Path(dpft.audit.__file__).parent
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if ">>> " in path.read_text())


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_are_right(name):
    found = doctest.testmod(importlib.import_module(f"dpft.audit.{name}"))
    assert found.attempted and not found.failed
