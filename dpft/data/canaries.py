"""Canaries: random records that are inserted into the training records, for audits.

`CanaryConfig` is the section ``audit`` of ``dpft train``. In an audit in one run (Steinke, Nasr and
Jagielski 2023), a separate secret coin decides whether each canary is included. The canaries of the
secret sharer (Carlini et al. 2019; Li et al. 2022, Appendix M) are repeated a number of times, or
excluded for comparison. SHAKE-256 derives words and coins from one secret key. Knowledge of all
canaries and of any number of coins therefore reveals nothing about another coin.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dpft.config.section import Section
from dpft.errors import InputError
from dpft.run_folder import CANARIES
from dpft.strict_model import (
    AtLeastOne,
    Count,
    StrictModel,
    Versioned,
    json_text,
    merge_models,
    read_model,
)
from dpft.tasks.base import Example, LabeledImage, Record, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from dpft.data.encoding import Encoding


FEWEST_SUFFIXES, MOST_SUFFIXES = 20, 10**7
"""Minimum and maximum number of possible suffixes: ``audit=exposure`` fits a distribution to at
least 20 suffixes, and ranks a suffix among at most 10^7."""


class CanaryConfig(Section):
    """Artificial records for ``dpft audit``, which measures how much a model retains of records."""

    canaries: Count = 0
    """Number of canaries for audit=one_run. A secret coin decides whether each canary is inserted;
    all of them count in the number of examples."""
    outnumber: bool = False
    """Allow more canaries than examples, in a run that is only for its audit."""
    canary_words: Annotated[int, Field(ge=2)] = 16
    """Number of words of each canary, drawn from the tokenizer's vocabulary. Half of the words are
    input, the other half are learned."""
    white_box: bool = False
    """Compare each step's noisy gradient with the gradient of every canary, for a stronger
    audit=one_run. Each step needs another pass over the canaries, and the method must train the
    embeddings."""
    exposure_canaries: Count = 0
    """Number of canaries for audit=exposure, for each number of repetitions. The same number of
    canaries is not inserted, for comparison."""
    repetitions: tuple[AtLeastOne, ...] = (1, 10, 100)
    """Numbers of copies of an exposure canary among the records. With privacy.unit, all copies
    belong to one unit."""
    vocabulary: Annotated[int, Field(ge=2)] = 10
    """Size of the vocabulary of exposure canaries, which audit.seed selects."""
    suffix_words: AtLeastOne = 5
    """Number of words of each exposure canary that the audit tries to extract."""
    seed: Count = 0
    """Public seed that selects the vocabulary of exposure canaries."""

    def _check_fields(self) -> None:
        if not self.repetitions or len(set(self.repetitions)) < len(self.repetitions):
            raise InputError(
                f"audit.repetitions must be different numbers, got {list(self.repetitions)}.",
                key="audit.repetitions",
                value=list(self.repetitions),
            )
        if self.white_box and not self.canaries:
            raise InputError(
                "audit.white_box=true needs audit.canaries, got 0.",
                key="audit.canaries",
                value=0,
                hint="audit.canaries=1000",
            )

    @property
    def wanted(self) -> bool:
        """Whether the configuration asks for any canaries."""
        return bool(self.canaries or self.exposure_canaries)

    def check_suffixes(self) -> None:
        """Reject canaries if ``audit=exposure`` could not compute their exposure.

        Raises:
            InputError: There are too few suffixes to fit a distribution, or too many to rank.
        """
        suffixes = self.vocabulary**self.suffix_words
        if self.exposure_canaries and not FEWEST_SUFFIXES <= suffixes <= MOST_SUFFIXES:
            raise InputError(
                f"audit=exposure ranks all audit.vocabulary ** audit.suffix_words suffixes, which"
                f" must be {FEWEST_SUFFIXES} to {MOST_SUFFIXES:.0e}, got {self.vocabulary} **"
                f" {self.suffix_words}.",
                key="audit.vocabulary",
                value=self.vocabulary,
                hint="audit.vocabulary=10 audit.suffix_words=5",
            )

    def added(self, *, units: bool) -> int:
        """Return the number of examples, or of units, that canaries add to the public number.

        Every canary with a coin counts, whether or not it is inserted. The number therefore reveals
        no coin.
        """
        copies = len(self.repetitions) if units else sum(self.repetitions)
        return self.canaries + self.exposure_canaries * copies

    def count(self, num_examples: int, *, units: bool) -> int:
        """Return ``added`` after comparing it with the number of examples, or of units.

        Raises:
            InputError: There would be more canaries than examples.
        """
        count = self.added(units=units)
        if count > num_examples and not self.outnumber:
            raise InputError(
                f"canaries and their copies must not outnumber the examples ({num_examples}), got"
                f" {count}. Lower audit.canaries or audit.exposure_canaries, or allow this in a run"
                " that is only for its audit.",
                key="audit.canaries",
                value=count,
                hint="audit.outnumber=true",
            )
        return count


COIN, EXPOSURE = "coin", "exposure"
READ_WORDS = 3
"""Number of input words of a secret-sharer canary: the name, type and area of E2E."""
SHORTEST_WORD = 2


class Canary(StrictModel):
    """One canary. The canary, and whether it was trained on, are private."""

    kind: str
    """``COIN`` for a canary with a coin, or ``EXPOSURE``."""
    read: tuple[str, ...]
    """Words of the model's input."""
    learned: tuple[str, ...]
    """Words that the model learns, or would learn if the canary was inserted."""
    number: int
    """Number that selects the label, if the task has labels."""
    copies: Count
    """Number of copies among the training records."""
    unit: str
    """Privacy unit of all copies, which no record of a user has."""

    @property
    def included(self) -> bool:
        """Whether the canary was trained on."""
        return self.copies > 0

    def record(self, task: Task) -> Record:
        """Return the canary as a record of the task."""
        return task.canary(self.read, self.learned, number=self.number)


