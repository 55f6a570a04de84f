"""``dpft plan compute=``: what is refused, what is printed, and what is drawn."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dpft.config.schema import _check_compute
from dpft.errors import InputError
from dpft.privacy.accounting import batch_sizes
from dpft.privacy.mechanisms.banded import BandedConfig
from dpft.privacy.mechanisms.dp_sgd import DPSGDConfig
from dpft.privacy.privacy_config import DifferentialPrivacy, NoPrivacy
from dpft.records.form import as_json, parse
from dpft.records.plans import PlannedCompute
from dpft.reports.plan_table import _compute_lines
from dpft.runs.planned_run import plan_compute
from tests.privacy.accounting.test_batch_sizes import limit_noise
from tests.reports.test_plan_table import private
from tests.training.toy import plan


def privacy(**settings: Any) -> DifferentialPrivacy:
    return DifferentialPrivacy(name="dp", accountant="rdp", **settings)


@pytest.fixture(scope="module")
def planned(tmp_path_factory) -> tuple[PlannedCompute, str]:
    to = tmp_path_factory.mktemp("plot") / "ratio.svg"
    config: Any = SimpleNamespace(privacy=privacy(eps=3.0), compute=1_200.0, to=str(to))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_sizes, "noise_over_batch_sizes", limit_noise)
        found = plan_compute(config, plan(), tokens_per_example=10, parameters=1000)
    return found, to.read_text()


def test_the_budget_is_priced_as_the_scaling_laws_do(planned) -> None:
    """6 * parameters * tokens; 20 tokens a parameter make 6 * 20 * parameters^2 of them."""
    found, _ = planned
    assert found.flops == 6 * 1000 * 1_200
    assert found.parameters_without_privacy == round((found.flops / 120) ** 0.5) == 245
    assert found.advised in found.divisions
    assert found.divisions[0].expected_batch_size == plan().num_examples
    assert parse(as_json(found), PlannedCompute) == found


def test_the_table_names_the_advice_and_what_it_does_not_rest_on(planned) -> None:
    lines = _compute_lines(replace(private(), compute=planned[0]))
    text = " ".join(" ".join(lines).split())
    assert sum("advised" in line for line in lines if line.strip()[:1].isdigit()) == 1
    assert "1200 tokens, 10 an example, 7.2e+06 FLOPs" in text
    assert "a rule of dpft's" in text and "neither speaks of fine-tuning" in text
    assert "one of 240 (Hoffmann" in text and "outside of what they measured" in text
    # Few units and tokens: the smallest model of the paper's, and its table's edge.
    assert "a model of 4,500,000 to " in text and "lie outside of Table 2" in text
    assert _compute_lines(private()) == []


def test_the_plot_has_three_numbers_of_steps_the_budget_and_the_advice(planned) -> None:
    found, svg = planned
    best = found.advised.steps
    for words in (f"{best:,} steps", f"{best * 4:,} steps", "the budget", "advised"):
        assert words in svg
    assert "noise multiplier / batch size" in svg


@pytest.mark.parametrize(
    ("config", "tokens", "to", "sentence"),
    [
        (privacy(eps=3.0), None, "x.svg", "to needs compute=TOKENS"),
        (privacy(eps=3.0), 1e6, "x.pdf", r"to must be a file named \*.svg or \*.png"),
        (privacy(eps=3.0), 1e6, "none/x.svg", "to must be in a folder that exists"),
        (privacy(eps=3.0), 0.0, None, "compute must be a positive number of tokens, got 0"),
        (privacy(eps=3.0), float("inf"), None, "compute must be a positive number of tokens"),
        (privacy(noise_multiplier=1.0), 1e6, None, "compute needs privacy.eps"),
        (NoPrivacy(name="none"), 1e6, None, "compute needs privacy.eps"),
    ],
)
def test_what_nothing_can_be_said_of_is_refused(config, tokens, to, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        _check_compute(DPSGDConfig(), config, tokens, to)


def test_without_a_budget_nothing_is_asked() -> None:
    _check_compute(BandedConfig(), NoPrivacy(name="none"), None, None)


def test_divisions_are_of_independent_noise() -> None:
    with pytest.raises(InputError, match="compute needs mechanism=dp_sgd, got mechanism=banded"):
        _check_compute(BandedConfig(), privacy(eps=3.0), 1e6, None)
