import pytest

from dpft.evaluation.metrics.meteor_plain import METRIC, meteor_plain, plain_line


def test_punctuation_and_case_stay_and_a_text_cannot_break_its_line():
    line = plain_line("A ||| b,\r\nc\u2028d\x85e", ["X  y.", ""])
    assert line == "SCORE ||| X y. |||  ||| A b, c d e"


def test_it_stands_under_the_key_that_e2es_stands_under():
    assert METRIC.reported_as == "meteor"


def test_the_program_reads_plain_lines(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "dpft.evaluation.metrics.meteor_plain.corpus_score", lambda lines: seen.extend(lines) or 0.5
    )
    assert meteor_plain(["A."], [["B!", "c"]]) == 0.5
    assert seen == ["SCORE ||| B! ||| c ||| A."]
    with pytest.raises(ValueError, match="zip"):
        meteor_plain(["A."], [])
