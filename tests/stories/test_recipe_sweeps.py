"""A figure's sweep end to end: ``train --multirun experiment=…``, then ``report``."""

import json

import pytest

from tests.stories.tiny import EVALUATION, TRAINING, make_workspace

AXES = ("train.learning_rate", "train.expected_batch_size")


@pytest.mark.slow
def test_a_sweep_of_a_figure_ends_in_its_plot(tmp_path) -> None:
    """The grid of Li et al. 2022, Figure 2, cut to two by two runs of one step."""
    workspace = make_workspace(tmp_path)
    smaller = ("train.learning_rate=1e-3,2e-3", "train.expected_batch_size=4,8")
    outcome = workspace.run(
        "train", "--multirun", "experiment=li2022_figure2", *TRAINING, *smaller, *EVALUATION,
        "train.steps=1", "privacy.noise_multiplier=1",
        "hydra.sweep.dir=sweep",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert " For the total cost, run: dpft account runs=sweep\n" in outcome.out
    report = ("report", "runs=sweep", f"over=[{','.join(AXES)}]")
    refused = workspace.refusal(*report, "metric=bleu")  # Scores of a user's own records.
    assert "private/metrics.json" in refused
    rows = json.loads(workspace.run(*report, "output=json").out)["runs"]
    assert [tuple(row[key] for key in AXES) for row in rows] == [
        (0.001, 4), (0.001, 8), (0.002, 4), (0.002, 8)
    ]  # fmt: skip
    assert workspace.run("eval", "run=sweep/0", "eval.split_is_public=true").code == 0
    outcome = workspace.run(*report, "metric=bleu", "to=plot", "file=figure2.png")
    assert (outcome.code, outcome.err) == (0, "INFO: plot: figure2.png\n")
    assert (tmp_path / "figure2.png").read_bytes().startswith(b"\x89PNG")
