"""Tokenizers from word counts: pieces by SentencePiece, and T5's special tokens.

    python -m dpft.tokenizers.pieces HISTOGRAM.tsv PIECES.json VOCAB_SIZE ALGORITHM

Pieces are made in a process of its own, which is given the released histogram and nothing else:
what it makes is post-processing, and costs nothing. Its normalization is the identity, every
character of the words is covered, and one thread is used, so that equal histograms give equal
pieces.
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
from typing import TYPE_CHECKING

from dpft.errors import InputError, RunError
from dpft.tokenizers.histogram import BPE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


UNKNOWN = "<unk>"
TOO_LARGE = re.compile(r"set it to a value <= (\d+)")
TOO_SMALL = re.compile(r"required_chars\. \d+ vs (\d+)")
"""SentencePiece's messages on impossible sizes of a vocabulary."""
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


PAD, END = "<pad>", "</s>"
SPECIAL = re.compile(f"{PAD}|{END}|{UNKNOWN}|<extra_id_[0-9]+>")
BLANK = "▁"
"""Stands in a piece for the blank before a word."""


def sentinel_names(count: int) -> list[str]:
    """Returns T5's sentinels in the order of their ids, which is the reverse of their numbers."""
    return [f"<extra_id_{number}>" for number in reversed(range(count))]


def is_special(word: str) -> bool:
    """Returns whether a word holds a special token's name, which no piece may spell.

    A sentinel's of any number: another vocabulary of the same words may have more of them.
    """
    return SPECIAL.search(word) is not None


def save_tokenizer(folder: Path, pieces: Pieces, *, algorithm: str, sentinels: int) -> int:
    """Writes the tokenizer's folder and returns how many tokens it has.

    The ids are T5's: 0 pads, 1 ends a text, 2 is unknown, then the pieces, then the sentinels.
    """
    make = _bpe if algorithm == BPE else _unigram
    made = make(pieces, sentinels)
    folder.mkdir(exist_ok=True)
    made.save_pretrained(folder)
    return len(made)


def _unigram(pieces: Pieces, sentinels: int) -> "PreTrainedTokenizerFast":
    from transformers import T5Tokenizer

    special = [(name, 0.0) for name in (PAD, END, UNKNOWN)]
    last = [(name, 0.0) for name in sentinel_names(sentinels)]
    return T5Tokenizer(vocab=[*special, *pieces.pieces, *last], extra_ids=sentinels)


def _bpe(pieces: Pieces, sentinels: int) -> "PreTrainedTokenizerFast":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import generate_merges

    names = [PAD, END, UNKNOWN, *(piece for piece, _ in pieces.pieces)]
    vocabulary = {name: number for number, name in enumerate(names)}
    scores = dict(pieces.pieces)
    merges = generate_merges({piece: vocabulary[piece] for piece in scores}, scores)
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token=UNKNOWN))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(BLANK, "always", split=True)]
    )
    made.decoder = decoders.Metaspace(BLANK, "always", split=True)
    made.post_processor = processors.TemplateProcessing(
        single=["$A", END], pair=["$A", END, "$B", END], special_tokens=[(END, vocabulary[END])]
    )
    made.add_special_tokens(sentinel_names(sentinels))
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=sentinel_names(sentinels),
        model_input_names=["input_ids", "attention_mask"],
    )


if __name__ == "__main__":
    main(sys.argv[1:])
