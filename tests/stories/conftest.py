"""What all stories share."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _shared_accounting(shared_accounting: None) -> None:
    """Every command of these tests shares running accountants."""
