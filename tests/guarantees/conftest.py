"""What all stories share."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _shared(shared_accounting: None, self_check_once: None) -> None:
    """Every command shares running accountants and self-checks of one shape."""
