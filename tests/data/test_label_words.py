import os
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from dpft.data.collation import TextLayout
from dpft.data.label_words import LabelWordEncoding, label_word_ids, special_ids
from dpft.errors import InputError
from dpft.kinds import CAUSAL, LABEL_WORDS, MASKED, SEQ2SEQ
from dpft.models.embedded import MODEL_DIRECTORY
from dpft.tasks.records import LabeledExample
from dpft.tasks.templates import Template
from tests.data.conftest import letter_tokenizer
from tests.models.small import blank_words, wordpiece

GPT2 = Path(os.environ.get("DPFT_GPT2_DIR", Path(__file__).parents[3] / "shared/models/gpt2"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return wordpiece(tmp_path_factory.mktemp("wordpiece"))


def encoding(tokenizer, kind, template, *, texts=1, max_length=32) -> LabelWordEncoding:
    parsed = Template.parse(template, texts=texts)
    return LabelWordEncoding(
        tokenizer=tokenizer,
        layout=TextLayout(kind=kind, answer=LABEL_WORDS, words=(1, 2)),
        max_length=max_length,
        pieces=lambda example: parsed.fill(example.texts),
        distribution=lambda label: (1 - label, label),
    )


def row(made: LabelWordEncoding, *texts: str, label: float = 1.0):
    (found,) = made.rows([LabeledExample(texts=texts, label=label)])
    return found


def tokens(made: LabelWordEncoding, found) -> list[str]:
    return made.tokenizer.convert_ids_to_tokens(found.input_ids)


def test_a_masked_model_reads_the_template_between_its_marks(bert):
    made = encoding(bert, MASKED, "<S1> It was [MASK] .")
    found = row(made, "a film")
    assert tokens(made, found) == ["[CLS]", "a", "film", "it", "was", "[MASK]", ".", "[SEP]"]
    assert found.answer == 5
    assert found.labels == [0.0, 1.0]


@pytest.mark.parametrize(("kind", "closing"), [(CAUSAL, []), (SEQ2SEQ, ["</s>"])])
def test_other_models_read_what_comes_before_the_answer(kind, closing):
    made = encoding(blank_words(closes=kind == SEQ2SEQ), kind, "<S1> it was [MASK]")
    found = row(made, "a film", label=0.25)
    words = ["\u2581a", "\u2581film", "\u2581it", "\u2581was"]
    assert tokens(made, found) == words + closing
    assert found.labels == [0.75, 0.25]
    assert kind == SEQ2SEQ or found.answer == 3


@pytest.mark.parametrize(("length", "truncated"), [(8, False), (7, True)])
def test_a_row_knows_whether_its_text_was_cut(bert, length, truncated):
    made = encoding(bert, MASKED, "<S1> It was [MASK] .", max_length=length)
    assert row(made, "a film").truncated is truncated


@pytest.mark.parametrize("length", range(6, 20))
def test_the_mask_and_the_template_survive_any_cut(bert, length):
    made = encoding(bert, MASKED, "<S1> It was [MASK] .", max_length=length)
    found = row(made, "the dull film " * 20)
    assert len(found.input_ids) == length
    assert tokens(made, found)[-5:] == ["it", "was", "[MASK]", ".", "[SEP]"]
    assert found.answer == length - 3 == found.input_ids.index(bert.mask_token_id)


def test_the_longer_text_gives_way_first(bert):
    made = encoding(bert, MASKED, "<S1> ? [MASK] , <S2>", texts=2, max_length=10)
    found = row(made, "long " * 9, "a short film")
    assert tokens(made, found)[1:-1] == [
        "long", "long", "?", "[MASK]", ",", "a", "short", "film",
    ]  # fmt: skip
    assert found.answer == 4


def test_a_length_without_room_for_the_template_is_refused(bert):
    made = encoding(bert, MASKED, "<S1> It was [MASK] .", max_length=5)
    with pytest.raises(InputError, match=r"task\.max_length must leave room .* 4 tokens, got 3"):
        row(made, "a film")


def test_a_text_that_spells_the_mask_does_not_become_one(bert):
    made = encoding(bert, MASKED, "<S1> [MASK] , <S2>", texts=2)
    found = row(made, "[MASK] film [SEP]", "[CLS]")
    assert found.input_ids.count(bert.mask_token_id) == 1
    assert found.input_ids[found.answer] == bert.mask_token_id
    assert found.input_ids.count(bert.sep_token_id) == 1


def test_the_place_of_the_answer_is_the_templates_even_if_a_text_has_the_masks_token():
    tokenizer = letter_tokenizer(mask_token="z")  # what it does not know is "z", too
    made = encoding(tokenizer, MASKED, "<S1>[MASK]")
    found = row(made, "a?b")
    assert found.answer == 3 == len(found.input_ids) - 1


def test_a_record_without_a_token_still_has_a_place_for_the_answer():
    made = encoding(blank_words(closes=False), CAUSAL, "<S1> [MASK]")
    found = row(made, "")
    assert (found.input_ids, found.answer) == ([made.layout.pad_token_id], 0)


def test_rows_keep_the_order_of_the_records(bert):
    made = encoding(bert, MASKED, "<S1> [MASK]")
    texts = ["film", "a song", "film", ""]
    rows = made.rows([LabeledExample(texts=(text,), label=0.0) for text in texts])
    assert [len(each.input_ids) - 3 for each in rows] == [1, 2, 1, 0]
    assert made.rows([]) == []


def test_special_tokens_around_a_text(bert):
    assert special_ids(bert) == ([bert.cls_token_id], [bert.sep_token_id])
    assert special_ids(blank_words(closes=True)) == ([], [1])
    assert special_ids(blank_words(closes=False)) == ([], [])


def test_a_label_word_is_one_token_with_the_blank_before_it(bert):
    assert label_word_ids(["great"], bert, after_blank=True) == (bert.vocab["great"],)
    words = blank_words(closes=True)
    ids = label_word_ids(["Yes", "No"], words, after_blank=True)
    assert words.convert_ids_to_tokens(list(ids)) == ["\u2581Yes", "\u2581No"]


def test_a_byte_level_tokenizer_that_puts_a_blank_before_every_text_has_the_word_with_it():
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIRECTORY)
    (word,) = label_word_ids(("low",), tokenizer, after_blank=True)
    assert tokenizer.convert_ids_to_tokens([word]) == ["\u0120low"]


def test_a_token_that_lacks_the_blank_does_not_stand_for_the_word():
    with pytest.raises(InputError, match=r"got 'a', which is 'z' \+ 'a'"):
        label_word_ids(["a"], letter_tokenizer(), after_blank=True)
    assert label_word_ids(["a"], letter_tokenizer(), after_blank=False) == (0,)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["great", "unlikely"], ["'unlikely'", "'un' + '##likely'"]),
        (["great", "bizarre"], ["'bizarre'", "'[UNK]'"]),
        (["great", ""], ["''", "none"]),
        (["great", "Great"], ["'great' and 'Great'", "share one"]),
    ],
)
def test_a_word_that_is_not_one_token_of_its_own_is_refused_with_its_pieces(bert, words, parts):
    with pytest.raises(InputError) as caught:
        label_word_ids(words, bert, after_blank=True)
    sentence = str(caught.value)
    assert "task.label_words" in sentence
    assert [part for part in parts if part not in sentence] == [], sentence


@pytest.mark.skipif(not GPT2.is_dir(), reason="GPT-2's own tokenizer is not here")
def test_gpt2s_own_tokenizer_has_the_words_with_a_blank_before_them():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(GPT2)
    ids = label_word_ids(["great", "terrible"], tokenizer, after_blank=True)
    assert ids == (1049, 7818)  # vocab.json: "\u0120great", "\u0120terrible"
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    made = encoding(tokenizer, MASKED, "<S1> It was [MASK] .")
    found = row(made, "a film <mask>")
    assert found.input_ids.count(tokenizer.mask_token_id) == 1
    assert tokenizer.decode(found.input_ids) == "a film <mask> It was<mask> ."
