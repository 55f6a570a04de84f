import doctest
import importlib

import pytest

MODULES = ("attack_curves", "exposure", "f_dp", "guessing", "independent", "one_run", "outcome",
           "trade_off")  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_are_right(name):
    found = doctest.testmod(importlib.import_module(f"dpft.audit.{name}"))
    assert found.attempted
    assert not found.failed
