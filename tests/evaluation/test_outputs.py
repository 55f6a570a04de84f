"""What a model says to labeled records, and what a seq2seq model writes."""

import dataclasses
import math
from dataclasses import replace

import pytest
import torch

from dpft.constants import CLASSES, CLASSIFIER, LABEL_WORDS, MASKED, SCORE, SEQ2SEQ
from dpft.data.batches import TextLayout
from dpft.data.classification_rows import LabelWordEncoding, SentenceEncoding, label_word_ids
from dpft.data.encoding import TextEncoding
from dpft.evaluation.eval_config import EvalConfig
from dpft.evaluation.evaluate import evaluate_model, group_examples
from dpft.evaluation.outputs import ModelOutputs
from dpft.generation.decoding import DecodeConfig, generate_texts
from dpft.tasks.base import Example, LabeledExample
from dpft.tasks.glue import GlueTask
from tests.models import small
from tests.rejections import rejects

TASK = GlueTask(
    name="sst2",
    labels=("negative", "positive"),
    template="<S1> It was [MASK] .",
    causal_template="<S1> It was [MASK]",
    label_words={"negative": "terrible", "positive": "great"},
    metrics=("accuracy",),
)
TEXTS = ("a great film", "the dull play was long", "song", "a film", "the film")
RECORDS = [LabeledExample(texts=(text,), label=float(i % 2)) for i, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return small.wordpiece(tmp_path_factory.mktemp("wordpiece"))


def masked(tokenizer) -> LabelWordEncoding:
    words = label_word_ids(TASK.words, tokenizer, after_blank=True)
    return LabelWordEncoding(
        tokenizer=tokenizer,
        layout=TextLayout(kind=MASKED, answer=LABEL_WORDS, words=words),
        max_length=32,
        pieces=lambda example: TASK.pieces(example, causal=False),
        distribution=TASK.distribution,
    )


def evaluate(tokenizer, task=TASK, records=RECORDS, **config):
    model = small.language_model("bert").train()
    return evaluate_model(
        ModelOutputs(
            model=model, encoding=masked(tokenizer), batch_size=config.pop("batch_size", 2)
        ),
        task,
        records,
        config=EvalConfig(**{"split": "validation", **config}),
        decode=DecodeConfig(),
        split="validation_matched",
    )


def zero_shot(tokenizer, text: str) -> list[float]:
    """The probabilities of the two words by the plain model and the plain tokenizer."""
    encoded = tokenizer(f"{text} It was [MASK] .", return_tensors="pt")
    with torch.no_grad():
        logits = small.language_model("bert")(**encoded).logits[0]
    place = encoded["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    pair = logits[place, tokenizer.convert_tokens_to_ids(["terrible", "great"])]
    return pair.softmax(0).tolist()


@pytest.mark.slow
def test_short_records_share_the_tokens_that_the_longest_takes_and_keep_their_places(bert):
    texts = ["song", "the long dull play was " * 4, *TEXTS]
    records = [LabeledExample(texts=(text,), label=0.0) for text in texts]
    outputs = ModelOutputs(model=small.language_model("bert"), encoding=masked(bert), batch_size=1)
    counts: list[int] = []
    answers = outputs.answers(records, counts.append)
    assert sum(counts) == len(records) and counts[0] == 1 and counts[1:] == [2, 3, 1]
    for text, answer in zip(texts, answers, strict=True):
        assert answer == pytest.approx(zero_shot(bert, text), rel=1e-5)


@pytest.mark.slow
def test_the_likeliest_word_is_the_prediction_and_accuracy_counts_them(bert):
    evaluation = evaluate(bert)
    expected = [int(zero_shot(bert, text)[1] > 0.5) for text in TEXTS]
    found = [prediction.prediction for prediction in evaluation.predictions]
    assert found == [TASK.labels[label] for label in expected]
    hits = sum(label == record.label for label, record in zip(expected, RECORDS, strict=True))
    assert evaluation.metrics == {"accuracy": pytest.approx(hits / len(RECORDS))}
    assert (evaluation.split, evaluation.examples) == ("validation_matched", 5)


def test_labels_of_the_records_are_not_read(bert):
    turned = [dataclasses.replace(record, label=1 - record.label) for record in RECORDS]
    one, other = evaluate(bert), evaluate(bert, records=turned)
    assert [p.prediction for p in one.predictions] == [p.prediction for p in other.predictions]
    accuracies = one.metrics["accuracy"] + other.metrics["accuracy"]
    assert accuracies == pytest.approx(1)


@pytest.mark.parametrize("answer", [CLASSES, SCORE])
def test_a_head_gives_probabilities_or_its_number(bert, answer):
    from transformers import BertForSequenceClassification

    outputs = 3 if answer == CLASSES else 1
    model = small.shaken(BertForSequenceClassification(small.bert_config(num_labels=outputs)))
    layout = TextLayout(kind=CLASSIFIER, answer=answer, outputs=outputs)
    encoding = SentenceEncoding(tokenizer=bert, layout=layout, max_length=32)
    reader = ModelOutputs(model=model, encoding=encoding, batch_size=4)
    for text, found in zip(TEXTS, reader.answers(RECORDS, lambda _: None), strict=True):
        with torch.no_grad():
            logits = model(**bert(text, return_tensors="pt")).logits[0]
        expected = logits.softmax(0) if answer == CLASSES else logits
        assert found == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-6)


PAIRS = [("name the film", "a great film"), ("name", "song"), ("name the film", "the film")]
EXAMPLES = [Example(prompt=prompt, target=target, group=prompt) for prompt, target in PAIRS]


def writer(max_length: int = 8) -> ModelOutputs:
    layout = TextLayout(kind=SEQ2SEQ, takes_position_ids=False)
    tokenizer = small.blank_words(closes=True)
    encoding = TextEncoding(tokenizer=tokenizer, layout=layout, max_length=max_length)
    return ModelOutputs(model=small.language_model("t5"), encoding=encoding, batch_size=2)


@pytest.mark.slow
def test_a_seq2seq_model_writes_after_its_whole_closed_prompt():
    outputs = writer()
    decode = DecodeConfig(num_beams=2, max_new_tokens=5)
    texts = outputs.texts(
        [group.examples[0] for group in group_examples(EXAMPLES)], decode, lambda _: None
    )
    tokenizer = outputs.encoding.tokenizer
    prompts = [tokenizer("name the film")["input_ids"], tokenizer("name")["input_ids"]]
    expected = generate_texts(outputs.model, tokenizer, prompts, config=decode, batch_size=1)
    assert texts == expected


def test_a_seq2seq_prompt_is_cut_before_writing_as_it_was_in_training(monkeypatch):
    outputs = writer(max_length=4)
    seen = []
    original = outputs.model.generate

    def generate(*, input_ids, **settings):
        seen.extend(input_ids.tolist())
        return original(input_ids, **settings)

    outputs.model.generate = generate
    long = [Example(prompt="name the long dull film", target="a", group="1")]
    outputs.texts(long, DecodeConfig(max_new_tokens=6), lambda _: None)
    assert seen == [row.input_ids for row in outputs.encoding.rows(long)]
    assert len(seen[0]) == 4


def test_a_seq2seq_models_likelihoods_are_those_of_transformers_loss():
    outputs = writer()
    found = outputs.likelihoods(EXAMPLES, lambda _: None)
    tokenizer, total = outputs.encoding.tokenizer, 0.0
    for prompt, target in PAIRS:
        labels = tokenizer(target, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            loss = outputs.model(**_inputs(tokenizer, prompt), labels=labels).loss
        total += float(loss) * labels.numel()
    assert sum(found.nll_sums) == pytest.approx(total, rel=1e-5)
    assert sum(found.token_counts) == 4 + 2 + 3
    assert math.isfinite(total)


def test_what_a_decoder_reads_counts_for_a_batch_too():
    long = Example(prompt="name", target="the long dull film play song", group="name")
    outputs = replace(writer(), batch_size=1)
    counts: list[int] = []
    # 2 + 2 tokens, twice, beside 2 + 7
    found = outputs.likelihoods([EXAMPLES[1], long, EXAMPLES[1]], counts.append)
    assert counts == [1, 2]
    assert found.token_counts == [7, 2, 2]


def test_the_likelihood_is_of_the_targets_alone_where_prompts_were_learned():
    tokenizer = small.blank_words(closes=False)
    encoding = TextEncoding(tokenizer=tokenizer, layout=TextLayout(), max_length=16)
    model = small.language_model("gpt2")
    outputs = ModelOutputs(model=model, encoding=encoding, batch_size=2)
    started = [replace(each, after_start=True) for each in EXAMPLES]
    learned = [replace(each, learns_prompt=True) for each in started]
    found = outputs.likelihoods(learned, lambda _: None)
    assert found == outputs.likelihoods(started, lambda _: None)
    assert sum(found.token_counts) == 4 + 2 + 3


def _inputs(tokenizer, prompt):
    return {"input_ids": tokenizer(prompt, return_tensors="pt")["input_ids"]}


def test_texts_are_not_asked_of_labels(bert):
    outputs = ModelOutputs(model=small.language_model("bert"), encoding=masked(bert), batch_size=2)
    with rejects("task"):
        outputs.texts([], DecodeConfig(), lambda _: None)


def test_a_models_next_tokens_are_those_that_greedy_teacher_forcing_gives():
    outputs = writer()
    found = outputs.next_tokens(EXAMPLES, lambda _: None)
    tokenizer, right = outputs.encoding.tokenizer, 0
    for prompt, target in PAIRS:
        labels = tokenizer(target, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = outputs.model(**_inputs(tokenizer, prompt), labels=labels).logits
        right += int((logits.argmax(-1) == labels).sum())
    assert sum(found.right_counts) == right
    assert sum(found.token_counts) == 4 + 2 + 3