def whole_words(tokenizer: "PreTrainedTokenizerBase", *, first: bool = True) -> list[str]:
    """Return the sorted words of a vocabulary that are one token each after a blank.

    If ``first``, a word must also be one token at the beginning of a text.
    """
    ids = range(len(tokenizer))
    texts = sorted({_text(tokenizer, [one]) for one in ids})
    words = [text for text in texts if text.isascii() and text.isalpha() and text.islower()]
    words = [word for word in words if len(word) >= SHORTEST_WORD]
    if not words:
        return []
    alone = tokenizer(words, add_special_tokens=False)["input_ids"]
    later = tokenizer([f"{words[0]} {word}" for word in words], add_special_tokens=False)
    start = len(alone[0])
    return [
        word
        for word, word_ids, after in zip(words, alone, later["input_ids"], strict=True)
        if len(after) == start + 1
        and _text(tokenizer, after[start:]) == word
        and (len(word_ids) == 1 or not first)
    ]


def make_canaries(
    config: CanaryConfig, tokenizer: "PreTrainedTokenizerBase", key: bytes
) -> list[Canary]:
    """Return a run's canaries, including canaries that are not inserted.

    Raises:
        InputError: Too few words of the tokenizer are one token each and survive a round trip.
    """
    if not config.wanted:
        return []
    words = whole_words(tokenizer)
    if len(words) < config.vocabulary:
        raise InputError(
            f"canaries need {config.vocabulary} words that the tokenizer encodes as one token and"
            f" decodes unchanged, but it has only {len(words)}. Choose another model, or a lower"
            " audit.vocabulary.",
            key="audit.vocabulary",
            value=config.vocabulary,
        )
    more = whole_words(tokenizer, first=False) if config.canaries else words
    return [*_with_coins(config, more, key), *_for_exposure(config, words, key)]


def vocabulary(config: CanaryConfig, words: Sequence[str]) -> list[str]:
    """Return the public words of secret-sharer canaries, drawn without replacement."""
    import numpy as np  # not needed to read the configuration in this module

    generator = np.random.default_rng(config.seed)
    places = generator.choice(len(words), size=config.vocabulary, replace=False)
    return [words[place] for place in places]


def copies_of(canaries: Iterable[Canary], task: Task) -> list[tuple[Record, str]]:
    """Return the records that canaries add to the training records, each with its unit."""
    return [(canary.record(task), canary.unit) for canary in canaries for _ in range(canary.copies)]


@dataclass(frozen=True, kw_only=True)
class SuffixTokens:
    """Positions of a canary's suffix words in its row, and the possible tokens there."""

    places: tuple[int, ...]
    """Positions of the suffix words among the labels of a row."""
    ids: tuple[tuple[int, ...], ...]
    """For each position, the token of each word of the sub-vocabulary."""


def suffix_tokens(
    encoding: "Encoding", task: Task, canary: Canary, words: Sequence[str]
) -> SuffixTokens:
    """Return the positions of a canary's suffix in its row, and all tokens possible there.

    Raises:
        InputError: Not every word of a suffix is one learned token at a fixed position.
    """
    length = len(canary.learned)
    rows = encoding.rows(
        [task.canary(canary.read, [word] * length, number=canary.number) for word in words]
    )
    labels = [list(row.labels) for row in rows]
    places = [at for at, tokens in enumerate(zip(*labels, strict=False)) if len(set(tokens)) > 1]
    if encoding.view is not None or len(places) != length or len(set(map(len, labels))) != 1:
        raise InputError(
            "audit.exposure_canaries needs a model that learns each word of a suffix as one token,"
            f" got {len(places)} learned tokens for {length} words with task={task.name}. Choose"
            " another task.objective or model, or add no such canaries.",
            key="audit.exposure_canaries",
            hint="audit.exposure_canaries=0",
        )
    ids = tuple(tuple(int(row[place]) for row in labels) for place in places)
    return SuffixTokens(places=tuple(places), ids=ids)


