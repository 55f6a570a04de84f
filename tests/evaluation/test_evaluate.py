import json
import math

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from dpft.data.batches import TextLayout
from dpft.data.encoding import TextEncoding
from dpft.errors import InputError
from dpft.evaluation.eval_config import EvalConfig
from dpft.evaluation.evaluate import evaluate_model, inputs_of, score_predictions
from dpft.evaluation.outputs import ModelOutputs
from dpft.generation.decoding import DecodeConfig
from dpft.records.form import as_json, parse
from dpft.records.scores import ScoreEntry
from dpft.tasks.base import LabeledExample
from dpft.tasks.glue import GlueTask
from tests.evaluation.letters import LetterTask, example

WORDS = [*"abcdefgh", ":", "<end>"]
END = WORDS.index("<end>")


TASK = LetterTask(name="letters", max_length=12, metrics=("bleu", "rouge_l", "perplexity"))
EXAMPLES = [example(*pair) for pair in [("a b", "c d e"), ("f", "g h"), ("a b", "c"), ("h", "a")]]


@pytest.fixture(scope="module")
def tokenizer():
    model = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="a"))
    model.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<end>")


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(WORDS),
        n_positions=24,
        n_embd=16,
        n_layer=1,
        n_head=2,
        initializer_range=0.6,
        eos_token_id=END,
        bos_token_id=END,
    )
    return GPT2LMHeadModel(config).double().train()


def ids(text):
    return [WORDS.index(word) for word in text.split()]


def evaluate(model, tokenizer, *, decode=None, on_progress=None, **config):
    encoding = TextEncoding(tokenizer=tokenizer, layout=TextLayout(pad_token_id=END), max_length=12)
    batch_size = config.pop("batch_size", 2)
    return evaluate_model(
        ModelOutputs(model=model, encoding=encoding, batch_size=batch_size),
        TASK,
        EXAMPLES,
        config=EvalConfig(**config),
        decode=decode or DecodeConfig(num_beams=2, max_new_tokens=5),
        stage="before",
        on_progress=on_progress,
    )


def test_one_prediction_per_group_with_all_its_references(model, tokenizer):
    evaluation = evaluate(model, tokenizer)
    assert [(p.input, p.references) for p in evaluation.predictions] == [
        ("a b", ("c d e", "c")),
        ("f", ("g h",)),
        ("h", ("a",)),
    ]
    assert evaluation.examples == 3
    assert set(evaluation.metrics) == {"bleu", "rouge_l", "perplexity"}
    assert evaluation.not_computed == {}


def test_perplexity_is_of_the_target_and_its_end_given_the_prompt(model, tokenizer):
    evaluation = evaluate(model, tokenizer)
    model.eval()
    total, tokens = 0.0, 0
    for item in EXAMPLES:
        prompt, target = (ids(text) for text in (item.prompt, item.target))
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *target, END]])).logits[0]
        log_probabilities = logits.log_softmax(-1)
        for position, token in enumerate([*target, END], start=len(prompt) - 1):
            total, tokens = total - log_probabilities[position, token].item(), tokens + 1
    assert evaluation.metrics["perplexity"] == pytest.approx(math.exp(total / tokens))


def test_scores_and_predictions_do_not_depend_on_the_batch_size(model, tokenizer):
    small, large = (evaluate(model, tokenizer, batch_size=size) for size in (1, 4))
    assert small.predictions == large.predictions
    assert small.metrics == pytest.approx(large.metrics)


def test_the_model_goes_on_training_as_if_nothing_happened(model, tokenizer):
    state = torch.get_rng_state()
    evaluate(model, tokenizer)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    model(torch.tensor([[0, 1]])).logits.sum().backward()


def test_progress_counts_up_to_all_groups_and_all_references(model, tokenizer):
    seen = []
    evaluate(model, tokenizer, on_progress=lambda *report: seen.append(report))
    assert seen == [
        ("predictions", 2, 3),
        ("predictions", 3, 3),
        ("likelihoods", 2, 4),
        ("likelihoods", 4, 4),
    ]


def test_a_prompt_is_cut_where_the_models_positions_end(model, tokenizer):
    # 24 positions less 22 new tokens leave two of the first prompt's three tokens
    evaluation = evaluate(model, tokenizer, decode=DecodeConfig(num_beams=1, max_new_tokens=22))
    assert evaluation.examples == 3


