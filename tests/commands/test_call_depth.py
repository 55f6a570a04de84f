"""A run reads from top to bottom: few calls in few files lead from the command to the loop."""

import inspect
from pathlib import Path
from typing import Any

import pytest

import dpft
from dpft.cli.main import main
from dpft.training import loop

PACKAGE = Path(dpft.__file__).parent


class Reached(Exception):
    """The loop was called."""


@pytest.mark.slow
def test_a_command_reaches_the_loop_by_few_calls_in_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames: list[tuple[str, str]] = []

    def train(*_: Any) -> None:
        for frame in inspect.stack()[1:]:
            path = Path(frame.filename)
            if path.is_relative_to(PACKAGE):
                frames.append((str(path.relative_to(PACKAGE)), frame.function))
        raise Reached

    monkeypatch.setattr(loop, "train", train)
    command = ["train", "experiment=demo", "eval.enabled=false"]
    main([*command, "train.steps=1", "train.epochs=null", f"hydra.run.dir={tmp_path / 'run'}"])
    functions = [name for _, name in reversed(frames)] + ["train"]
    files = {file for file, _ in frames} | {"training/loop.py"}
    assert functions[0] == "main" and len(functions) <= 12, functions
    assert len(files) <= 5, files
