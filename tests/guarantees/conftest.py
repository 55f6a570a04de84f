"""Fixtures that every file of this folder uses."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _shared(shared_accounting: None) -> None:
    """Share the accountants' answers between the runs of a file."""
