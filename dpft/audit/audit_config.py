"""The configuration of ``dpft audit``, conf/audit.yaml."""

from dataclasses import dataclass, field

from dpft.audit.base import AUDITS, Audit
from dpft.config.account import check_output
from dpft.config.convert import by_name
from dpft.errors import InputError
from dpft.training.training_config import DeviceConfig

POLYMORPHIC = {"audit": by_name(AUDITS.named)}
SYNTHETIC = "synthetic"


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """``dpft audit``, conf/audit.yaml."""

    audit: Audit
    run: str
    """Folder of a run."""
    synthetic: str | None = None
    """File that ``dpft generate`` wrote, for audit=synthetic."""
    output: str = "table"
    """table for people, or json: one object on stdout."""
    train: DeviceConfig = field(default_factory=DeviceConfig)

    def __post_init__(self) -> None:
        check_output(self.output)
        if self.audit.name == SYNTHETIC and self.synthetic is None:
            raise InputError(
                "audit=synthetic needs synthetic=FILE, got none; give what dpft generate wrote."
            )
        if self.audit.name != SYNTHETIC and self.synthetic is not None:
            raise InputError(
                f"synthetic=FILE is for audit=synthetic, got audit={self.audit.name}; drop one."
            )
