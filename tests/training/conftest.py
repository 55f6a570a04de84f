"""What all tests of training share."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _shared(self_check_once: None) -> None:
    """Runs of one shape share what is proved of them."""
