"""Values that stand in many records: counts, rates, digests, each with its limits."""

from dataclasses import dataclass
from typing import Annotated, Literal

from dpft.records.form import Limits

Count = Annotated[int, Limits(minimum=0)]
AtLeastOne = Annotated[int, Limits(minimum=1)]
NotNegative = Annotated[float, Limits(minimum=0)]
Positive = Annotated[float, Limits(above=0)]
Probability = Annotated[float, Limits(minimum=0, maximum=1)]
Rate = Annotated[float, Limits(above=0, maximum=1)]
Delta = Annotated[float, Limits(above=0, below=1)]
RunId = Annotated[str, Limits(pattern="[0-9a-f]{32}", words="32 hexadecimal digits")]
Digest = Annotated[str, Limits(pattern="[0-9a-f]{64}", words="64 hexadecimal digits")]
Day = Annotated[str, Limits(pattern=r"\d{4}-\d{2}-\d{2}", words="a day, such as 2026-01-31")]


@dataclass(frozen=True, kw_only=True)
class Versioned:
    """A file, or an answer, that says of which form it is."""

    schema_version: Literal[1] = 1
    """Version of the file's form. A reader refuses another one."""
