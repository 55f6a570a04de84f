import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpft.cli.main import main
from tests.slowness import slow, slow_but, slow_but_every

BAD: list[tuple[list[str], str, str]] = [
    (["privacy.epz=3"], "privacy.epz", "privacy.eps=3"),
    (["privacy.eps=3", "+foo=1"], "foo", "method, outcome, privacy, steps"),
    (["privacy.eps=abc"], "privacy.eps", "Try: privacy.eps=3.0"),
    (["eps=3"], "eps", "privacy.eps=3"),
    (["privacy.eps=3", "method=lora", "method.rnak=1"], "method.rnak", "method.rank=1"),
    (["privacy.eps=3", "mehtod=lora"], "mehtod", "method=lora"),
    (["privacy.eps=nan"], "privacy.eps", "Try: privacy.eps=3.0"),
    (["privacy.eps=-1"], "privacy.eps", "Try: privacy.eps=3.0"),
    ([], "privacy.eps", "Try: privacy.eps=3.0"),
    (["privacy.eps=3", "method=lorra"], "method=lorra", "method=lora"),
]
OTHER_NOTATIONS: list[tuple[list[str], str, str]] = [
    (["privacy.eps", "=", "8"], "'privacy.eps = 8'", "privacy.eps=8"),
    (["privacy.eps=", "8"], "'privacy.eps= 8'", "privacy.eps=8"),
    (["steps=1", "privacy.eps", "=8"], "'privacy.eps =8'", "privacy.eps=8"),
    (["privacy.eps", "="], "'privacy.eps ='", "privacy.eps=VALUE"),
    (["privacy.eps", "8"], "'privacy.eps'", "privacy.eps=8"),
    (["lora"], "'lora'", "method=lora"),
    (["steps"], "'steps'", "steps=VALUE"),
    (["zzz"], "'zzz'", "dpft fake --help"),
    (["--eps", "8"], "'--eps 8'", "privacy.eps=8"),
    (["--privacy.eps=8"], "'--privacy.eps=8'", "privacy.eps=8"),
    (["--steps", "privacy.eps=8"], "'--steps'", "steps=VALUE"),
    (["--zzz", "8"], "'--zzz 8'", "dpft fake --help"),
    (["--cfg"], "--cfg/-c", "dpft fake --help"),
]


@pytest.mark.parametrize(
    ("overrides", "key", "hint", "folder"),
    [
        *((*case, []) for case in BAD[:3]),
        (*BAD[0], ["hydra.run.dir=mine/run"]),
        *slow(*((*case, []) for case in BAD[3:])),
    ],
)
def test_bad_configuration_is_one_sentence_code_2_and_leaves_nothing(
    fake: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
    overrides: list[str],
    key: str,
    hint: str,
    folder: list[str],
) -> None:
    assert main(["fake", *overrides, *folder]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("dpft: error: ") and captured.err.count("\n") == 1
    assert key in captured.err and hint in captured.err
    assert captured.out == ""
    assert list(Path().iterdir()) == []


GROUPS = ["method=null", "method=3", "method=true", "method=[lora]", "+method=null"]


@pytest.mark.parametrize(
    "words", [*([word] for word in GROUPS), ["method=null,lora", "-m"], ["hydra/launcher=null"]]
)
def test_a_group_that_is_given_no_name_is_one_sentence_code_2(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["fake", "privacy.eps=3", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"dpft: error: {words[0]} ")
    assert captured.err.count("\n") == 1 and captured.out == ""
    assert ("full, lora" in captured.err) == ("method" in words[0])


def test_flags_that_exclude_each_other_are_one_sentence_code_2(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake", "--multirun", "privacy.eps=3,8", "--cfg", "job"]) == 2
    error = capsys.readouterr().err
    assert "--multirun, --cfg" in error and error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    slow_but([["hydra.run.dir=file"]], [["hydra.run.dir=file"], ["hydra.sweep.dir=file/x", "-m"]]),
)
def test_a_folder_that_cannot_be_made_is_one_sentence_code_2(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    Path("file").touch()
    assert main(["fake", "privacy.eps=3", *flags]) == 2
    error = capsys.readouterr().err
    assert "folder file" in error and error.count("\n") == 1
    assert "hydra.run.dir=DIR" in error


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "got", "hint"), slow_but_every(5, OTHER_NOTATIONS))
def test_the_notation_of_another_program_is_written_as_ours(
    fake: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    got: str,
    hint: str,
) -> None:
    assert main(["fake", *arguments]) == 2
    error = capsys.readouterr().err
    assert got in error and error.endswith(f" Try: {hint}\n")


@pytest.mark.slow
def test_an_empty_text_is_a_value(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake", "outcome=", "privacy.eps=-1"]) == 2
    assert "privacy.eps" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["method=lora", "method.rnak=1", "steps=few"], "method.rnak"),
        (["method=lorra", "zzz=1"], "method=lorra"),
        (["a=[1", "method=lorra", "steps=few"], "'a=[1'"),
    ],
)
def test_one_argument_that_hydra_cannot_compose_is_reported_at_a_time(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str], arguments: list[str], key: str
) -> None:
    assert main(["fake", *arguments]) == 2
    error = capsys.readouterr().err
    assert key in error and error.count("\n") == 1


@pytest.mark.slow
def test_all_errors_of_the_schema_are_reported_together(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fake", "privacy.eps=-1", "method=lora", "method.rank=x", "steps=few"]) == 2
    lines = capsys.readouterr().err.removeprefix("dpft: error: ").splitlines()
    assert sorted(line.split()[0] for line in lines) == ["method.rank", "privacy.eps", "steps"]


@pytest.mark.slow
def test_a_refused_training_says_all_its_faults_before_torch_is_imported() -> None:
    words = ["task=custom", "train.epochs=-1", "method=lora", "method.rank=0"]
    program = (
        "import sys; from dpft.cli.main import main;"
        f"code = main({['train', *words]!r}); sys.exit(100 if 'torch' in sys.modules else code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    for key in ("method.rank", "privacy.noise_multiplier", "train.epochs"):
        assert key in done.stderr


@pytest.mark.parametrize("argument", slow_but(["a=[1"], ["foo", "a=[1", "privacy.eps=1,2"]))
def test_an_unreadable_argument_is_one_line_with_code_2(
    fake: SimpleNamespace, capsys: pytest.CaptureFixture[str], argument: str
) -> None:
    assert main(["fake", argument]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dpft: error: ") and error.count("\n") == 1
    assert argument in error


@pytest.mark.slow
def test_a_key_the_yaml_leaves_out_is_not_called_unknown(
    fake: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    primary = tmp_path / "conf" / "fake.yaml"
    primary.write_text(primary.read_text().replace("outcome: done\n", ""))
    assert main(["fake", "privacy.eps=3", "outcome=done"]) == 2
    assert "Try: ++outcome=done" in capsys.readouterr().err


@pytest.mark.slow
def test_an_entry_of_an_empty_mapping_is_refused_with_the_way_to_add_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "task=custom", "task.label_words={bad: poor}"]) == 2
    assert "Try: '+task.label_words={NAME: VALUE}'" in capsys.readouterr().err
