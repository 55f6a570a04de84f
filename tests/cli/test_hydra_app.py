import json
import os
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpft.cli.commands import subcommand
from dpft.cli.main import main
from dpft.config.help_text import composed_command, help_text
from dpft.config.hydra_compose import compose
from dpft.config.load import config_directory
from tests.slowness import slow_but


def files_left() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


@pytest.mark.slow
def test_overrides_reach_the_subcommand_as_models(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake", "privacy.eps=3", "method=lora", "method.rank=2"]) == 0
    assert json.loads(capsys.readouterr().out) == {"eps": 3.0, "name": "lora"}


@pytest.mark.slow
def test_a_failing_job_does_not_stop_its_sweep_and_the_worst_code_is_returned(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["fake", "--multirun", "privacy.eps=3", "outcome=corrupt,crash,done"]
    assert main(arguments) == 3
    assert json.loads(capsys.readouterr().out) == {"eps": 3.0, "name": "full"}


@pytest.mark.slow
def test_flags_may_stand_anywhere_among_the_overrides(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake", "method=full,lora", "--multirun", "privacy.eps=3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["full", "lora"]


@pytest.mark.slow
def test_log_lines_go_to_stderr_and_into_no_file(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake", "privacy.eps=3", "outcome=log"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "INFO: a public line\n")
    assert files_left() == []


@pytest.mark.slow
def test_a_subcommand_without_a_folder_leaves_none(
    fake: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    primary = tmp_path / "conf" / "fake.yaml"
    primary.write_text(primary.read_text().replace("hydra: run_folder", "hydra: no_folder"))
    assert main(["fake", "privacy.eps=3"]) == 0
    assert main(["fake", "privacy.eps=-1"]) == 2
    assert main(["fake", "--multirun", "privacy.eps=3,8"]) == 0
    assert files_left() == []
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.slow
def test_cfg_job_prints_the_composition_and_runs_nothing(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake", "--cfg", "job", "privacy.eps=3"]) == 0
    assert "eps: 3" in capsys.readouterr().out
    assert files_left() == []


@pytest.mark.slow
def test_help_of_a_subcommand_lists_groups_and_keys(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: dpft fake ")
    assert "  method=full*\n  method=lora\n" in text
    assert "  privacy.eps=VALUE " in text and " (float > 0)" in text
    assert "--cfg job" in text


LONG = ("train", "tune", "plan", "eval", "generate", "audit", "tokenizer")


@pytest.mark.parametrize("name", slow_but([], LONG))
def test_help_explains_the_main_keys_and_names_all_sections(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")  # the default width; test workers may have another one
    root = subcommand(name).config
    command = composed_command(name, (), root, folders=[config_directory()])

    def shown(*words: str) -> str:
        return help_text(command, words)

    short, whole = shown(), shown("all")
    assert short.count("\n") < 60
    keys = set(re.findall(r"^  ([\w.]+)=", whole.partition("Configuration (")[2], re.MULTILINE))
    if not root.main_keys:
        assert short == whole
        return
    assert len(root.command_examples) == 3 and len(root.main_keys) <= 10
    for key in root.main_keys:
        assert re.search(rf"^  {re.escape(key)}=", short, re.MULTILINE), key
    named = short.partition("All groups and sections:")[2]
    for key in keys:
        assert "." not in key or re.search(rf"\b{key.partition('.')[0]}\b", named)
        assert re.search(rf"^  {re.escape(key)}=", shown(key), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["tune"], ["train", "tokenizer", "tune", "synthesize"]))
def test_the_examples_of_a_help_can_be_composed(name: str) -> None:
    root = subcommand(name).config
    for example in root.command_examples:
        words = [word for word in shlex.split(example) if not word.startswith("resume=")]
        compose(name, words, root)


@pytest.mark.slow
def test_help_of_an_option_lists_its_own_keys_and_no_others(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake", "--help", "method=lora"]) == 0
    text = capsys.readouterr().out
    assert "method=lora*\n" in text and "method.rank=4 " in text
    assert "privacy" not in text and "usage" not in text


def test_help_of_what_there_is_not_says_what_it_may_have_been(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake", "privacy", "--help", "privcy"]) == 2
    assert "Try: dpft fake --help privacy" in capsys.readouterr().err


@pytest.mark.slow
def test_help_counts_a_configuration_folder_of_the_users_own(
    fake: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "extra" / "method").mkdir(parents=True)
    (tmp_path / "extra" / "method" / "mine.yaml").write_text("# My own. Run: dpft\nname: mine\n")
    own = ["--config-dir", str(tmp_path / "extra"), "method=mine"]
    assert main(["fake", "--help", *own]) == 0
    assert re.search(r"method=mine\* +My own\.\n", capsys.readouterr().out)


@pytest.mark.slow
def test_a_configuration_folder_of_the_users_own_is_searched(
    fake: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "extra" / "method").mkdir(parents=True)
    (tmp_path / "extra" / "method" / "mine.yaml").write_text("name: mine\n")
    own = ["--config-dir", str(tmp_path / "extra"), "method=mine"]
    assert main(["fake", *own, "privacy.eps=3"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "mine"


@pytest.mark.slow
def test_expand_sees_the_overrides_before_hydra_does(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    vars(fake)["expand"] = lambda overrides: [*overrides, "method=lora"]
    assert main(["fake", "privacy.eps=3"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "lora"


def test_trust_rule_11_unpickling_an_earlier_job_is_refused(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake", "--experimental-rerun", "job.pickle"]) == 2
    assert "pickle" in capsys.readouterr().err


@pytest.mark.slow
def test_the_environment_and_the_arguments_are_restored(fake: SimpleNamespace) -> None:
    before = (dict(os.environ), list(sys.argv))
    assert main(["fake", "privacy.eps=3"]) == 0
    assert main(["fake", "privacy.epz=3"]) == 2
    assert (dict(os.environ), list(sys.argv)) == before
