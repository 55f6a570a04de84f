"""Which canaries a run puts among its training records: the section ``audit`` of ``dpft train``."""

from dataclasses import dataclass

from dpft.errors import InputError

FEWEST_SUFFIXES, MOST_SUFFIXES = 20, 10**7
"""Of how many ``audit=exposure`` can fit a distribution, and rank one among all."""


@dataclass(frozen=True, kw_only=True)
class CanaryConfig:
    """Records that nobody gave, by which ``dpft audit`` tells what a model keeps of its records."""

    canaries: int = 0
    """Canaries that a secret coin each puts among the records, for audit=one_run; all of them count
    in the number of examples."""
    outnumber: bool = False
    """Allow more canaries than there are examples, in a run that is for its audit alone."""
    canary_words: int = 16
    """Words of each, drawn from the tokenizer's vocabulary; half of them are read, half learned."""
    white_box: bool = False
    """Hold each step's noisy gradient against every canary's own, for a stronger audit=one_run;
    each step costs another pass over the canaries, and the method must train the embeddings."""
    exposure_canaries: int = 0
    """Canaries of each number of repetitions, and as many that are left out, for
    audit=exposure."""
    repetitions: tuple[int, ...] = (1, 10, 100)
    """How often each of those is among the records; with privacy.unit all of one are one unit's."""
    vocabulary: int = 10
    """Words from which those are made, chosen by ``seed``."""
    suffix_words: int = 5
    """Words that are to be extracted of each."""
    seed: int = 0
    """Public; chooses the vocabulary."""

    def __post_init__(self) -> None:
        for name in ("canaries", "exposure_canaries", "seed"):
            self._expect(name, 0)
        for name, least in (("canary_words", 2), ("vocabulary", 2), ("suffix_words", 1)):
            self._expect(name, least)
        repetitions = self.repetitions
        if not repetitions or min(repetitions) < 1 or len(set(repetitions)) < len(repetitions):
            raise InputError(
                "audit.repetitions must name different numbers of at least 1, got"
                f" {list(repetitions)}."
            )
        if self.white_box and not self.canaries:
            raise InputError("audit.white_box=true needs audit.canaries, got 0; give a number.")

    def _expect(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value < least:
            raise InputError(f"audit.{name} must be at least {least}, got {value}.")

    @property
    def wanted(self) -> bool:
        """Whether there are any."""
        return bool(self.canaries or self.exposure_canaries)

    def check_suffixes(self) -> None:
        """Refuses canaries whose exposure ``audit=exposure`` could not compute.

        Raises:
            InputError: There are too few suffixes to fit a distribution to, or too many to rank.
        """
        suffixes = self.vocabulary**self.suffix_words
        if self.exposure_canaries and not FEWEST_SUFFIXES <= suffixes <= MOST_SUFFIXES:
            raise InputError(
                f"audit=exposure ranks each of the audit.vocabulary ** audit.suffix_words suffixes,"
                f" which must be {FEWEST_SUFFIXES} to {MOST_SUFFIXES:.0e}, got {self.vocabulary} **"
                f" {self.suffix_words}; 10 ** 5 is usual."
            )

    def count(self, num_examples: int, *, units: bool) -> int:
        """Returns by how much canaries raise the public number of examples, or of units.

        Every canary with a coin counts, whatever its coin says: the number tells of none.

        Args:
            num_examples: The public number without them.
            units: Whether all copies of a canary are one unit's.

        Raises:
            InputError: There would be more of them than of examples.
        """
        copies = len(self.repetitions) if units else sum(self.repetitions)
        count = self.canaries + self.exposure_canaries * copies
        if count > num_examples and not self.outnumber:
            raise InputError(
                f"canaries and their copies must be no more than the examples ({num_examples}), got"
                f" {count}: the model would learn more of canaries than of records; lower"
                " audit.canaries or audit.exposure_canaries, or set audit.outnumber=true in a run"
                " that is for its audit alone."
            )
        return count
