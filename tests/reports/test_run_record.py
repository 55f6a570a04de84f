import json

import pytest

from dpft.errors import StateError
from dpft.reports.run_record import read_evaluations, write_metrics
from dpft.run_folder import write_json
from dpft.strict_model import as_json
from tests.reports.test_report import entry


def test_texts_that_are_damaged_are_refused(tmp_path):
    damaged = {**as_json(entry("after", 1.0)), "samples": [{"input": "i", "prediction": "p"}]}
    write_json(tmp_path / "metrics.json", {"evaluations": [damaged]})
    with pytest.raises(StateError, match="metrics.json"):
        read_evaluations(tmp_path)


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
