import pytest

from dpft.data.collation import TextLayout
from dpft.data.sentences import SentenceEncoding
from dpft.errors import InputError
from dpft.kinds import CLASSES, CLASSIFIER, SCORE
from dpft.tasks.records import LabeledExample
from tests.models.small import blank_words, wordpiece


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
    with pytest.raises(InputError, match=rf"task\.max_length must be at least {least}"):
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


def test_no_records_make_no_rows(bert):
    assert encoding(bert).rows([]) == []
