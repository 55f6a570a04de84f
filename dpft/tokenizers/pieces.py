"""From words and their counts to the pieces of a vocabulary, by SentencePiece.

    python -m dpft.tokenizers.pieces HISTOGRAM.tsv PIECES.json VOCAB_SIZE ALGORITHM

Run in a process of its own, which is given the released histogram and nothing else: what it makes
is post-processing, and costs nothing. Its normalization is the identity, every character of the
words is covered, and one thread is used, so that equal histograms give equal pieces.
"""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpft.errors import InputError, RunError

UNKNOWN = "<unk>"
TOO_LARGE = re.compile(r"set it to a value <= (\d+)")
TOO_SMALL = re.compile(r"required_chars\. \d+ vs (\d+)")
"""What SentencePiece says of a vocabulary that cannot be."""
SECONDS = 24 * 3600


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """A vocabulary without its special tokens."""

    pieces: tuple[tuple[str, float], ...]
    """Each with its score: a log probability, or of bpe minus the place of its merge."""


class VocabularyError(InputError):
    """A number of pieces that the words do not allow."""


def train_pieces(histogram: Path, out: Path, *, vocab_size: int, algorithm: str) -> Pieces:
    """Returns the pieces that a process of its own makes of a histogram.

    Args:
        histogram: A word, a tab and its count in each line.
        out: Where the process leaves the pieces.
        vocab_size: How many there shall be.
        algorithm: unigram, bpe or char.

    Raises:
        VocabularyError: The words do not allow so many, or ask for more.
        RunError: The process failed otherwise.
    """
    # SentencePiece would take a path with a comma as several: it is given the name alone.
    words = [histogram.name, str(out.resolve()), str(vocab_size), algorithm]
    done = subprocess.run(
        [sys.executable, "-m", "dpft.tokenizers.pieces", *words],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=histogram.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    if done.returncode != 0:
        raise _refusal(done.stderr, vocab_size)
    found = json.loads(out.read_text(encoding="utf-8"))
    return Pieces(pieces=tuple((str(piece), float(score)) for piece, score in found))


def _refusal(said: str, vocab_size: int) -> Exception:
    most, least = TOO_LARGE.search(said), TOO_SMALL.search(said)
    if most is not None:
        return VocabularyError(
            f"tokenizer.vocab_size must be at most {int(most[1]) - 1}, got {vocab_size}"
        )
    if least is not None:
        return VocabularyError(
            f"tokenizer.vocab_size must be at least {int(least[1]) - 1}, one for each character,"
            f" got {vocab_size}"
        )
    reason = " ".join(said.split()[-40:])
    return RunError(f"the pieces of the vocabulary could not be made: {reason}.")


def main(arguments: Sequence[str]) -> None:
    """Trains, and writes the pieces with their scores."""
    import sentencepiece

    histogram, out, vocab_size, algorithm = arguments
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        input=histogram,
        input_format="tsv",
        model_writer=model,
        model_type=algorithm,
        vocab_size=int(vocab_size) + 1,  # its own <unk> is counted
        character_coverage=1.0,
        normalization_rule_name="identity",
        unk_id=0,
        pad_id=-1,
        bos_id=-1,
        eos_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    made = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    found = [
        (made.id_to_piece(number), made.get_score(number))
        for number in range(made.vocab_size())
        if made.id_to_piece(number) != UNKNOWN
    ]
    Path(out).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
