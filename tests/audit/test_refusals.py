"""Canaries that no audit can read are rejected before epsilon is spent."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from dpft.config.schema import check_suffixes
from dpft.constants import SEQ2SEQ
from dpft.data.batches import TextLayout
from dpft.data.canaries import (
    FEWEST_SUFFIXES,
    MOST_SUFFIXES,
    CanaryConfig,
    check_suffixes_learned,
    make_canaries,
)
from dpft.data.corpus_objectives import (
    CorpusEncoding,
)
from dpft.tasks.corpus import CorpusTask
from dpft.tokenizers import save_tokenizer
from tests.rejections import rejects


@pytest.mark.parametrize(
    ("vocabulary", "suffix_words"), [(FEWEST_SUFFIXES - 1, 1), (MOST_SUFFIXES + 1, 1), (2, 24)]
)
def test_canaries_whose_exposure_cannot_be_computed_are_refused_before_a_run_begins(
    vocabulary: int, suffix_words: int
) -> None:
    config = CanaryConfig(exposure_canaries=1, vocabulary=vocabulary, suffix_words=suffix_words)
    with rejects():
        check_suffixes(config, None)
    check_suffixes(config, "outputs/run")  # such a run, begun before this was checked, goes on


def test_as_few_and_as_many_suffixes_as_can_be_ranked_are_taken() -> None:
    for vocabulary in (FEWEST_SUFFIXES, MOST_SUFFIXES):
        CanaryConfig(exposure_canaries=1, vocabulary=vocabulary, suffix_words=1).check_suffixes()


@pytest.mark.parametrize("span_corruption", [True, False])
def test_canaries_whose_suffix_is_not_learned_as_a_whole_are_refused_before_a_run_begins(
    tmp_path: Path, span_corruption: bool
) -> None:
    """A hidden span, or what follows a beginning, is another part of a text than the suffix."""
    words = ("one", "two", "six", "ten", "red")
    pieces = (("▁", -9.0), *((f"▁{word}", -1.0) for word in words), ("q", -2.0))
    save_tokenizer(tmp_path, pieces, algorithm="unigram", sentinels=40)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    config = CanaryConfig(exposure_canaries=1, vocabulary=3, suffix_words=3)
    encoding = CorpusEncoding(
        tokenizer=tokenizer,
        layout=TextLayout(kind=SEQ2SEQ, pad_token_id=0),
        max_length=64,
        span_corruption=span_corruption,
    )
    canaries = make_canaries(config, tokenizer, bytes(32))
    with rejects():
        check_suffixes_learned(canaries, config, tokenizer, CorpusTask(name="corpus"), encoding)
