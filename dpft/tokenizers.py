"""Private tokenizers: count words with a bounded contribution, and train the vocabulary on them.

The method follows Ponomareva et al. 2022, section 3.1. Words are separated by whitespace and not
modified. By default a unit is one record. The first N words of each unit are counted, each at most
m times. The counts are then scaled down to an L2 norm of at most k. These steps depend only on the
unit. N, m and k are in `TokenizerConfig`, the section ``tokenizer`` of ``dpft tokenizer``.

Counts are whole multiples of ``RESOLUTION``, rounded towards zero. Their sums are therefore exact.
Adding or removing a unit changes them by at most k in L2 norm and by at most m in each count,
without any rounding error.

    python -m dpft.tokenizers HISTOGRAM.tsv PIECES.json VOCAB_SIZE ALGORITHM

This command trains the pieces in a separate process, which receives only the released histogram.
Its output is post-processing and costs no privacy. The process uses the identity normalization,
covers every character of the words, and runs in one thread. Equal histograms therefore give equal
pieces.
"""

import io
import json
import math
import os
import re
import subprocess
import sys
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from pydantic import Field

from dpft.config.section import Section
from dpft.errors import InputError, RunError
from dpft.strict_model import AtLeastOne, Count, Positive

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerFast


RESOLUTION = 2.0**-16
BELOW_ONE = 1 - 2.0**-40
"""Factor that compensates for the rounding of a product of floats."""


@dataclass(frozen=True, kw_only=True)
class Caps:
    """Bounds on the contribution of a unit."""

    words: int
    """N, the maximum number of counted words of the unit."""
    l2: float
    """k, the maximum L2 norm of its counts."""
    linf: float
    """m, the maximum of each count."""


@dataclass(frozen=True, kw_only=True)
class WordHistogram:
    """Exact counts of the words of all records; private."""

    words: tuple[str, ...]
    """Distinct words of the records."""
    multiples: "NDArray[np.int64]"
    """The count of each word, in multiples of ``RESOLUTION``."""
    num_units: int

    @property
    def counts(self) -> "NDArray[np.float64]":
        """The count of each word."""
        return self.multiples.astype(float) * RESOLUTION


def bounded_counts(words: Iterable[str], caps: Caps) -> dict[str, int]:
    """Return one unit's contribution to the count of each word, in multiples of ``RESOLUTION``."""
    counts = {
        word: min(count, caps.linf) for word, count in Counter(islice(words, caps.words)).items()
    }
    scale = _scale(counts.values(), caps.l2) / RESOLUTION
    return {word: math.floor(count * scale) for word, count in counts.items()}


def _scale(counts: Collection[float], l2: float) -> float:
    """Return the factor that scales counts to an L2 norm of at most ``l2``."""
    norm = math.sqrt(math.fsum(count * count for count in counts))
    if norm <= l2 * BELOW_ONE:
        return 1.0
    if (
        norm <= l2 / BELOW_ONE
        and sum(Fraction(count) ** 2 for count in counts) <= Fraction(l2) ** 2
    ):
        return 1.0
    return l2 / norm * BELOW_ONE


def count_words(texts: Iterable[tuple[str, str]], caps: Caps, *, by_unit: bool) -> WordHistogram:
    """Return the histogram of the words of all records.

    Args:
        texts: Pairs of the text and the unit of each record; the iterable is read only once.
        caps: Bounds for each unit.
        by_unit: Whether the records of one unit are counted together; if False, each record is a
            unit.
    """
    import numpy as np

    sums: Counter[str] = Counter()
    num_units = 0
    if not by_unit:
        for text, _ in texts:
            num_units += 1
            sums.update(bounded_counts(words_of(text), caps))
    else:
        word_ids: dict[str, int] = {}
        ids_of_units: dict[str, array[int]] = {}
        for text, unit in texts:
            ids = ids_of_units.setdefault(unit, array("q"))
            words = words_of(text)[: caps.words - len(ids)]
            ids.extend(word_ids.setdefault(word, len(word_ids)) for word in words)
        vocabulary = tuple(word_ids)
        num_units = len(ids_of_units)
        for ids in ids_of_units.values():
            sums.update(bounded_counts((vocabulary[word_id] for word_id in ids), caps))
    return WordHistogram(
        words=tuple(sums),
        multiples=np.fromiter(sums.values(), np.int64, len(sums)),
        num_units=num_units,
    )


