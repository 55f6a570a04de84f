"""Fixtures that every file of this folder uses."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _shared(shared_accounting: None, self_check_once: None) -> None:
    """Share the accountants' answers and the self-checks between the runs of a file."""
