import shutil
import sys
from importlib.util import find_spec

import pytest

from dpft.evaluation.eval_config import MetricsConfig
from dpft.evaluation.metrics.base import METRICS, NotComputed
from dpft.evaluation.metrics.meteor import jar, meteor, meteor_plain, plain_line, score_line

needs_pycocoevalcap = pytest.mark.skipif(
    find_spec("pycocoevalcap") is None, reason="needs the metrics extra"
)
BAD = "a ||| b\r\nc\u2028d\x85e\u0085f\x0bg\x1ch SCORE"


def stand_in(folder, monkeypatch, script):
    (folder / "java").write_text(f"#!{sys.executable}\n{script}")
    (folder / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_text_cannot_break_its_line():
    line = score_line(BAD, [BAD, ""])
    assert len(line.splitlines()) == 1
    assert line.count(" ||| ") == 3
    assert line.startswith("SCORE ||| a | | | b c d e f g h score ||| ")


def test_plain_text_keeps_its_punctuation_and_case_and_cannot_break_its_line():
    line = plain_line("A ||| b,\r\nc\u2028d\x85e", ["X  y.", ""])
    assert line == "SCORE ||| X y. |||  ||| A b, c d e"


def test_meteor_plain_hands_the_program_plain_lines(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "dpft.evaluation.metrics.meteor.corpus_score", lambda lines: seen.extend(lines) or 0.5
    )
    assert meteor_plain(["A."], [["B!", "c"]]) == 0.5
    assert seen == ["SCORE ||| B! ||| c ||| A."]
    with pytest.raises(ValueError, match="zip"):
        meteor_plain(["A."], [])


def test_meteor_plain_stands_under_the_key_that_meteor_stands_under():
    assert METRICS.named("meteor_plain").reported_as == METRICS.named("meteor").reported_as


def test_half_a_surrogate_pair_is_written():
    assert score_line("\ud800 a", ["a"]).encode()


@needs_pycocoevalcap
def test_each_input_is_answered_before_all_of_them_are_scored(tmp_path, monkeypatch):
    # three numbers after EVAL, one an input and the last of the corpus
    stand_in(
        tmp_path,
        monkeypatch,
        """import sys
for line in sys.stdin:
    if line.startswith("SCORE"):
        print(len(line.split("|||")), flush=True)
    else:
        assert line == "EVAL ||| 3 ||| 4\\n", line
        print("0.1", "0.2", "0.25", sep="\\n", flush=True)
""",
    )
    assert meteor(["a", "b"], [["a"], ["b", "c"]]) == 0.25


@needs_pycocoevalcap
@pytest.mark.parametrize("script", ["", "import sys\nfor _ in sys.stdin: print('no', flush=True)"])
def test_a_java_that_breaks_off_is_a_reason_without_texts(tmp_path, monkeypatch, script):
    stand_in(tmp_path, monkeypatch, script)
    with pytest.raises(NotComputed, match="Java could not run METEOR") as error:
        meteor(["Qzxmarker"], [["Qzxmarker"]])
    assert "Qzx" not in str(error.value)


@needs_pycocoevalcap
def test_without_java_or_the_extra_the_metric_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert METRICS.named("meteor").missing(MetricsConfig()).startswith("needs Java")
    stand_in(tmp_path, monkeypatch, "")
    monkeypatch.setitem(sys.modules, "pycocoevalcap.meteor.meteor", None)
    assert "dpft[metrics]" in METRICS.named("meteor").missing(MetricsConfig())


@needs_pycocoevalcap
def test_the_program_comes_with_the_extra():
    assert jar().is_file()


@needs_pycocoevalcap
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")
def test_texts_of_every_kind_are_scored_and_leave_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # an equal text of n words has one chunk: 1 - 0.6 (1/n)^0.2, but METEOR gives 1 where all match
    assert meteor(["a £ café b"], [["A £ café b."]]) == pytest.approx(1)
    assert meteor(["", "..."], [["a b"], ["c"]]) == 0
    assert 0 < meteor([BAD, "x", ""], [["a b c"], ["y"], [""]]) < 1
    assert list(tmp_path.iterdir()) == []
