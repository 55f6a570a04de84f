import sys

from dpft.evaluation.metrics.base import missing_folder, missing_java, missing_modules


def test_what_is_there_is_not_missing(tmp_path, monkeypatch):
    (tmp_path / "java").write_text("#!/bin/sh\n")
    (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing_java() is None
    assert missing_modules("json", "math") is None
    assert missing_folder("metrics.x", str(tmp_path), "y") is None


def test_a_reason_says_how_to_get_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "json", None)
    assert missing_java() == "needs Java; install a Java runtime (8 or newer)"
    assert missing_modules("json") == "needs the extra: pip install 'dpft[metrics]'"
    assert "set metrics.x=DIR (a download of y, say)" in missing_folder("metrics.x", None, "y")
    assert "metrics.x=none is none" in missing_folder("metrics.x", "none", "y")
