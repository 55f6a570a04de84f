import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from dpft.commands import scoring
from dpft.commands.scoring import score_model, write_evaluations
from dpft.evaluation.evaluate import Evaluation
from dpft.evaluation.predictions import Prediction
from tests.config.test_conf import loaded


def evaluation(stage: str, text: str, split: str = "test") -> Evaluation:
    return Evaluation(
        task="e2e",
        split=split,
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


def test_trust_rule_8_texts_stand_in_public_metrics_for_a_public_split_alone(
    tmp_path: Path,
) -> None:
    shown = {"input": "name[A]", "prediction": "y", "reference": "A."}
    for public, samples in ((True, [shown]), (False, None)):
        write_evaluations(tmp_path, [evaluation("after", "y")], public=public)
        (entry,) = json.loads((tmp_path / "metrics.json").read_text())["evaluations"]
        assert entry.get("samples") == samples
    assert evaluation("after", "y").record(public=False).samples is None


@pytest.mark.parametrize("public", [True, False])
def test_trust_rule_8_progress_counts_the_records_of_a_public_split_alone(
    monkeypatch: pytest.MonkeyPatch, public: bool
) -> None:
    asked = []
    monkeypatch.setattr(scoring, "evaluate_parts", lambda *_, **given: [])
    monkeypatch.setattr(
        scoring,
        "batch_progress",
        lambda doing, *, counts, shown: asked.append((doing, counts)) or nullcontext(print),
    )
    config = loaded("train", ["experiment=demo", f"eval.split_is_public={str(public).lower()}"])
    assert config.eval.publish_private_scores is False
    assert score_model(config, None, None, {}) == []
    assert asked == [("evaluating", public)]


PRIVATE = ("private/metrics.json", "private/report.md")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_of_records_that_were_trained_on_there_are_no_samples(tmp_path: Path) -> None:
    write_evaluations(tmp_path, [evaluation("after", "y")], public=False, training=True)
    assert files(tmp_path) == {"metrics.json", *PRIVATE, "private/predictions.jsonl"}


def test_a_split_that_is_public_no_more_leaves_no_public_texts(tmp_path: Path) -> None:
    write_evaluations(tmp_path, [evaluation("after", "y")], public=True)
    write_evaluations(tmp_path, [evaluation("after", "y")], public=False)
    assert files(tmp_path) == {
        "metrics.json", *PRIVATE, "private/predictions.jsonl", "private/samples.md",
    }  # fmt: skip


def test_a_private_split_leaves_the_public_texts_of_another_one(tmp_path: Path) -> None:
    write_evaluations(tmp_path, [evaluation("after", "y")], public=True)
    write_evaluations(tmp_path, [evaluation("after", "y", "validation")], public=False)
    assert {"predictions.jsonl", "samples.md"} <= files(tmp_path)


def test_a_split_scored_in_parts_is_public_no_more_when_scored_alone_or_the_other_way(
    tmp_path: Path,
) -> None:
    both = [evaluation("after", "y", split=split) for split in ("test", "extra")]
    write_evaluations(tmp_path, both, public=True)
    write_evaluations(tmp_path, both[1:], public=False)
    assert files(tmp_path) == {
        "metrics.json", "predictions_test.jsonl", "samples_test.md",
        *PRIVATE, "private/predictions.jsonl", "private/samples.md",
    }  # fmt: skip
    write_evaluations(tmp_path, both[:1], public=True)
    write_evaluations(tmp_path, both, public=False)
    assert not {path for path in files(tmp_path) if path.startswith(("predictions", "samples"))}
