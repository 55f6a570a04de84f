"""The configuration of ``dpft doctor``."""

from dpft.config.answers import Output
from dpft.config.section import Section


class DoctorConfig(Section):
    """``dpft doctor``, conf/doctor.yaml."""

    output: Output = "table"
    """table for people, or json: one object on stdout."""
