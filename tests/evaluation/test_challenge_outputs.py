"""Published scores on the E2E challenge's outputs; skipped where the files are not at hand."""

import gzip
import json
import os
from pathlib import Path

import pytest

from dpft.evaluation.eval_config import EvalConfig
from dpft.evaluation.evaluate import compute_metrics, group_examples, score_predictions
from dpft.evaluation.metrics.base import TEXTS
from dpft.evaluation.predictions import read_predictions
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


# scores.json: the official scorer (tuetschek/e2e-metrics) on each file
OFFICIAL = {
    "tgen": {"bleu": 0.6593, "nist": 8.6094, "meteor": 0.4483, "rouge_l": 0.6850, "cider": 2.2338},
    "chen": {"bleu": 0.5859, "nist": 5.4383, "meteor": 0.3836, "rouge_l": 0.6714, "cider": 1.5790},
}
EXAMPLE = {"bleu": 0.7203, "nist": 7.8212, "meteor": 0.4801, "rouge_l": 0.7910, "cider": 2.3039}
TOLERANCE = {"bleu": 5e-4, "meteor": 5e-4, "rouge_l": 5e-4, "cider": 5e-3, "nist": 5e-3}
# NIST of the Perl scorer, mteval-v13a-sig.pl
PERL_NIST = {"sheff2": 5.7462, "zhang": 8.1840}
QUICK = ("bleu", "nist", "rouge_l", "cider")


def check(metrics, not_computed, official, names):
    for name in names:
        if "needs" in not_computed.get(name, ""):
            pytest.skip(f"{name} {not_computed[name]}")
        value = metrics[name] / (100 if name == "bleu" else 1)
        assert value == pytest.approx(official[name], abs=TOLERANCE[name]), name


def scored(examples, inputs, system, names):
    texts = read_predictions(OUTPUTS / f"{system}.tsv.gz", inputs, repair=TASK.repair)
    task = TASK.replace(metrics=tuple(names))
    return score_predictions(task, examples, texts, config=EvalConfig())


@pytest.mark.slow
@pytest.mark.parametrize("system", OFFICIAL)
def test_scores_equal_the_official_scorers(examples, inputs, system):
    evaluation = scored(examples, inputs, system, QUICK)
    assert evaluation.examples == 630
    check(evaluation.metrics, evaluation.not_computed, OFFICIAL[system], QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("system", OFFICIAL)
def test_meteor_equals_the_official_scorers(examples, inputs, system):
    evaluation = scored(examples, inputs, system, ["meteor"])
    check(evaluation.metrics, evaluation.not_computed, OFFICIAL[system], ["meteor"])


@pytest.mark.slow
@pytest.mark.parametrize("system", PERL_NIST)
def test_nist_equals_the_perl_scorers(examples, inputs, system):
    evaluation = scored(examples, inputs, system, ["nist"])
    assert evaluation.metrics["nist"] == pytest.approx(PERL_NIST[system], abs=5e-4)


@pytest.mark.parametrize("names", [QUICK, pytest.param(["meteor"], marks=pytest.mark.slow)])
def test_the_scorers_own_example_file_has_its_published_scores(names):
    blocks = (OUTPUTS / "example-references.txt").read_text(encoding="utf-8").strip().split("\n\n")
    references = [block.split("\n") for block in blocks]
    inputs = [str(index) for index in range(len(blocks))]
    texts = read_predictions(OUTPUTS / "example-baseline-output.txt", inputs)
    columns = {TEXTS: {"predictions": texts, "references": references}}
    check(*compute_metrics(names, columns), EXAMPLE, names)


@pytest.mark.slow
def test_every_systems_file_reads(inputs):
    files = sorted(OUTPUTS.glob("*.tsv.gz"))
    assert len(files) == 19
    for path in files:
        texts = read_predictions(path, inputs, repair=TASK.repair)
        assert len(texts) == 630
        assert all(texts)
