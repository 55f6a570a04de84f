"""What all tests here share."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _shared(self_check_once: None) -> None:
    """Sums are compared with those of other ways: proofs of one shape are made once."""
