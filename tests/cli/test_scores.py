import json
import stat
from pathlib import Path

from dpft.cli.scores import write_evaluations
from dpft.evaluation.evaluate import Evaluation
from dpft.evaluation.predictions import Prediction


def evaluation(stage: str, text: str) -> Evaluation:
    return Evaluation(
        task="e2e",
        split="test",
        examples=1,
        stage=stage,
        metrics={"bleu": 1.0},
        not_computed={},
        predictions=(Prediction(input="name[A]", prediction=text, references=("A.",)),),
    )


def test_public_predictions_are_those_of_the_last_evaluation(tmp_path: Path) -> None:
    write_evaluations(tmp_path, [evaluation("before", "x"), evaluation("after", "y")], public=True)
    assert json.loads((tmp_path / "predictions.jsonl").read_text())["prediction"] == "y"
    entries = json.loads((tmp_path / "metrics.json").read_text())["evaluations"]
    assert [(entry["stage"], entry["split_is_public"]) for entry in entries] == [
        ("before", True),
        ("after", True),
    ]


def test_private_predictions_are_the_owners_alone(tmp_path: Path) -> None:
    write_evaluations(tmp_path, [evaluation("after", "y")], public=False)
    assert not (tmp_path / "predictions.jsonl").exists()
    private = tmp_path / "private"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert stat.S_IMODE((private / "predictions.jsonl").stat().st_mode) == 0o600
    assert "y" not in (tmp_path / "metrics.json").read_text().split()
