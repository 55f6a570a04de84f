"""The section ``tokenizer`` of ``dpft tokenizer``."""

import math
from dataclasses import dataclass

from dpft.errors import InputError

UNIGRAM, BPE, CHAR = "unigram", "bpe", "char"
ALGORITHMS = (UNIGRAM, BPE, CHAR)
OF_PIECES = ("vocab_size", "algorithm", "sentinels")
"""Keys that only say what is made of the noisy histogram: they cost nothing."""


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How words are counted, and what is made of the counts; all of it is public."""

    vocab_size: int
    """Pieces of the vocabulary, of char at most so many; special tokens and sentinels come on
    top."""
    algorithm: str = UNIGRAM
    """unigram, as T5 has it, bpe, or char: each character is a piece."""
    sentinels: int = 100
    """T5's <extra_id_0>, <extra_id_1> and so on, that stand for what is masked."""
    words_per_record: int = 256
    """N: of a record, or unit, no more words are counted."""
    l2_cap: float = 1.0
    """k: a record moves the counts by at most this, in L2 norm; a longer one's are scaled down."""
    linf_cap: float = 1.0
    """m: a record moves one word's count by at most this."""
    noise_std: float | None = None
    """Standard deviation of the noise on each count, where it is given in place of privacy.eps."""

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise InputError(
                f"tokenizer.algorithm must be one of {', '.join(ALGORITHMS)}, got"
                f" {self.algorithm!r}."
            )
        for name, least in (("vocab_size", 1), ("sentinels", 0), ("words_per_record", 1)):
            value = getattr(self, name)
            if value < least:
                raise InputError(f"tokenizer.{name} must be at least {least}, got {value}.")
        for name in ("l2_cap", "linf_cap", "noise_std"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise InputError(f"tokenizer.{name} must be positive and finite, got {value}.")
