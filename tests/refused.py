"""The sentence of a refusal, for tests of what is said of bad input."""

from collections.abc import Callable
from typing import Any

import pytest


def refusal(call: Callable[..., Any], *arguments: Any, **settings: Any) -> str:
    """Return what a call that refuses its input says."""
    with pytest.raises(ValueError) as caught:
        call(*arguments, **settings)
    return str(caught.value)
