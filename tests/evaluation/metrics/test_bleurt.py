import pytest
import torch
from transformers import BertForSequenceClassification

from dpft.evaluation.eval_config import MetricsConfig
from dpft.evaluation.metrics.base import METRICS
from dpft.evaluation.metrics.bleurt import bleurt
from tests.evaluation.metrics.tiny_encoder import WORDS, save_encoder
from tests.rejections import rejects


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bleurt")
    save_encoder(path, labels=1)
    return path


def score_by_hand(folder, reference, prediction):
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    first = ["[CLS]", *reference.split(), "[SEP]"]
    second = [*prediction.split(), "[SEP]"]
    ids = torch.tensor([[WORDS.index(word) for word in [*first, *second]]])
    types = torch.tensor([[0] * len(first) + [1] * len(second)])
    with torch.no_grad():
        return model(ids, token_type_ids=types).logits.item()


@pytest.mark.slow
def test_the_best_reference_counts_and_is_read_first(folder):
    value = bleurt(
        ["a b", "c"], [["d e", "a b f"], ["f a"]], MetricsConfig(bleurt_model=str(folder))
    )
    first = max(score_by_hand(folder, reference, "a b") for reference in ("d e", "a b f"))
    expected = (first + score_by_hand(folder, "f a", "c")) / 2
    assert value == pytest.approx(expected, abs=1e-5)
    assert score_by_hand(folder, "f a", "c") != pytest.approx(score_by_hand(folder, "c", "f a"))


def test_empty_and_long_texts_are_scored(folder):
    value = bleurt(["", "a " * 40], [["a"], ["b"]], MetricsConfig(bleurt_model=str(folder)))
    assert isinstance(value, float)


def test_a_classifier_of_two_outputs_is_refused(tmp_path):
    save_encoder(tmp_path, labels=2)
    with rejects("metrics.bleurt_model"):
        bleurt(["a"], [["a"]], MetricsConfig(bleurt_model=str(tmp_path)))


def test_a_folder_without_a_model_is_refused(tmp_path):
    with rejects("metrics.bleurt_model"):
        bleurt(["a"], [["a"]], MetricsConfig(bleurt_model=str(tmp_path)))


def test_without_a_folder_the_metric_says_how_to_set_one(folder):
    assert "metrics.bleurt_model=DIR" in METRICS.named("bleurt").missing(MetricsConfig())
    assert METRICS.named("bleurt").missing(MetricsConfig(bleurt_model=str(folder))) is None
