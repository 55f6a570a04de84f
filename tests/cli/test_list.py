"""What there is to choose from, listed."""

import json

import pytest

from dpft.cli.main import main
from dpft.commands.listing import LISTED, listed
from tests.slowness import slow_but


@pytest.mark.slow
@pytest.mark.parametrize("what", slow_but([*LISTED][:2], LISTED))
def test_everything_is_listed_with_a_line(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", what]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(listed(what)) > 5
    assert all(len(line.split(maxsplit=1)) == 2 and "Run:" not in line for line in lines)


@pytest.mark.slow
def test_a_program_reads_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "tasks", "output=json"]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"]["sst2"].startswith("SST-2")


@pytest.mark.slow
@pytest.mark.parametrize("words", [["sheep"], []])
def test_what_cannot_be_listed_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", *words]) == 2
    assert "recipes" in capsys.readouterr().err
