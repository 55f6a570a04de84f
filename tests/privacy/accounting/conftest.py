"""Accountants in processes of their own, whose limits what is asked here may need."""

from collections.abc import Iterator
from typing import Any

import pytest

from dpft.privacy.accounting import Accountants


@pytest.fixture(scope="session")
def accountants(known_answers: dict[Any, Any]) -> Iterator[Accountants]:
    """Running accountants, started once: their libraries take seconds to import."""
    with Accountants() as running:
        running._answers = known_answers
        running.start()
        yield running
