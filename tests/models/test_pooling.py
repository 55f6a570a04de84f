import torch
from transformers import BertModel, GPT2Model

from dpft.models.pooling import PooledClassifier
from tests.models import small

IDS = torch.tensor([[5, 6, 7, 0], [8, 9, 10, 11]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])


def pooled(**settings: object) -> PooledClassifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return small.shaken(PooledClassifier(small.bert_config(num_labels=3, **settings)))


def test_logits_are_a_linear_layer_on_the_mean_over_the_tokens():
    model = pooled()
    states = model.backbone(input_ids=IDS, attention_mask=MASK).last_hidden_state
    mean = torch.stack([states[0, :3].mean(0), states[1].mean(0)])
    expected = mean @ model.classifier.weight.T + model.classifier.bias
    assert torch.allclose(model(IDS, MASK).logits, expected, atol=1e-6)


def test_padding_and_neighbors_change_nothing():
    model = pooled()
    alone = model(IDS[:1, :3], MASK[:1, :3]).logits
    assert torch.allclose(model(IDS, MASK).logits[:1], alone, atol=1e-6)


def test_the_encoders_weights_stay_and_its_pooler_goes():
    encoder = small.shaken(BertModel(small.bert_config()))
    before = {name: weight.clone() for name, weight in encoder.state_dict().items()}
    model = PooledClassifier(small.bert_config(num_labels=2), encoder)
    after = model.backbone.state_dict()
    assert set(before) - set(after) == {"pooler.dense.weight", "pooler.dense.bias"}
    assert all(torch.equal(weight, before[name]) for name, weight in after.items())


def test_a_fresh_head_is_small_and_random():
    head = PooledClassifier(small.bert_config(num_labels=40)).classifier
    assert 0.015 < head.weight.detach().std().item() < 0.025  # std 0.02
    assert not head.bias.any()


def test_a_saved_classifier_loads_as_it_was(tmp_path):
    model = pooled()
    model.save_pretrained(tmp_path)
    loaded = PooledClassifier.from_pretrained(tmp_path, config=model.config).eval()
    assert torch.equal(loaded(IDS, MASK).logits, model(IDS, MASK).logits)


def test_dropout_is_the_architectures():
    assert pooled(hidden_dropout_prob=0.3).dropout.p == 0.3
    encoder = GPT2Model(small.gpt2_config())
    model = PooledClassifier(small.gpt2_config(num_labels=2), encoder).eval()
    assert model(IDS, MASK).logits.shape == (2, 2)
