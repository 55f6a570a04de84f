import subprocess
import sys

import pytest

import dpft
from dpft.cli.main import main
from tests.slowness import slow_but


def test_an_unknown_subcommand_names_the_nearest_and_the_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["trian", "privacy.eps=3"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dpft: error: unknown subcommand 'trian'; did you mean train?")
    assert "train, tune, eval, generate, account, export, plan" in error


def test_no_arguments_print_the_usage_and_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("usage: dpft ")


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


@pytest.mark.parametrize(
    "name",
    slow_but(
        ("train", "account"),
        ("train", "eval", "generate", "account", "plan", "report", "doctor"),
    ),
)
def test_help_of_every_subcommand_imports_no_heavy_library(name: str) -> None:
    program = (
        "import sys; from dpft.cli.main import main; code = main(sys.argv[1:]);"
        "assert not {'torch', 'transformers', 'scipy'} & set(sys.modules); sys.exit(code)"
    )
    command = [sys.executable, "-c", program, name, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"usage: dpft {name} ")