def test_no_room_for_a_prompt_is_refused(model, tokenizer):
    with pytest.raises(InputError, match="decode.max_new_tokens .* got 24"):
        evaluate(model, tokenizer, decode=DecodeConfig(max_new_tokens=24))


def test_a_record_is_json_and_holds_no_text(model, tokenizer):
    entry = evaluate(model, tokenizer).record(public=False)
    record = json.loads(json.dumps(as_json(entry), allow_nan=False))
    assert parse(record, ScoreEntry) == entry and not {"samples", "confusion"} & set(record)
    assert (record["task"], record["split"], record["stage"]) == ("letters", "test", "before")


def test_a_file_of_texts_is_scored_and_says_what_it_lacks():
    texts = ["c d e", "g h", "b"]
    evaluation = score_predictions(TASK, EXAMPLES, texts, config=EvalConfig())
    assert evaluation.metrics["rouge_l"] == pytest.approx(2 / 3)
    assert list(evaluation.not_computed) == ["perplexity"]
    assert [p.prediction for p in evaluation.predictions] == texts
    assert evaluation.stage == "after"


def test_predictions_and_inputs_must_be_equally_many():
    with pytest.raises(InputError, match="each distinct input of the test split, got 4"):
        score_predictions(TASK, EXAMPLES, ["x"] * 4, config=EvalConfig())


def test_an_unknown_stage_is_refused():
    with pytest.raises(ValueError, match="before, last, average, after, got 'during'"):
        score_predictions(TASK, EXAMPLES, ["x"] * 3, config=EvalConfig(), stage="during")


SENTIMENT = GlueTask(
    name="sst2", labels=("negative", "positive"), objective="cls", metrics=("accuracy",)
)
ALIKENESS = GlueTask(
    name="stsb", labels=("different", "same"), max_score=5.0, objective="cls", metrics=("pearson",)
)


def labeled(*labels):
    return [LabeledExample(texts=("the same", "text"), label=float(label)) for label in labels]


@pytest.mark.parametrize(
    "texts", [["positive", "negative", "positive"], ["1", "0", "1.0"], [" 1 ", "negative", "1"]]
)
def test_a_file_of_labels_is_scored_by_number_or_name(texts):
    evaluation = score_predictions(SENTIMENT, labeled(1, 0, 0), texts, config=EvalConfig())
    assert evaluation.metrics == {"accuracy": pytest.approx(2 / 3)}
    assert [p.prediction for p in evaluation.predictions] == ["positive", "negative", "positive"]
    assert [p.references for p in evaluation.predictions] == [("positive",)] + [("negative",)] * 2


def test_records_of_equal_text_are_scored_one_by_one():
    names = inputs_of(SENTIMENT, labeled(1, 0, 0))
    assert names == [f"{number}: the same | text" for number in range(3)]


def test_predicted_scores_may_leave_the_scale_that_labels_keep():
    texts = ["-1", "2.5", "6"]
    evaluation = score_predictions(ALIKENESS, labeled(0, 2.5, 5), texts, config=EvalConfig())
    # by hand: deviations -3.5, 0, 3.5 about 2.5 against -2.5, 0, 2.5
    assert evaluation.metrics == {"pearson": pytest.approx(1.0)}


@pytest.mark.parametrize("bad", ["maybe", "2", "-1", "", "nan"])
def test_a_prediction_that_is_no_label_is_named_by_its_record_and_not_quoted(bad):
    with pytest.raises(InputError) as caught:
        score_predictions(SENTIMENT, labeled(1, 0), ["1", bad], config=EvalConfig())
    empty = "" if bad else ", and is empty"
    assert str(caught.value) == (
        f"predictions, record 2: a prediction must be one of 0 (negative), 1 (positive){empty}."
    )


def test_labels_must_be_as_many_as_the_records_to_score():
    config = EvalConfig(limit=2)
    assert score_predictions(SENTIMENT, labeled(1, 0, 0), ["1", "0"], config=config).examples == 2
    with pytest.raises(InputError, match="each distinct input .* got 3"):
        score_predictions(SENTIMENT, labeled(1, 0, 0), ["1"] * 3, config=config)
