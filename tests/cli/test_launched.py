"""Which words of a command its processes get."""

import pytest

from dpft.cli.commands import passed_on


@pytest.mark.parametrize(
    "word",
    ["launch=local", "launch.processes=2", "hydra.run.dir=a", "hydra.mode=MULTIRUN",
     "hydra/launcher=joblib", "hydra.sweeper.params.train.seed=1"],
)  # fmt: skip
def test_what_is_for_the_command_that_starts_processes_is_kept_from_them(word: str) -> None:
    """Else each would start processes of its own, or write to a folder of its own."""
    assert passed_on([word, "task=e2e", "privacy.eps=3"]) == ["task=e2e", "privacy.eps=3"]
