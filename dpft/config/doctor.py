"""The configuration of ``dpft doctor``, apart from the others so that it imports no torch."""

from dataclasses import dataclass, field

from dpft.config.account import check_output


@dataclass(frozen=True, kw_only=True)
class MetricModels:
    """The folders of the models that metrics read."""

    bertscore_model: str | None = None
    """Folder of BERTScore's model."""
    bleurt_model: str | None = None
    """Folder of BLEURT's model."""


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """``dpft doctor``, conf/doctor.yaml."""

    metrics: MetricModels = field(default_factory=MetricModels)
    output: str = "table"
    """table for people, or json: one object on stdout."""

    def __post_init__(self) -> None:
        check_output(self.output)
