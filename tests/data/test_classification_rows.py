import os
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from dpft.constants import (
    CAUSAL,
    CLASSES,
    CLASSIFIER,
    LABEL_WORDS,
    MASKED,
    SCORE,
    SEQ2SEQ,
)
from dpft.data.batches import TextLayout
from dpft.data.classification_rows import LabelWordEncoding, SentenceEncoding, label_word_ids
from dpft.models.source import EMBEDDED_MODEL
from dpft.tasks.base import LabeledExample
from dpft.tasks.templates import Template
from tests.data.conftest import letter_tokenizer
from tests.models.small import blank_words, wordpiece
from tests.rejections import rejects


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return wordpiece(tmp_path_factory.mktemp("wordpiece"))


def encoding(tokenizer, *, answer=CLASSES, outputs=2, max_length=16) -> SentenceEncoding:
    layout = TextLayout(kind=CLASSIFIER, answer=answer, outputs=outputs, pad_token_id=1)
    return SentenceEncoding(tokenizer=tokenizer, layout=layout, max_length=max_length)


def row(made: SentenceEncoding, *texts: str, label: float = 1.0):
    (found,) = made.rows([LabeledExample(texts=texts, label=label)])
    return found


def tokens(made: SentenceEncoding, found) -> list[str]:
    return made.tokenizer.convert_ids_to_tokens(found.input_ids)


def test_two_sentences_have_the_tokenizers_marks_and_types(bert):
    made = encoding(bert)
    found = row(made, "a film", "the song")
    assert tokens(made, found) == ["[CLS]", "a", "film", "[SEP]", "the", "song", "[SEP]"]
    assert found.token_type_ids == [0, 0, 0, 0, 1, 1, 1]


def test_a_tokenizer_without_marks_gets_two_lines():
    made = encoding(blank_words(closes=False))
    assert row(made, "a film", "the song").input_ids == row(made, "a film\nthe song").input_ids
    assert row(made, "a film").token_type_ids in (None, [0, 0])


@pytest.mark.parametrize("length", range(5, 12))
def test_the_longer_sentence_is_cut_and_the_marks_stay(bert, length):
    made = encoding(bert, max_length=length)
    found = row(made, "long " * 20, "a film")
    assert len(found.input_ids) == len(found.token_type_ids) == length
    assert tokens(made, found).count("[SEP]") == 2
    assert length < 7 or tokens(made, found)[-3:] == ["a", "film", "[SEP]"]


@pytest.mark.parametrize(("length", "truncated"), [(7, False), (6, True)])
def test_a_row_knows_whether_a_sentence_was_cut(bert, length, truncated):
    made = encoding(bert, max_length=length)
    given = [("a film", "the song"), ("a", "song"), ("a film", "the song")]
    rows = made.rows([LabeledExample(texts=texts, label=1.0) for texts in given])
    assert [found.truncated for found in rows] == [truncated, False, truncated]


@pytest.mark.parametrize(("texts", "least"), [(("a",), 3), (("a", "b"), 5)])
def test_a_length_at_which_nothing_would_be_cut_is_refused(bert, texts, least):
    with rejects("task.max_length", least - 1):
        row(encoding(bert, max_length=least - 1), *texts)
    assert len(row(encoding(bert, max_length=least), *texts).input_ids) == least


def test_a_text_that_spells_a_mark_does_not_become_one(bert):
    found = row(encoding(bert), "[SEP] [MASK]")
    assert found.input_ids.count(bert.sep_token_id) == 1
    assert bert.mask_token_id not in found.input_ids


def test_an_empty_text_still_has_a_token_to_be_read_at():
    assert row(encoding(blank_words(closes=False)), "").input_ids == [1]


def test_labels_are_one_hot_or_the_score(bert):
    assert row(encoding(bert, outputs=3), "a", label=2.0).labels == [0.0, 0.0, 1.0]
    assert row(encoding(bert, answer=SCORE), "a", label=3.5).labels == [3.5]


GPT2 = Path(os.environ.get("DPFT_GPT2_DIR", Path(__file__).parents[3] / "shared/models/gpt2"))


def label_words(tokenizer, kind, template, *, texts=1, max_length=32) -> LabelWordEncoding:
    parsed = Template.parse(template, texts=texts)
    return LabelWordEncoding(
        tokenizer=tokenizer,
        layout=TextLayout(kind=kind, answer=LABEL_WORDS, words=(1, 2)),
        max_length=max_length,
        pieces=lambda example: parsed.fill(example.texts),
        distribution=lambda label: (1 - label, label),
    )


def infilled(made: LabelWordEncoding, *texts: str, label: float = 1.0):
    (found,) = made.rows([LabeledExample(texts=texts, label=label)])
    return found


def infilled_tokens(made: LabelWordEncoding, found) -> list[str]:
    return made.tokenizer.convert_ids_to_tokens(found.input_ids)


def test_a_masked_model_reads_the_template_between_its_marks(bert):
    made = label_words(bert, MASKED, "<S1> It was [MASK] .")
    found = infilled(made, "a film")
    assert infilled_tokens(made, found) == [
        "[CLS]",
        "a",
        "film",
        "it",
        "was",
        "[MASK]",
        ".",
        "[SEP]",
    ]
    assert found.answer == 5
    assert found.labels == [0.0, 1.0]


