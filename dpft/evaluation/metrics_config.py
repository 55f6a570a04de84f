"""What some metrics need beyond texts: models of their own, named by folder, never fetched."""

from dataclasses import dataclass

from dpft.errors import InputError


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """Models that score texts, ``conf/metrics/default.yaml``."""

    bertscore_model: str | None = None
    """Folder of the encoder that BERTScore compares texts by; None: no BERTScore."""
    bertscore_layers: int | None = None
    """Layers of it that are used; null: as many as do best in that model, where that is known."""
    bleurt_model: str | None = None
    """Folder of a BLEURT checkpoint in Hugging Face's form; None: no BLEURT."""

    def __post_init__(self) -> None:
        if self.bertscore_layers is not None and self.bertscore_layers < 1:
            raise InputError(
                "metrics.bertscore_layers must be at least 1, or null for the best known,"
                f" got {self.bertscore_layers}."
            )
