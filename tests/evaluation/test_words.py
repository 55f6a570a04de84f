"""Scores of texts in many languages: equal to sacrebleu's command line, and by hand."""

import re
import string
import subprocess
import sys
from importlib.util import find_spec
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpft.evaluation.evaluate import compute_metrics
from dpft.evaluation.metrics.base import METRICS, ptb_tokens
from dpft.evaluation.metrics.bleu import bleu, signature
from dpft.evaluation.metrics.chrf import chrf
from dpft.evaluation.metrics.distinct import distinct_1
from dpft.evaluation.metrics.mean_length import mean_length
from dpft.evaluation.metrics.rouge import UnicodeTokenizer, rouge_1, rouge_l
from dpft.evaluation.metrics.token_f1 import token_f1, words
from dpft.evaluation.words import sacrebleu_tokenizer, spaced
from tests.slowness import slow_but

needs_rouge_score = pytest.mark.skipif(
    find_spec("rouge_score") is None, reason="needs the metrics extra"
)
# language: predictions, references
CORPORA = {
    "zh": (
        ["今天天气很好，我们去公园散步吧。", "这家餐厅的菜GPT说很好吃！"],
        ["今天天气真好，我们一起去公园散步。", "这家餐厅的菜非常好吃，GPT也说。"],
    ),
    "ja": (
        ["東京タワーはとても高いです。", "私は昨日、図書館で本を読みました。"],
        ["東京タワーはかなり高い。", "昨日、私は図書館で本を二冊読みました。"],
    ),
    "th": (
        ["วันนี้อากาศดีมาก", "เขาไปตลาดซื้อผลไม้ 3 กิโล"],
        ["วันนี้อากาศดี", "เขาไปตลาดเพื่อซื้อผลไม้ 2 กิโล"],
    ),
    "ko": (
        ["오늘은 날씨가 매우 좋습니다.", "나는 어제 도서관에서 책을 읽었다."],
        ["오늘 날씨가 아주 좋습니다.", "나는 어제 도서관에서 책을 두 권 읽었다."],
    ),
    "ar": (
        ["الطقس جميل جدا اليوم، سنذهب إلى الحديقة.", "قرأت كتابا في المكتبة أمس."],
        ["الطقس جميل اليوم، وسنذهب إلى الحديقة.", "قرأت أمس كتابا في المكتبة."],
    ),
    "ru": (
        ["Сегодня очень хорошая погода, идём в парк.", "Вчера я читал книгу в Библиотеке."],
        ["Сегодня хорошая погода, пойдём в парк.", "Вчера я читал книгу в библиотеке."],
    ),
    "hi": (
        ["आज मौसम बहुत अच्छा है।", "मैंने कल किताब पढ़ी।"],
        ["आज मौसम अच्छा है।", "मैंने कल एक किताब पढ़ी।"],
    ),
    "el": (
        ["Σήμερα ο καιρός είναι πολύ καλός.", "Χθες διάβασα ένα βιβλίο."],
        ["Σήμερα ο καιρός είναι καλός.", "Χθες διάβασα ένα καλό βιβλίο."],
    ),
    "my": (["ဒီနေ့ ရာသီဥတု ကောင်းတယ်"], ["ဒီနေ့ ရာသီဥတု အရမ်းကောင်းတယ်"]),
}


def singly(references):
    return [[text] for text in references]


@pytest.mark.slow
@pytest.mark.parametrize("language", slow_but(["zh"], CORPORA))
def test_bleu_and_chrf_equal_those_of_sacrebleus_command_line(language, tmp_path):
    predictions, references = CORPORA[language]
    (tmp_path / "predictions").write_text("\n".join(predictions) + "\n", encoding="utf-8")
    (tmp_path / "references").write_text("\n".join(references) + "\n", encoding="utf-8")
    options = f"-m bleu chrf -lc -b -w 6 -tok {sacrebleu_tokenizer(language)}"
    command = f"-m sacrebleu references -i predictions {options}".split()
    printed = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout
    values = [
        bleu(predictions, singly(references), language),
        chrf(predictions, singly(references)),
    ]
    assert all(1 < value < 99 for value in values)
    assert re.findall(r"[\d.]+", printed) == [f"{value:.6f}" for value in values]


