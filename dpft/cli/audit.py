"""``dpft audit``: what attacks get out of a run's model, beside what its report promises."""

from dpft.audit.base import POLYMORPHIC, AuditConfig

CONFIG = AuditConfig

__all__ = ["CONFIG", "POLYMORPHIC", "run"]


def run(config: AuditConfig) -> None:
    """Looks at the run, keeps what was found, and prints it."""
    from dpft.audit.command import audit, show

    show(audit(config), config)