def check_suffixes_learned(
    canaries: Iterable[Canary],
    config: CanaryConfig,
    tokenizer: "PreTrainedTokenizerBase",
    task: Task,
    encoding: "Encoding",
) -> None:
    """Reject canaries for which ``audit=exposure`` could not search the trained model.

    Raises:
        InputError: See ``suffix_tokens``.
    """
    exposed = [canary for canary in canaries if canary.kind == EXPOSURE]
    words = vocabulary(config, whole_words(tokenizer)) if exposed else []
    for canary in exposed:
        suffix_tokens(encoding, task, canary, words)


def _with_coins(config: CanaryConfig, words: Sequence[str], key: bytes) -> list[Canary]:
    """Return the canaries with coins, with disjoint words if the vocabulary is large enough.

    Training on a canary changes the embeddings of its words. If no other canary has these words,
    the change cannot be confused with the effect of another canary.
    """
    read = config.canary_words // 2
    shuffled = sorted(words, key=lambda word: _stream(key, f"{COIN} order {word}", 16))
    share = min(config.canary_words, max(1, len(words) // max(1, config.canaries)))
    canaries = []
    for number in range(config.canaries):
        places = range(number * share, (number + 1) * share)
        candidate_words = [shuffled[place % len(words)] for place in places]
        drawn = _drawn(key, f"{COIN} words {number}", candidate_words, config.canary_words)
        canaries.append(
            Canary(
                kind=COIN,
                read=tuple(drawn[:read]),
                learned=tuple(drawn[read:]),
                number=_number(key, f"{COIN} label {number}"),
                copies=_number(key, f"{COIN} {number}") % 2,
                unit=_unit(key, f"{COIN} unit {number}"),
            )
        )
    return canaries


def _for_exposure(config: CanaryConfig, words: Sequence[str], key: bytes) -> list[Canary]:
    few = vocabulary(config, words)
    canaries = []
    for copies in (0, *config.repetitions):
        for number in range(config.exposure_canaries):
            label = f"{EXPOSURE} {copies} {number}"
            drawn = _drawn(key, label, few, READ_WORDS + config.suffix_words)
            canaries.append(
                Canary(
                    kind=EXPOSURE,
                    read=tuple(drawn[:READ_WORDS]),
                    learned=tuple(drawn[READ_WORDS:]),
                    number=_number(key, f"{label} label"),
                    copies=copies,
                    unit=_unit(key, f"{label} unit"),
                )
            )
    return canaries


def _drawn(key: bytes, label: str, words: Sequence[str], count: int) -> list[str]:
    """Return words drawn independently and uniformly.

    Each word is selected by a 64-bit number, so the probabilities of two words differ by less than
    1e-14.
    """
    stream = _stream(key, label, 8 * count)
    places = (int.from_bytes(stream[at : at + 8], "big") for at in range(0, len(stream), 8))
    return [words[place % len(words)] for place in places]


def _number(key: bytes, label: str) -> int:
    return int.from_bytes(_stream(key, label, 8), "big")


def _unit(key: bytes, label: str) -> str:
    return "canary " + _stream(key, label, 16).hex()


def _stream(key: bytes, label: str, size: int) -> bytes:
    return hashlib.shake_256(b"dpft canary\n" + key + label.encode()).digest(size)


def _text(tokenizer: "PreTrainedTokenizerBase", ids: list[int]) -> str:
    return str(tokenizer.decode(ids)).strip()


class KeptCanary(Canary):
    """A canary with its texts, as it is stored."""

    texts: tuple[str, ...]
    """Texts that a reader can search for."""


class KeptCanaries(Versioned):
    """All canaries of a run."""

    canaries: tuple[KeptCanary, ...]
    """All canaries, whether or not they were inserted."""


def canaries_text(canaries: Sequence[Canary], task: Task) -> str:
    """Return the content of a run's canary file, with texts that a reader can search for."""
    kept = tuple(
        merge_models(KeptCanary, canary, texts=_texts(canary.record(task))) for canary in canaries
    )
    return json_text(KeptCanaries(canaries=kept)) + "\n"


def read_canaries(folder: Path) -> list[Canary]:
    """Return a run's canaries, or an empty list if the run has no canaries."""
    path = folder / CANARIES
    if not path.exists():
        return []
    kept = read_model(path, KeptCanaries).canaries
    return [Canary(**canary.model_dump(exclude={"texts"})) for canary in kept]


def _texts(record: Record) -> tuple[str, ...]:
    if isinstance(record, Example):
        return record.prompt, record.target
    assert not isinstance(record, LabeledImage)  # canaries consist of words
    return tuple(record.texts)