def words_of(text: str) -> Sequence[str]:
    """Return the words of a text, without NUL and without characters that UTF-8 cannot encode."""
    return text.replace("\x00", " ").encode("utf-8", "ignore").decode("utf-8").split()


UNIGRAM: Final = "unigram"
BPE: Final = "bpe"
CHAR: Final = "char"
FEWEST_PIECES = 2
"""Minimum vocabulary size of unigram and bpe, which need one piece for each character. Even a
one-letter word has two characters: the letter, and the space before the word."""
MOST_PIECES = 2_000_000
"""Maximum vocabulary size. For unigram, SentencePiece considers a million pieces in addition to the
characters. Much larger sizes are impossible, and SentencePiece needs hours to reject them."""
OF_PIECES = ("vocab_size", "algorithm", "sentinels")
"""Keys that only affect how the noisy histogram is used, so they cost no privacy."""


class TokenizerConfig(Section):
    """Settings for counting words and for training the vocabulary; all of them are public."""

    vocab_size: Annotated[int, Field(ge=1, le=MOST_PIECES, examples=[8000])]
    """Number of pieces of the vocabulary. For char, this is the maximum number. Special tokens and
    sentinels are added to this number."""
    algorithm: Literal["unigram", "bpe", "char"] = UNIGRAM
    """unigram, as in T5; bpe; or char, with one piece per character."""
    sentinels: Count = 100
    """Number of T5 sentinels <extra_id_0>, <extra_id_1> and so on, which replace masked spans."""
    words_per_record: AtLeastOne = 256
    """N: maximum number of words that are counted per record, or per unit."""
    l2_cap: Positive = 1.0
    """k: maximum L2 norm of a record's contribution to the counts; larger contributions are scaled
    down."""
    linf_cap: Positive = 1.0
    """m: maximum contribution of a record to the count of one word."""
    noise_std: Positive | None = Field(default=None, examples=[20.0])
    """Standard deviation of the noise on each count; use it instead of privacy.eps."""

    def _check_fields(self) -> None:
        if self.algorithm != CHAR and self.vocab_size < FEWEST_PIECES:
            raise InputError(
                f"tokenizer.vocab_size must be at least {FEWEST_PIECES}, got {self.vocab_size}.",
                key="tokenizer.vocab_size",
                value=self.vocab_size,
                hint=f"tokenizer.vocab_size={FEWEST_PIECES}",
            )


UNKNOWN = "<unk>"
TOO_LARGE = re.compile(r"set it to a value <= (\d+)")
TOO_SMALL = re.compile(r"required_chars\. \d+ vs (\d+)")
"""Messages of SentencePiece about impossible vocabulary sizes."""
SECONDS = 24 * 3600


Pieces: TypeAlias = Sequence[tuple[str, float]]
"""A vocabulary without its special tokens: pieces with their scores. A score is a log probability,
or, for bpe, the negative position of the merge."""


class VocabularyError(InputError):
    """Error for a vocabulary size that is too large or too small for the words."""