@pytest.mark.parametrize(("kind", "closing"), [(CAUSAL, []), (SEQ2SEQ, ["</s>"])])
def test_other_models_read_what_comes_before_the_answer(kind, closing):
    made = label_words(blank_words(closes=kind == SEQ2SEQ), kind, "<S1> it was [MASK]")
    found = infilled(made, "a film", label=0.25)
    words = ["\u2581a", "\u2581film", "\u2581it", "\u2581was"]
    assert infilled_tokens(made, found) == words + closing
    assert found.labels == [0.75, 0.25]
    assert kind == SEQ2SEQ or found.answer == 3


@pytest.mark.parametrize(("length", "truncated"), [(8, False), (7, True)])
def test_a_row_knows_whether_its_text_was_cut(bert, length, truncated):
    made = label_words(bert, MASKED, "<S1> It was [MASK] .", max_length=length)
    assert infilled(made, "a film").truncated is truncated


@pytest.mark.parametrize("length", range(6, 20))
def test_the_mask_and_the_template_survive_any_cut(bert, length):
    made = label_words(bert, MASKED, "<S1> It was [MASK] .", max_length=length)
    found = infilled(made, "the dull film " * 20)
    assert len(found.input_ids) == length
    assert infilled_tokens(made, found)[-5:] == ["it", "was", "[MASK]", ".", "[SEP]"]
    assert found.answer == length - 3 == found.input_ids.index(bert.mask_token_id)


def test_the_longer_text_gives_way_first(bert):
    made = label_words(bert, MASKED, "<S1> ? [MASK] , <S2>", texts=2, max_length=10)
    found = infilled(made, "long " * 9, "a short film")
    assert infilled_tokens(made, found)[1:-1] == [
        "long", "long", "?", "[MASK]", ",", "a", "short", "film",
    ]  # fmt: skip
    assert found.answer == 4


def test_a_length_without_room_for_the_template_is_refused(bert):
    made = label_words(bert, MASKED, "<S1> It was [MASK] .", max_length=5)
    with rejects("task.max_length"):
        infilled(made, "a film")


def test_a_text_that_spells_the_mask_does_not_become_one(bert):
    made = label_words(bert, MASKED, "<S1> [MASK] , <S2>", texts=2)
    found = infilled(made, "[MASK] film [SEP]", "[CLS]")
    assert found.input_ids.count(bert.mask_token_id) == 1
    assert found.input_ids[found.answer] == bert.mask_token_id
    assert found.input_ids.count(bert.sep_token_id) == 1


def test_the_place_of_the_answer_is_the_templates_even_if_a_text_has_the_masks_token():
    tokenizer = letter_tokenizer(mask_token="z")  # what it does not know is "z", too
    made = label_words(tokenizer, MASKED, "<S1>[MASK]")
    found = infilled(made, "a?b")
    assert found.answer == 3 == len(found.input_ids) - 1


def test_a_record_without_a_token_still_has_a_place_for_the_answer():
    made = label_words(blank_words(closes=False), CAUSAL, "<S1> [MASK]")
    found = infilled(made, "")
    assert (found.input_ids, found.answer) == ([made.layout.pad_token_id], 0)


def test_a_label_word_is_one_token_with_the_blank_before_it(bert):
    assert label_word_ids(["great"], bert, after_blank=True) == (bert.vocab["great"],)
    words = blank_words(closes=True)
    ids = label_word_ids(["Yes", "No"], words, after_blank=True)
    assert words.convert_ids_to_tokens(list(ids)) == ["\u2581Yes", "\u2581No"]


def test_a_byte_level_tokenizer_that_puts_a_blank_before_every_text_has_the_word_with_it():
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    (word,) = label_word_ids(("low",), tokenizer, after_blank=True)
    assert tokenizer.convert_ids_to_tokens([word]) == ["\u0120low"]


def test_a_token_that_lacks_the_blank_does_not_stand_for_the_word():
    with rejects("task.label_words", "a"):
        label_word_ids(["a"], letter_tokenizer(), after_blank=True)
    assert label_word_ids(["a"], letter_tokenizer(), after_blank=False) == (0,)


@pytest.mark.parametrize("word", ["unlikely", "bizarre", "", "Great"])
def test_a_word_that_is_not_one_token_of_its_own_is_refused(bert, word):
    with rejects("task.label_words", word):
        label_word_ids(["great", word], bert, after_blank=True)


@pytest.mark.slow
@pytest.mark.skipif(not GPT2.is_dir(), reason="GPT-2's own tokenizer is not here")
def test_gpt2s_own_tokenizer_has_the_words_with_a_blank_before_them():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(GPT2)
    ids = label_word_ids(["great", "terrible"], tokenizer, after_blank=True)
    assert ids == (1049, 7818)  # vocab.json: "\u0120great", "\u0120terrible"
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    made = label_words(tokenizer, MASKED, "<S1> It was [MASK] .")
    found = infilled(made, "a film <mask>")
    assert found.input_ids.count(tokenizer.mask_token_id) == 1
    assert tokenizer.decode(found.input_ids) == "a film <mask> It was<mask> ."
