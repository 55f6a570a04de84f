"""What all tests here share."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _shared(self_check_once: None) -> None:
    """Sums are compared with the loop's: proofs of one shape are made once."""
