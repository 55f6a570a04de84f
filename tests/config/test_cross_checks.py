from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest

from dpft.config.load import CrossCheck, CrossChecked, from_values
from dpft.errors import InputError


def refuse(sentence: str) -> Callable[..., None]:
    def check(*values: int) -> None:
        if sum(values) > 9:
            raise InputError(sentence)

    return check


@dataclass(frozen=True, kw_only=True)
class Part:
    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise InputError("size must be at least 0.")


@dataclass(frozen=True, kw_only=True)
class Root(CrossChecked):
    part: Part
    left: int
    right: int

    cross_checks: ClassVar[tuple[CrossCheck, ...]] = (
        (("left",), refuse("left")),
        (("left", "right"), refuse("both")),
        (("part", "right"), lambda part, right: refuse("part")(part.size, right)),
    )


def test_every_check_that_fails_is_in_one_error() -> None:
    with pytest.raises(InputError) as error:
        Root(part=Part(size=1), left=10, right=9)
    assert error.value.faults == ("left", "both", "part")
    assert Root(part=Part(size=0), left=4, right=5).left == 4


def test_a_refused_section_leaves_the_checks_of_the_others() -> None:
    with pytest.raises(InputError) as error:
        from_values({"part": {"size": -1}, "left": 10, "right": 1}, Root)
    assert error.value.faults == ("size must be at least 0.", "left", "both")
