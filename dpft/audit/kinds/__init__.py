"""The audits, one file each; each registers itself in ``dpft.audit.base.AUDITS``."""
