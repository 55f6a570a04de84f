"""The configuration of ``dpft tokenizer``, conf/tokenizer.yaml."""

from dataclasses import dataclass, field

from dpft.config.account import check_output
from dpft.errors import InputError
from dpft.privacy.histogram_config import HistogramPrivacy
from dpft.tasks.base import Task
from dpft.tokenizers.histogram import OF_PIECES, TokenizerConfig


@dataclass(frozen=True, kw_only=True)
class TokenizerCommand:
    """``dpft tokenizer``: a vocabulary of a task's training records, and what it costs."""

    task: Task
    tokenizer: TokenizerConfig
    privacy: HistogramPrivacy = field(default_factory=HistogramPrivacy)
    resume: str | None = None
    """Folder of a tokenizer's run, whose noisy histogram shall give another vocabulary."""
    output: str = "table"
    """table for people, or json: one object on stdout."""

    def __post_init__(self) -> None:
        check_output(self.output)
        if self.task.lacks is not None:
            raise InputError(self.task.lacks)
        given, noise = self.privacy.eps is not None, self.tokenizer.noise_std is not None
        if self.privacy.promises and given == noise:
            raise InputError(
                "exactly one of privacy.eps and tokenizer.noise_std must be given, got"
                f" {'both' if given else 'neither'}. Give privacy.eps=EPSILON, or choose"
                " privacy=none for a vocabulary without privacy."
            )
        if noise and not self.privacy.promises:
            raise InputError(
                "privacy=none makes a vocabulary without noise and has no tokenizer.noise_std, got"
                " both; drop one of the two."
            )


CHANGEABLE = ("resume", "output", *(f"tokenizer.{name}" for name in OF_PIECES))
"""Keys that ``dpft tokenizer resume=RUN`` takes."""
