import pytest

from dpft.privacy.accounting.accountants import Accountants


@pytest.fixture(scope="session")
def accountants():
    """Running accountants, started once: their libraries take seconds to import."""
    with Accountants() as running:
        running.start()
        yield running
