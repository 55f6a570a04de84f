import json

import pytest

from dpft.errors import StateError
from dpft.files import write_json
from dpft.records.form import as_json
from dpft.records.promises import COMPUTABLE, read_privacy
from dpft.reports.run_record import read_evaluations, write_metrics
from tests.reports.plain import render
from tests.reports.test_report import CONFIG, entry, private


@pytest.mark.parametrize("samples", ["text", [1], [{"input": "i", "prediction": "p"}]])
def test_texts_that_are_damaged_are_refused(tmp_path, samples):
    damaged = {**as_json(entry("after", 1.0)), "samples": samples}
    write_json(tmp_path / "metrics.json", {"evaluations": [damaged]})
    with pytest.raises(StateError, match="metrics.json is damaged"):
        read_evaluations(tmp_path)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("float32 pseudo-random; not proof against attacks on low-order bits", True),
        ("ChaCha20; normalized sum of four float64 Gaussians, rounded to float32 after", False),
        (private()["noise_source"], False),
    ],
)
def test_trust_rule_4_a_run_of_an_earlier_versions_linear_noise_is_told_to_hold_no_guarantee(
    tmp_path, source, told
):
    """Such a privacy.json is read with a warning, which every report made of it shows."""
    write_json(tmp_path / "privacy.json", private() | {"noise_source": source})
    record = read_privacy(tmp_path / "privacy.json")
    assert (record.warnings[:1] == (COMPUTABLE,)) == told
    assert (COMPUTABLE in render(CONFIG, record, [])) == told


def test_a_training_stays_one_whatever_key_is_added_to_its_privacy_json(tmp_path):
    """With "mechanism" written into it, it was taken for a tokenizer's and lost its report."""
    write_json(tmp_path / "privacy.json", private() | {"mechanism": "none"})
    with pytest.raises(StateError, match="mechanism must be an object"):
        read_privacy(tmp_path / "privacy.json")
    cut = {name: value for name, value in private().items() if name != "total_parameters"}
    write_json(tmp_path / "privacy.json", cut)
    with pytest.raises(StateError, match="total_parameters is missing"):
        read_privacy(tmp_path / "privacy.json")


def test_a_calibration_of_an_earlier_version_is_read_without_its_target(tmp_path):
    """Models that were trained by dpft 0.3.0 are trained on."""
    earlier = private()
    del earlier["calibration"]["target"]
    write_json(tmp_path / "privacy.json", earlier)
    assert read_privacy(tmp_path / "privacy.json").calibration.target is None


def test_trust_rule_8_an_edit_of_metrics_json_brings_no_score_out_of_private(tmp_path):
    """With "digits" written into it, the next evaluation of another split published the scores."""
    write_metrics(tmp_path, [entry("after", 12.345, split="held_out")], public=False)
    path = tmp_path / "metrics.json"
    content = json.loads(path.read_text())
    for shown in content["evaluations"]:
        shown |= {"digits": 2, "metrics": {"bleu": 1.0}}
    path.write_text(json.dumps(content))
    write_metrics(tmp_path, [entry("after", 3.0)], public=True)
    assert "12" not in path.read_text()
    assert "12.345" in (tmp_path / "private/metrics.json").read_text()
