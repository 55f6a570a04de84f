"""How numbers stand in the reports."""

import doctest

import pytest

from dpft.reports import pages
from dpft.reports.pages import digits


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (60.5321, "60.5"),
        (9.999, "10.0"),
        (0.6512, "0.651"),
        (1234.5, "1234"),
        (-0.1234, "-0.123"),
        (0.0, "0"),
        (0.00012, "0.000120"),
        (1.234e-9, "1.23e-09"),
    ],
)
def test_a_score_has_three_digits(value: float, shown: str) -> None:
    assert digits(value) == shown


def test_the_examples_of_the_module_hold() -> None:
    failed, tried = doctest.testmod(pages)
    assert tried and not failed
