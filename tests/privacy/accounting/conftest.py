"""Accountants in processes of their own, whose limits what is asked here may need."""

from collections.abc import Iterator

import pytest

from dpft.privacy.accounting import Accountants


@pytest.fixture(scope="session")
def accountants() -> Iterator[Accountants]:
    """Running accountants, started once: their libraries take seconds to import."""
    with Accountants() as running:
        running.start()
        yield running
