"""The audits that there are, one file each; each registers itself in ``dpft.audit.base.AUDITS``."""