def train_pieces(histogram: Path, out: Path, *, vocab_size: int, algorithm: str) -> Pieces:
    """Return the pieces that a separate process trains on a histogram.

    Raises:
        VocabularyError: The words do not allow so many pieces, or they require more pieces.
        RunError: The process failed for another reason.
    """
    # Pass only the file name, because SentencePiece splits paths at commas.
    arguments = [histogram.name, str(out.resolve()), str(vocab_size), algorithm]
    process = subprocess.run(
        [sys.executable, "-m", "dpft.tokenizers", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=histogram.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    if process.returncode != 0:
        raise _failure(process.stderr, vocab_size)
    pieces = json.loads(out.read_text(encoding="utf-8"))
    return [(str(piece), float(score)) for piece, score in pieces]


def _failure(stderr: str, vocab_size: int) -> Exception:
    """Return the error for a message of SentencePiece."""
    most, least = TOO_LARGE.search(stderr), TOO_SMALL.search(stderr)
    if most is not None:
        return VocabularyError(
            f"tokenizer.vocab_size must be at most {int(most[1]) - 1}, got {vocab_size}",
            key="tokenizer.vocab_size",
            value=vocab_size,
        )
    if least is not None:
        return VocabularyError(
            f"tokenizer.vocab_size must be at least {int(least[1]) - 1}, one for each character,"
            f" got {vocab_size}",
            key="tokenizer.vocab_size",
            value=vocab_size,
        )
    reason = " ".join(stderr.split()[-40:])
    return RunError(f"SentencePiece could not make the vocabulary: {reason}.")


def main(arguments: Sequence[str]) -> None:
    """Train the pieces, and write them with their scores."""
    import sentencepiece

    histogram, out, vocab_size, algorithm = arguments
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        input=histogram,
        input_format="tsv",
        model_writer=model,
        model_type=algorithm,
        vocab_size=int(vocab_size) + 1,  # SentencePiece counts its own <unk>.
        character_coverage=1.0,
        normalization_rule_name="identity",
        unk_id=0,
        pad_id=-1,
        bos_id=-1,
        eos_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [
        (trained.id_to_piece(number), trained.get_score(number))
        for number in range(trained.vocab_size())
        if trained.id_to_piece(number) != UNKNOWN
    ]
    Path(out).write_text(json.dumps(pieces), encoding="utf-8")


PAD, END = "<pad>", "</s>"
SPECIAL = re.compile(f"{PAD}|{END}|{UNKNOWN}|<extra_id_[0-9]+>")
BLANK = "▁"
"""Character in a piece for the space before a word."""


def sentinel_names(count: int) -> list[str]:
    """Return T5's sentinels in the order of their ids, which is the reverse of their numbers."""
    return [f"<extra_id_{number}>" for number in reversed(range(count))]


def is_special(word: str) -> bool:
    """Return whether a word contains the name of a special token, which no piece may contain.

    This includes sentinels of any number, because another vocabulary for the same words may have
    more of them.
    """
    return SPECIAL.search(word) is not None


def save_tokenizer(folder: Path, pieces: Pieces, *, algorithm: str, sentinels: int) -> int:
    """Write the folder of the tokenizer and return its number of tokens.

    The ids are the same as in T5: 0 for padding, 1 for the end of a text, 2 for unknown tokens,
    then the pieces, then the sentinels.
    """
    from transformers import T5Tokenizer

    if algorithm == BPE:
        tokenizer = _bpe_tokenizer(pieces, sentinels)
    else:
        special = [(name, 0.0) for name in (PAD, END, UNKNOWN)]
        last = [(name, 0.0) for name in sentinel_names(sentinels)]
        tokenizer = T5Tokenizer(vocab=[*special, *pieces, *last], extra_ids=sentinels)
    folder.mkdir(exist_ok=True)
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def _bpe_tokenizer(pieces: Pieces, sentinels: int) -> "PreTrainedTokenizerFast":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import generate_merges

    names = [PAD, END, UNKNOWN, *(piece for piece, _ in pieces)]
    vocabulary = {name: number for number, name in enumerate(names)}
    scores = dict(pieces)
    merges = generate_merges({piece: vocabulary[piece] for piece in scores}, scores)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(BLANK, "always", split=True)]
    )
    tokenizer.decoder = decoders.Metaspace(BLANK, "always", split=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["$A", END], pair=["$A", END, "$B", END], special_tokens=[(END, vocabulary[END])]
    )
    tokenizer.add_special_tokens(sentinel_names(sentinels))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=sentinel_names(sentinels),
        model_input_names=["input_ids", "attention_mask"],
    )


if __name__ == "__main__":
    main(sys.argv[1:])
