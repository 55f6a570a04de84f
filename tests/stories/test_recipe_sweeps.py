"""A figure's sweep end to end: ``train --multirun experiment=…``, then ``report``."""

import json
import stat

import pytest

from dpft.reports.pages import digits
from tests.stories.tiny import EVALUATION, TRAINING, make_workspace

AXES = ("train.learning_rate", "train.expected_batch_size")


@pytest.mark.slow
def test_a_sweep_of_a_figure_ends_in_its_heat_map(tmp_path) -> None:
    """The grid of Li et al. 2022, Figure 2, cut to two by two runs of one step."""
    workspace = make_workspace(tmp_path)
    smaller = ("train.learning_rate=1e-3,2e-3", "train.expected_batch_size=4,8")
    outcome = workspace.run(
        "train", "--multirun", "experiment=li2022_figure2", *TRAINING, *smaller, *EVALUATION,
        "train.steps=1", "privacy.noise_multiplier=1", "privacy.self_check=false",
        "hydra.sweep.dir=sweep",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert "; what all of them cost: dpft account runs=sweep\n" in outcome.out
    over = f"over=[{','.join(AXES)}]"
    outcome = workspace.run("report", "runs=sweep", over, "metric=bleu", "to=figure2")
    assert outcome.code == 0, outcome.err
    public, private = (
        tmp_path / "figure2" / name for name in ("report.html", "private/report.html")
    )
    assert "<svg" not in public.read_text()  # Scores of a user's own records are private.
    assert "<svg" in private.read_text() and "split0-0-map" in private.read_text()
    rows = json.loads(workspace.run("report", "runs=sweep", "output=json").out)["runs"]
    assert [tuple(row[key] for key in AXES) for row in rows] == [
        ("0.001", "4"), ("0.001", "8"), ("0.002", "4"), ("0.002", "8")
    ]  # fmt: skip


@pytest.mark.slow
def test_the_sweep_of_figure_3_ends_in_its_private_plot(tmp_path) -> None:
    """Two batch sizes of two steps, each of which was measured."""
    workspace = make_workspace(tmp_path)
    outcome = workspace.run(
        "train", "--multirun", "experiment=li2022_figure3", *TRAINING, *EVALUATION,
        "train.expected_batch_size=4,8", "train.steps=2", "privacy.noise_multiplier=1",
        "privacy.self_check=false", "hydra.sweep.dir=sweep",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    outcome = workspace.run(
        "report", "runs=sweep", "metric=bleu", "to=figure3", "signal_to_noise=true"
    )
    assert outcome.code == 0, outcome.err
    page = tmp_path / "figure3/private/signal_to_noise.html"
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    lines = (tmp_path / "sweep/0/private/diagnostics.jsonl").read_text().splitlines()
    ratios = [entry["signal_to_noise"] for line in lines if "step" in (entry := json.loads(line))]
    assert len(ratios) == 2
    assert f'<td class="n">2</td><td class="n">{digits(sum(ratios) / 2)}</td>' in page.read_text()
