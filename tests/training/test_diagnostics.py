import json
import stat

import pytest
import torch

from dpft.privacy.noise import SignalAndNoise
from dpft.training.diagnostics import Diagnostics
from dpft.training.loop import StepStatistics


def test_a_line_summarises_one_step(tmp_path):
    diagnostics = Diagnostics(tmp_path, max_grad_norm=1.0)
    statistics = StepStatistics(
        step=4,
        batch_size=3,
        losses=[torch.tensor([1.0, 2.0]), torch.tensor([6.0])],
        norms=[torch.tensor([0.5, 2.0]), torch.tensor([3.0])],
    )
    diagnostics.write(statistics, non_finite=1)
    diagnostics.close()
    line = json.loads((tmp_path / "private/diagnostics.jsonl").read_text())
    assert line == {
        "step": 4,
        "batch_size": 3,
        "mean_loss": 3.0,
        "median_gradient_norm": 2.0,
        "clipped_fraction": pytest.approx(2 / 3),
        "non_finite_examples_so_far": 1,
    }
    assert stat.S_IMODE((tmp_path / "private/diagnostics.jsonl").stat().st_mode) == 0o600


def test_an_empty_draw_has_a_size_and_nothing_else(tmp_path):
    diagnostics = Diagnostics(tmp_path, max_grad_norm=1.0)
    diagnostics.write(StepStatistics(step=1, batch_size=0), non_finite=0)
    diagnostics.close()
    line = json.loads((tmp_path / "private/diagnostics.jsonl").read_text())
    assert line == {"step": 1, "batch_size": 0, "non_finite_examples_so_far": 0}


def test_a_line_has_the_steps_signal_and_noise(tmp_path):
    measured = SignalAndNoise(signal=3.0, noise=2.0)
    diagnostics = Diagnostics(tmp_path, max_grad_norm=1.0)
    statistics = StepStatistics(step=1, batch_size=1, signal_and_noise=measured)
    diagnostics.write(statistics, non_finite=0)
    diagnostics.close()
    line = json.loads((tmp_path / "private/diagnostics.jsonl").read_text())
    assert (line["signal_norm"], line["noise_norm"], line["signal_to_noise"]) == (3.0, 2.0, 1.5)
