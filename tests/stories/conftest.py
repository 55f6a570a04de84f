"""What all stories share."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _shared(shared_accounting: None) -> None:
    """Every command shares running accountants."""
