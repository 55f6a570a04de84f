import json
import stat

import pytest
import torch

from dpft.privacy.noise import SignalAndNoise
from dpft.records.configuration import SIGNAL_STEPS
from dpft.training.loop import StepStatistics
from dpft.training.session import Diagnostics, read_signal_to_noise


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


def write(run, *lines):
    """Writes lines of diagnostics: texts as they are, else a step and its signal; noise is 2."""
    (run / "private").mkdir(exist_ok=True)
    for line in lines:
        if isinstance(line, str):
            with (run / "private/diagnostics.jsonl").open("a") as file:
                file.write(line)
            continue
        step, signal = line
        measured = None if signal is None else SignalAndNoise(signal=signal, noise=2.0)
        diagnostics = Diagnostics(run, max_grad_norm=1.0, goes_on=True)
        statistics = StepStatistics(step=step, batch_size=1, signal_and_noise=measured)
        diagnostics.write(statistics, non_finite=0)
        diagnostics.close()


def test_signal_and_noise_stand_beside_a_steps_other_lines(tmp_path):
    write(tmp_path, (1, 3.0))
    line = json.loads((tmp_path / "private/diagnostics.jsonl").read_text())
    assert (line["signal_norm"], line["noise_norm"], line["signal_to_noise"]) == (3.0, 2.0, 1.5)


def test_the_first_updates_ratios_are_read_whatever_stands_around_them(tmp_path):
    later = [(step, None) for step in range(SIGNAL_STEPS + 1, SIGNAL_STEPS + 3)]
    first = [(step, float(step)) for step in range(1, SIGNAL_STEPS + 1)]
    write(tmp_path, '{"num_records": 3}\n', *first, *later)
    assert read_signal_to_noise(tmp_path) == [step / 2 for step, _ in first]


def test_of_a_step_taken_again_the_last_ratio_counts_and_none_of_what_it_undid(tmp_path):
    """Steps 2 to 4 are undone and the second is the last; a torn line is of a step that came."""
    torn = '{"batch_size": 1, "signal_to_no{"num_records": 3}\n'
    write(tmp_path, (1, 2.0), (2, 4.0), (3, 6.0), (4, 8.0), torn, (2, 10.0))
    assert read_signal_to_noise(tmp_path) == [1.0, 5.0]


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ['{"num_records": 3}\n'],
        [(1, None), (2, 4.0)],
        [(1, 2.0), (3, 4.0)],
        [(2, 4.0)],
        ['{"step": 1, "signal_to_noise": "x"}\n'],
        ['{"step": 1, "signal_to_noise": NaN}\n'],
        ["[" * 200_000],
    ],
    ids=["no lines", "no step", "unmeasured", "lost", "begins late", "a word", "no number", "deep"],
)
def test_a_run_of_which_a_first_update_was_not_measured_has_no_ratios(tmp_path, lines):
    write(tmp_path, *lines)
    assert read_signal_to_noise(tmp_path) == []
