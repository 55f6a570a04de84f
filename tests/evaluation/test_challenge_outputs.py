"""Published scores on the E2E challenge's outputs; skipped where the files are not at hand."""

import gzip
import json
import os
from pathlib import Path

import pytest

from dpft.evaluation.evaluate import score_predictions
from dpft.evaluation.groups import group_examples
from dpft.evaluation.metrics.bleu import bleu
from dpft.evaluation.metrics.rouge_l import rouge_l
from dpft.evaluation.predictions import read_predictions
from dpft.evaluation.settings import EvalConfig
from dpft.tasks.e2e import E2ETask

DATA = Path(os.environ.get("DPFT_DATA", Path(__file__).parents[3] / "shared" / "data")) / "e2e"
OUTPUTS = DATA / "challenge_outputs"
TASK = E2ETask(name="e2e")

pytestmark = pytest.mark.skipif(
    not OUTPUTS.is_dir(), reason="needs the E2E challenge's outputs; set DPFT_DATA to their folder"
)


@pytest.fixture(scope="module")
def examples():
    with gzip.open(DATA / "test.jsonl.gz", "rt", encoding="utf-8") as file:
        return [each for line in file for each in TASK.examples(json.loads(line))]


@pytest.fixture(scope="module")
def inputs(examples):
    return [group.input for group in group_examples(examples)]


# official scorer (tuetschek/e2e-metrics); ROUGE-L of the first two stands in its score list
@pytest.mark.parametrize(
    ("system", "expected"),
    [("tgen", (65.93, 0.6850)), ("chen", (58.59, 0.6714))],
)
def test_scores_equal_the_official_scorers(examples, inputs, system, expected):
    texts = read_predictions(OUTPUTS / f"{system}.tsv.gz", inputs, repair=TASK.repair)
    evaluation = score_predictions(TASK, examples, texts, config=EvalConfig())
    assert evaluation.examples == 630
    assert round(evaluation.metrics["bleu"], 2) == expected[0]
    assert evaluation.metrics["rouge_l"] == pytest.approx(expected[1], abs=5e-5)


def test_the_scorers_own_example_file_has_its_published_scores():
    blocks = (OUTPUTS / "example-references.txt").read_text(encoding="utf-8").strip().split("\n\n")
    references = [block.split("\n") for block in blocks]
    names = [str(index) for index in range(len(blocks))]
    texts = read_predictions(OUTPUTS / "example-baseline-output.txt", names)
    assert round(bleu(texts, references), 2) == 72.03
    assert rouge_l(texts, references) == pytest.approx(0.7910, abs=5e-5)


def test_every_systems_file_reads(inputs):
    files = sorted(OUTPUTS.glob("*.tsv.gz"))
    assert len(files) == 19
    for path in files:
        texts = read_predictions(path, inputs, repair=TASK.repair)
        assert len(texts) == 630
        assert all(texts)
