from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from transformers import BertModel, RobertaConfig, RobertaModel, RobertaTokenizer

from dpft.evaluation.eval_config import MetricsConfig
from dpft.evaluation.metrics.base import METRICS
from dpft.evaluation.metrics.bertscore import bertscore, best_layers
from tests.evaluation.metrics.tiny_encoder import WORDS, save_encoder
from tests.rejections import rejects
from tests.slowness import slow_but

# Not imported by each test worker, which takes two thirds of a second.
pytestmark = pytest.mark.skipif(not find_spec("bert_score"), reason="needs the metrics extra")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder whose path holds "t5", by which the library alone takes it for a T5."""
    path = tmp_path_factory.mktemp("t5")
    save_encoder(path)
    return path


def settings(folder, **more):
    return MetricsConfig(bertscore_model=str(folder), **more)


def f1_by_hand(folder, prediction, reference, layers):
    """Zhang et al. 2020, section 3: greedy matches of unit vectors, without [CLS] and [SEP]."""
    model = BertModel.from_pretrained(folder).eval()

    def vectors(text):
        ids = [WORDS.index(word) for word in ["[CLS]", *text.split(), "[SEP]"]]
        with torch.no_grad():
            states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[layers][0]
        return states / states.norm(dim=-1, keepdim=True)

    similarity = vectors(prediction) @ vectors(reference).T
    precision = similarity.max(1).values[1:-1].mean()
    recall = similarity.max(0).values[1:-1].mean()
    return (2 * precision * recall / (precision + recall)).item()


@pytest.mark.slow
@pytest.mark.parametrize("layers", slow_but([2], [1, 2, 3]))
def test_f1_equals_the_greedy_matching_by_hand(folder, layers):
    value = bertscore(["a b c"], [["c d"]], settings(folder, bertscore_layers=layers))
    assert value == pytest.approx(f1_by_hand(folder, "a b c", "c d", layers), abs=1e-5)


@pytest.mark.slow
def test_the_best_reference_counts_and_inputs_count_alike(folder):
    value = bertscore(["a b", "c"], [["d e", "a b"], ["f a"]], settings(folder))
    assert value == pytest.approx((1 + f1_by_hand(folder, "c", "f a", 3)) / 2, abs=1e-5)


def test_empty_texts_score_zero_and_long_ones_are_cut(folder):
    assert bertscore(["", "a"], [["a"], [" "]], settings(folder)) == 0
    assert bertscore(["a " * 40], [["a " * 50]], settings(folder)) == pytest.approx(1)


@pytest.mark.slow
def test_a_roberta_reads_the_first_word_as_it_reads_others(tmp_path):
    letters = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b", "Ġ", "Ġa", "Ġb"]
    vocab = {token: number for number, token in enumerate(letters)}
    merges = [("Ġ", "a"), ("Ġ", "b")]
    RobertaTokenizer(vocab=vocab, merges=merges).save_pretrained(tmp_path)
    config = RobertaConfig(
        vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=12, initializer_range=0.5,
        bos_token_id=0, pad_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = RobertaModel(config).eval()
    model.save_pretrained(tmp_path)

    def vectors(*ids):
        with torch.no_grad():
            states = model(torch.tensor([[0, *ids, 2]])).last_hidden_state[0]
        return states / states.norm(dim=-1, keepdim=True)

    similarity = vectors(8, 9) @ vectors(9).T  # " a", " b" beside " b"
    precision, recall = similarity.max(1).values[1:-1].mean(), similarity.max(0).values[1:-1].mean()
    expected = (2 * precision * recall / (precision + recall)).item()
    assert bertscore(["a b"], [["b"]], settings(tmp_path)) == pytest.approx(expected, abs=1e-5)
    assert bertscore(["a " * 40], [["a " * 40]], settings(tmp_path)) == pytest.approx(1)


def test_the_layers_are_the_librarys_for_a_folder_of_the_models_name(tmp_path):
    config = SimpleNamespace(num_hidden_layers=24)
    assert best_layers(tmp_path / "roberta-large", config) == 17
    assert best_layers(tmp_path / "deberta-xlarge-mnli", config) == 24
    assert best_layers(tmp_path / "mine", config) == 24


def test_a_folder_that_will_not_do_is_refused(folder, tmp_path):
    with rejects("metrics.bertscore_model"):
        bertscore(["a"], [["a"]], settings(folder, bertscore_layers=4))
    with rejects("metrics.bertscore_model"):
        bertscore(["a"], [["a"]], settings(tmp_path))


def test_without_a_folder_the_metric_says_how_to_set_one(folder):
    assert "metrics.bertscore_model=DIR" in METRICS.named("bertscore").missing(MetricsConfig())
    assert METRICS.named("bertscore").missing(settings(folder)) is None
