"""A byte-level tokenizer small enough to read ids by eye: one token per letter."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dpft.data.sources import read_examples

LETTERS = [*"abcdefghijklmnopqrstuvwxyz<>|ABC", "\n"]


def letter_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per letter and ``<end>`` as end-of-text."""
    vocabulary = {letter: i for i, letter in enumerate([*LETTERS, "<end>", "<start>"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="z"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", **special)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return letter_tokenizer()


def load_with_units(task, split, column):
    """Return the records of a split, and the privacy unit of each."""
    read = [each for each in read_examples(task, split, column) if each.record is not None]
    return [each.record for each in read], [each.unit for each in read]
