"""Examples to inputs: evaluation writes one prediction per distinct input."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpft.tasks.records import Example


@dataclass(frozen=True, kw_only=True)
class Group:
    """An input with the examples that share it, at least one."""

    input: str
    """What the examples share, as ``Example.group``: for E2E the meaning representation."""
    examples: tuple[Example, ...]
    """In the order of the split."""

    @property
    def references(self) -> tuple[str, ...]:
        """The texts a prediction for this input is compared to; empty ones only without others."""
        targets = tuple(example.target for example in self.examples)
        return tuple(filter(None, targets)) or targets


def group_examples(examples: Sequence[Example], *, limit: int | None = None) -> list[Group]:
    """Returns the groups in the order in which each first occurs.

    Args:
        examples: A split.
        limit: Most groups to return, the first ones; None for all.
    """
    members: dict[str, list[Example]] = {}
    for example in examples:
        members.setdefault(example.group, []).append(example)
    groups = [Group(input=name, examples=tuple(found)) for name, found in members.items()]
    return groups[:limit]
