"""What ``dpft account`` and ``plan`` answer, for people and for programs: a table, and a record."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpft.records.form import json_text


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer in both its forms."""

    table: str
    """Lines of text."""
    record: Any
    """A record of ``dpft.records``, or one that is ready for JSON."""


def show(answer: Answer, output: str) -> None:
    """Prints an answer: ``table`` for people, ``json`` for programs, one object on stdout."""
    if output == "json":
        print(json_text(answer.record))
    else:
        print(answer.table)


class Figures(Mapping[str, Any]):
    """The record of an answer, each of its keys an attribute too: ``figures.noise_multiplier``.

    Examples:
        >>> figures = Figures({"epsilon": 2.99, "epsilons": {"prv": {"upper": 2.99}}})
        >>> figures.epsilon == figures["epsilon"] == figures.epsilons.prv.upper
        True
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._record = dict(record)

    def __getitem__(self, key: str) -> Any:
        return _figures(self._record[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._record)

    def __len__(self) -> int:
        return len(self._record)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._record:
            raise AttributeError(f"there is no {name} here, only {', '.join(self._record)}")
        return self[name]

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._record]

    def __repr__(self) -> str:
        return f"Figures({self._record!r})"


def _figures(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Figures(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_figures(inner) for inner in value]
    return value
