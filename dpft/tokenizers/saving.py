"""From pieces to a tokenizer that ``AutoTokenizer`` loads, with T5's special tokens."""

import re
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, T5Tokenizer
from transformers.convert_slow_tokenizer import generate_merges

from dpft.tokenizers.pieces import Pieces
from dpft.tokenizers.tokenizer_config import BPE

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
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

    Args:
        folder: Made if need be.
        pieces: Of the vocabulary.
        algorithm: By which they were made: unigram, char, whose pieces are letters, or bpe.
        sentinels: How many ``<extra_id_N>`` there are.
    """
    make = _bpe if algorithm == BPE else _unigram
    made = make(pieces, sentinels)
    folder.mkdir(exist_ok=True)
    made.save_pretrained(folder)
    return len(made)


def _unigram(pieces: Pieces, sentinels: int) -> PreTrainedTokenizerFast:
    special = [(name, 0.0) for name in (PAD, END, UNKNOWN)]
    last = [(name, 0.0) for name in sentinel_names(sentinels)]
    return T5Tokenizer(vocab=[*special, *pieces.pieces, *last], extra_ids=sentinels)


def _bpe(pieces: Pieces, sentinels: int) -> PreTrainedTokenizerFast:
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
