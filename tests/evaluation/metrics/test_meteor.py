import shutil
import sys

import pytest

from dpft.evaluation.metrics.base import NotComputed
from dpft.evaluation.metrics.meteor import METRIC, jar, meteor, score_line
from dpft.evaluation.metrics_config import MetricsConfig

pytest.importorskip("pycocoevalcap", reason="needs the metrics extra")

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


def test_half_a_surrogate_pair_is_written():
    assert score_line("\ud800 a", ["a"]).encode()


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


@pytest.mark.parametrize("script", ["", "import sys\nfor _ in sys.stdin: print('no', flush=True)"])
def test_a_java_that_breaks_off_is_a_reason_without_texts(tmp_path, monkeypatch, script):
    stand_in(tmp_path, monkeypatch, script)
    with pytest.raises(NotComputed, match="Java could not run METEOR") as error:
        meteor(["Qzxmarker"], [["Qzxmarker"]])
    assert "Qzx" not in str(error.value)


def test_without_java_or_the_extra_the_metric_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert METRIC.missing(MetricsConfig()).startswith("needs Java")
    stand_in(tmp_path, monkeypatch, "")
    monkeypatch.setitem(sys.modules, "pycocoevalcap.meteor.meteor", None)
    assert "dpft[metrics]" in METRIC.missing(MetricsConfig())


def test_the_program_comes_with_the_extra():
    assert jar().is_file()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")
def test_texts_of_every_kind_are_scored_and_leave_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # an equal text of n words has one chunk: 1 - 0.6 (1/n)^0.2, but METEOR gives 1 where all match
    assert meteor(["a £ café b"], [["A £ café b."]]) == pytest.approx(1)
    assert meteor(["", "..."], [["a b"], ["c"]]) == 0
    assert 0 < meteor([BAD, "x", ""], [["a b c"], ["y"], [""]]) < 1
    assert list(tmp_path.iterdir()) == []
