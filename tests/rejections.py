"""Assert that input is rejected, by the fields of the error instead of its sentence."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dpft.errors import Fault, InputError

ANYTHING: Any = object()


@contextmanager
def rejects(key: str | None = ANYTHING, value: Any = ANYTHING) -> Iterator[list[Fault]]:
    """Assert that the block raises ``InputError`` with a fault of this key and this value.

    >>> with rejects("train.steps", 0) as faults:
    ...     raise InputError("train.steps must be at least 1, got 0.", key="train.steps", value=0)
    >>> faults[0].hint is None
    True

    Args:
        key: Of one of the faults; any, if not given.
        value: Of the same fault; any, if not given.

    Yields:
        A list that contains the faults of the error after the block has ended.
    """
    faults: list[Fault] = []
    with pytest.raises(InputError) as raised:
        yield faults
    faults += raised.value.faults
    fields = [(fault.key, fault.value) for fault in faults]
    assert any(key in (ANYTHING, k) and (value is ANYTHING or value == v) for k, v in fields), (
        f"expected a fault of {key}={value}, got {fields}: {raised.value}"
    )