@pytest.mark.parametrize(
    ("is_set", "language"),
    slow_but(
        [(True, "zh"), (True, "ja"), (True, "ko"), (False, "th")],
        product((True, False), CORPORA),
    ),
)
def test_identical_texts_have_the_best_scores_in_every_language(language, is_set):
    _, texts = CORPORA[language]
    names = ["bleu", "chrf", "rouge_1", "rouge_l", "token_f1"]
    names = [name for name in names if METRICS.named(name).missing(None) is None]
    columns = {"texts": {"predictions": texts, "references": singly(texts)}}
    values, _ = compute_metrics(names, columns, language=language if is_set else None)
    best = {METRICS.named(name).reported_as: 1.0 for name in names}
    assert values == pytest.approx(best | {"bleu": 100.0, "chrf": 100.0})


def test_without_a_language_chinese_texts_score_as_with_sacrebleus_tokenizer():
    predictions, references = CORPORA["zh"]
    assert bleu(predictions, singly(references)) == bleu(predictions, singly(references), "zh")


@needs_rouge_score
@pytest.mark.parametrize(
    ("language", "prediction", "reference", "expected"),
    [
        ("zh", "我爱北京。", "我爱上海！", 2 / 4),  # 我, 爱 of four characters each
        ("th", "กขค", "กขคง", 2 * 3 / 7),  # three characters of three and of four
        ("ja", "タワーで", "タワーに", 3 / 4),
        ("ko", "나는 책을 읽었다", "나는 어제 책을 샀다.", 2 * 2 / 7),  # two words of 3 and of 4
        ("ar", "قرأت كتابا أمس", "قرأت، كتابا", 2 * 2 / 5),
        ("ru", "Идём в парк", "«идём» в лес!", 2 / 3),
        ("hi", "मैंने किताब पढ़ी।", "मैंने किताब ली", 2 / 3),
    ],
)
def test_rouge_compares_words_or_characters(language, prediction, reference, expected):
    assert rouge_1([prediction], [[reference]], language) == pytest.approx(expected)
    assert token_f1([prediction], [[reference]], language) == pytest.approx(expected)


def test_words_of_scripts_without_blanks_are_characters_in_the_other_metrics_too():
    assert rouge_l(["我爱北京"], [["我爱上海"]], "zh") == pytest.approx(1 / 2)
    assert distinct_1(["好好吃。"], [["x"]], "zh") == pytest.approx(2 / 3)
    assert mean_length(["我爱GPT", "ดี"], [["x"], ["x"]]) == pytest.approx((3 + 2) / 2)


def test_articles_of_english_are_words_of_other_languages():
    assert words("an der Tür", "de") == ["an", "der", "tür"]


@pytest.mark.slow
@given(st.text(string.printable))
def test_words_of_ascii_texts_are_those_of_english(text):
    assert ptb_tokens(text) == ptb_tokens(text, "en")
    assert words(text) == words(text, "en")
    assert spaced(text) == text
    if find_spec("rouge_score") is not None:
        from rouge_score.tokenizers import DefaultTokenizer

        assert UnicodeTokenizer(None).tokenize(text) == DefaultTokenizer(True).tokenize(text)


def test_english_metrics_are_not_computed_for_other_languages():
    columns = {"texts": {"predictions": ["好"], "references": [["好"]]}}
    values, reasons = compute_metrics(["meteor", "bleu"], columns, language="zh")
    assert set(values) == {"bleu"}
    assert "English" in reasons["meteor"] and "task.language=zh" in reasons["meteor"]


@pytest.mark.parametrize(("language", "name"), [("ja", "ja-mecab"), ("ko", "ko-mecab")])
def test_mecab_is_used_if_it_is_installed_and_characters_otherwise(
    language, name, monkeypatch, caplog
):
    choose = sacrebleu_tokenizer.__wrapped__
    monkeypatch.setattr("dpft.evaluation.words.find_spec", lambda module: object())
    assert choose(language) == name
    assert caplog.text == ""
    monkeypatch.setattr("dpft.evaluation.words.find_spec", lambda module: None)
    assert choose(language) == "char"
    assert f"pip install 'sacrebleu[{language}]'" in caplog.text


def test_the_signature_names_the_tokenizer():
    assert "|tok:zh|" in signature("zh")
    assert "|tok:13a|" in signature("ru")
    assert "|tok:13a+char|" in signature(None)
    assert "nrefs" not in signature("zh"), "that would be a fact about records"
