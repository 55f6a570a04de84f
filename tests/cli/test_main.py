import os
import subprocess
import sys

import pytest

import dpft
from dpft.cli.main import SUBCOMMANDS, main


def test_an_unknown_subcommand_names_the_nearest_and_the_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["trian", "privacy.eps=3"]) == 2
    error = capsys.readouterr().err
    assert "'trian'" in error and error.endswith(" Try: dpft train\n")
    assert all(name in error for name in SUBCOMMANDS)


def test_no_arguments_print_the_usage_and_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("usage: dpft ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argument", "begins"), [("--version", f"dpft {dpft.__version__}\n"), ("--help", "usage: dpft")]
)
def test_version_and_help_answer_without_importing_anything_heavy(
    argument: str, begins: str
) -> None:
    heavy = "{'hydra', 'omegaconf', 'torch', 'numpy'}"
    program = (
        "import sys; from dpft.cli.main import main; code = main(sys.argv[1:]);"
        f"assert not {heavy} & set(sys.modules); sys.exit(code)"
    )
    command = [sys.executable, "-c", program, argument]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(begins)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ("train", "eval", "generate", "account", "plan", "report", "doctor"),
)
def test_help_of_every_subcommand_imports_no_heavy_library(name: str) -> None:
    program = (
        "import sys; from dpft.cli.main import main; code = main(sys.argv[1:]);"
        "assert not {'torch', 'transformers', 'scipy'} & set(sys.modules); sys.exit(code)"
    )
    command = [sys.executable, "-c", program, name, "--help"]
    wide = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=wide)
    assert done.stdout.startswith(f"usage: dpft {name} ")
    assert len(done.stdout.splitlines()) <= 80, "two screens"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("dpft pl", "plan "),
        ("dpft train privacy.ep", "privacy.eps="),
        ("dpft plan method=lor", "method=lora"),
    ],
)
def test_a_shell_is_told_how_a_line_may_go_on(
    line: str, answer: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    assert main(["-sc", "query=bash"]) == 0
    assert capfd.readouterr().out.rstrip("\n") == answer


def test_completion_is_installed_for_the_program_itself(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--shell-completion", "install=bash"]) == 0
    assert capfd.readouterr().out.rstrip().endswith("-F hydra_bash_completion dpft")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "way_out"),
    [
        (["train", "train.lr=1"], "train.learning_rate=1"),
        (["plan", "data=DIR"], "task.data_dir=DIR"),
        (["eval", "outputs/x"], "run=outputs/x"),
    ],
)
def test_a_misspelt_key_is_refused_without_importing_torch(
    arguments: list[str], way_out: str
) -> None:
    program = (
        "import sys; from dpft.cli.main import main;"
        f"code = main({arguments!r}); sys.exit(100 if 'torch' in sys.modules else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert way_out in done.stderr
