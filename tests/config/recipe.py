"""A small configuration of every kind of field, for the tests of how one is read."""

from dataclasses import dataclass, field
from typing import Literal

from dpft.config.load import by_name
from dpft.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Method:
    name: str


@dataclass(frozen=True, kw_only=True)
class Full(Method):
    pass


@dataclass(frozen=True, kw_only=True)
class Named(Method):
    text: str


@dataclass(frozen=True, kw_only=True)
class LoRA(Method):
    rank: int = 4

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InputError(f"method.rank must be at least 1, got {self.rank}.")


@dataclass(frozen=True, kw_only=True)
class Privacy:
    eps: float
    delta: float | None = None
    accountant: Literal["prv", "rdp"] = "prv"
    self_check: bool = True


@dataclass(frozen=True, kw_only=True)
class Root:
    method: Method
    privacy: Privacy
    steps: int | None = None
    path: str | None = None
    labels: tuple[str, ...] = ()
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    urls: dict[str, str] = field(default_factory=dict)


def method_class(name: str) -> type:
    if name not in ("full", "lora"):
        raise InputError(f"method.name must be one of full, lora, got {name!r}.")
    return {"full": Full, "lora": LoRA}[name]


POLYMORPHIC = {"method": by_name(method_class)}
