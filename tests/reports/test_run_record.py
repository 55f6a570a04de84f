import json

import pytest

from dpft.errors import StateError
from dpft.reports.privacy_json import read_privacy
from dpft.reports.run_record import read_evaluations, write_metrics
from dpft.run_folder import write_json
from dpft.strict_model import as_json
from tests.reports.test_report import entry, private


@pytest.mark.parametrize("samples", ["text", [1], [{"input": "i", "prediction": "p"}]])
def test_texts_that_are_damaged_are_refused(tmp_path, samples):
    damaged = {**as_json(entry("after", 1.0)), "samples": samples}
    write_json(tmp_path / "metrics.json", {"evaluations": [damaged]})
    with pytest.raises(StateError, match="metrics.json is damaged"):
        read_evaluations(tmp_path)


def test_a_training_stays_one_whatever_key_is_added_to_its_privacy_json(tmp_path):
    """With "mechanism" written into it, it was taken for a tokenizer's and lost its report."""
    write_json(tmp_path / "privacy.json", private() | {"mechanism": "none"})
    with pytest.raises(StateError, match="mechanism: Extra inputs"):
        read_privacy(tmp_path / "privacy.json")
    cut = {name: value for name, value in private().items() if name != "parameters"}
    write_json(tmp_path / "privacy.json", cut)
    with pytest.raises(StateError, match="parameters: Field required"):
        read_privacy(tmp_path / "privacy.json")


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
