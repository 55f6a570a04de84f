from pathlib import Path

import pytest

from dpft.reports.doctor import metrics, packages
from dpft.reports.doctor.check import MISSING, OK, WARNING

KEYS = {"metrics.bertscore_model": None, "metrics.bleurt_model": None}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is installed and there is no Java."""
    monkeypatch.setattr(packages, "installed_version", lambda _: None)
    monkeypatch.setattr(packages, "extra_ranges", lambda _: {})
    monkeypatch.setenv("PATH", "")


def put_java(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "java").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "java").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_bare_machine_lacks_every_need_and_each_says_which_metrics_it_costs() -> None:
    checks = {check.what: check for check in metrics.metric_checks(KEYS)}
    assert {check.state for check in checks.values()} == {MISSING}
    assert not any(check.essential for check in checks.values())
    assert {what: check.cost for what, check in checks.items()} == {
        "bert-score": "bertscore stands under not_computed",
        "nltk": "rouge_1, rouge_2 stand under not_computed",
        "pycocoevalcap": "meteor, cider stand under not_computed",
        "rouge-score": "rouge_1, rouge_2 stand under not_computed",
        "Java": "meteor stands under not_computed",
        "metrics.bertscore_model": "bertscore stands under not_computed",
        "metrics.bleurt_model": "bleurt stands under not_computed",
    }
    assert all(check.remedy for check in checks.values())


def test_every_model_of_the_table_has_a_configuration_key() -> None:
    assert {needs.model for needs in metrics.METRICS.values()} - {None} == set(KEYS)


def test_packages_are_held_to_the_extras_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    from packaging.specifiers import SpecifierSet

    monkeypatch.setattr(packages, "installed_version", lambda _: "1.2")
    monkeypatch.setattr(packages, "extra_ranges", lambda _: {"nltk": SpecifierSet(">=3.9")})
    states = {check.what: check.state for check in metrics.metric_checks({})}
    assert (states["nltk"], states["pycocoevalcap"]) == (WARNING, OK)


def test_java_tells_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = "echo Picked up JAVA_TOOL_OPTIONS: -X >&2; echo 'openjdk version \"17.0.15\"' >&2"
    put_java(tmp_path, answer, monkeypatch)
    check = metrics.java_check()
    assert (check.state, check.found) == (OK, 'openjdk version "17.0.15"')


@pytest.mark.parametrize(
    ("script", "found"),
    [("exit 1", "java -version fails"), ("exec sleep 9", "no answer in 0.1 seconds")],
)
def test_a_java_that_fails_or_hangs_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, found: str
) -> None:
    put_java(tmp_path, script, monkeypatch)
    monkeypatch.setattr(metrics, "JAVA_SECONDS", 0.1 if "sleep" in script else 10)
    check = metrics.java_check()
    assert check.state == MISSING and found in check.found
    assert check.cost == "meteor stands under not_computed"


def test_a_model_folder_needs_a_configuration(tmp_path: Path) -> None:
    models = {"metrics.bleurt_model": str(tmp_path)}
    assert metrics.metric_checks(models)[-1].state == MISSING
    (tmp_path / "config.json").write_text("{}")
    check = metrics.metric_checks(models)[-1]
    assert (check.state, check.found) == (OK, str(tmp_path))
