"""Checks of a configuration that concern more than one of its sections.

A root dataclass lists them with the sections that each needs, so that where one section is refused
the checks that need no more than the others are made all the same.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from dpft.errors import Faults

CrossCheck = tuple[tuple[str, ...], Callable[..., None]]
"""Names of fields, and the function that refuses their values, handed over in that order."""


class CrossChecked:
    """Base of the roots that list checks; a root is refused with all that fails."""

    cross_checks: ClassVar[tuple[CrossCheck, ...]] = ()

    def __post_init__(self) -> None:
        faults = Faults()
        self.gather_faults(vars(self), faults)
        faults.refuse()

    @classmethod
    def gather_faults(cls, sections: Mapping[str, Any], faults: Faults) -> None:
        """Makes the checks whose sections are all there.

        Args:
            sections: Field name to value, of all fields or of those that were not refused.
            faults: Takes what the checks refuse.
        """
        for names, check in cls.cross_checks:
            if all(name in sections for name in names):
                with faults.gathering():
                    check(*(sections[name] for name in names))
