import json
import math
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from dpft.data.batches import TextLayout
from dpft.data.encoding import TextEncoding
from dpft.evaluation.eval_config import EvalConfig, MetricsConfig
from dpft.evaluation.evaluate import (
    AttributeAnswers,
    LabelAnswers,
    TextAnswers,
    compute_metrics,
    evaluate_model,
    group_examples,
    score_predictions,
)
from dpft.evaluation.metrics.base import LABELS, LIKELIHOODS, TEXTS
from dpft.evaluation.outputs import ModelOutputs
from dpft.evaluation.scores import ScoreEntry
from dpft.generation.decoding import DecodeConfig
from dpft.strict_model import as_json, parse
from dpft.tasks.base import Example, ImagePlace, LabeledExample, LabeledImage
from dpft.tasks.celeba import CelebA
from dpft.tasks.glue import GlueTask, GlueTexts
from dpft.tasks.images import ImagesTask
from tests.evaluation.letters import LetterTask, example
from tests.rejections import rejects

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


@pytest.mark.slow
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
    with rejects("decode.max_new_tokens", 24):
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


@pytest.mark.parametrize("texts", [["x"] * 4, ["1"] * 2])
def test_predictions_and_inputs_must_be_equally_many(texts):
    with rejects("predictions"):
        score_predictions(TASK, EXAMPLES, texts, config=EvalConfig())


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


def test_predicted_scores_may_leave_the_scale_that_labels_keep():
    texts = ["-1", "2.5", "6"]
    evaluation = score_predictions(ALIKENESS, labeled(0, 2.5, 5), texts, config=EvalConfig())
    # by hand: deviations -3.5, 0, 3.5 about 2.5 against -2.5, 0, 2.5
    assert evaluation.metrics == {"pearson": pytest.approx(1.0)}


@pytest.mark.parametrize("bad", ["maybe", "2", "-1", "", "nan"])
def test_an_invalid_prediction_is_rejected_by_its_record_and_not_quoted(bad):
    with rejects("predictions") as faults:
        score_predictions(SENTIMENT, labeled(1, 0), ["1", bad], config=EvalConfig())
    assert "record 2" in str(faults[0])
    assert "maybe" not in repr(faults)


RECORDS = [LabeledExample(texts=("same",), label=label) for label in (1.0, 0.0, 0.0)]


def letters(*metrics: str) -> LetterTask:
    return LetterTask(name="letters", max_length=12, metrics=metrics)


class Likelihoods(NamedTuple):
    log_likelihoods: Sequence[float]


class Answering:
    """Stands in for a model's outputs; what the metrics do not read must not be asked for."""

    def texts(self, examples: Sequence[Example], decode: DecodeConfig, count: Any) -> list[str]:
        return [f"{example.group}!" for example in examples]

    def reference(self, example: Example) -> str:
        return example.target

    def likelihoods(self, examples: Sequence[Any], count: Any) -> Likelihoods:
        return Likelihoods([-1.0] * len(examples))

    def answers(self, records: Sequence[Any], count: Callable[[int], None]) -> list[list[float]]:
        count(2)
        count(1)
        return [[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]


@pytest.mark.parametrize(
    ("metric", "kinds", "predictions"),
    [("perplexity", {LIKELIHOODS}, 0), ("rouge_l", {TEXTS}, 3)],
)
def test_a_model_is_asked_only_for_what_the_metrics_read(
    metric: str, kinds: set[str], predictions: int
) -> None:
    task = letters(metric)
    groups = TextAnswers().to_score(task, EXAMPLES, EvalConfig(), "test")
    scored = TextAnswers().of_model(task, groups, Answering(), DecodeConfig())
    assert (set(scored.columns), len(scored.predictions), scored.count) == (kinds, predictions, 3)


def test_a_models_answers_become_labels_and_progress_adds_up_the_batches() -> None:
    seen = []
    scored = LabelAnswers().of_model(
        SENTIMENT, RECORDS, Answering(), DecodeConfig(), lambda *report: seen.append(report)
    )
    assert scored.columns == {LABELS: {"predicted": [1, 0, 1], "gold": [1, 0, 0]}}
    assert seen == [("predictions", 2, 3), ("predictions", 3, 3)]


def test_the_limit_counts_distinct_inputs_of_texts_and_records_of_labels() -> None:
    config = EvalConfig(limit=2)
    groups = TextAnswers().to_score(letters("bleu"), EXAMPLES, config, "test")
    assert [(group.input, len(group.examples)) for group in groups] == [("a b", 2), ("f", 1)]
    assert LabelAnswers().to_score(SENTIMENT, RECORDS, config, "test") == RECORDS[:2]


@pytest.mark.parametrize(
    ("answers", "task"), [(TextAnswers(), letters("bleu")), (LabelAnswers(), SENTIMENT)]
)
def test_an_empty_split_is_refused(answers: Any, task: Any) -> None:
    with rejects("eval.split", "validation"):
        answers.to_score(task, [], EvalConfig(), "validation")


def test_what_a_split_holds_is_not_in_its_repr() -> None:
    groups = TextAnswers().to_score(letters("bleu"), EXAMPLES, EvalConfig(), "test")
    assert "a b" not in repr(TextAnswers().of_file(letters("bleu"), groups, ["x"] * 3))


def test_texts_that_spell_labels_are_read_as_labels_too() -> None:
    task = GlueTexts(name="rte", labels=("entailment", "not_entailment"), metrics=("f1",))
    examples = [
        Example(prompt=f"rte sentence: {at}", target=target, group=f"{at}")
        for at, target in enumerate(("entailment", "not_entailment", "entailment"))
    ]
    groups = TextAnswers().to_score(task, examples, EvalConfig(), "validation")
    scored = TextAnswers().of_file(task, groups, ["entailment", "no", "not_entailment"])
    assert scored.columns["labels"] == {"predicted": [0.0, -1.0, 1.0], "gold": [0.0, 1.0, 0.0]}
    values, not_computed = compute_metrics(task.metrics, scored.columns)
    assert values["accuracy"] == pytest.approx(1 / 3)
    assert (values["f1"], not_computed) == (0.0, {})


ATTRIBUTE_ANSWERS = AttributeAnswers()
FACES = CelebA(name="celeba", labels=("Bald", "Male"), metrics=("mean_accuracy",))
PICTURES = [
    LabeledImage(image=ImagePlace(file=f"faces/{at}.jpg"), answer=answer)
    for at, answer in enumerate([(0.0, 1.0), (1.0, 1.0)])
]


def test_each_attribute_has_an_accuracy_of_its_own():
    scored = ATTRIBUTE_ANSWERS.of_file(FACES, PICTURES, ["Male", "Male"])
    assert scored.more == {"accuracy_Bald": 0.5, "accuracy_Male": 1.0}
    assert [(p.input, p.prediction, p.references) for p in scored.predictions] == [
        ("0: 0.jpg", "Male", ("Male",)),
        ("1: 1.jpg", "Male", ("Bald, Male",)),
    ]


def test_a_model_tells_what_is_likelier_than_not():
    class AnsweringAttributes:
        def answers(self, records, on_batch):
            on_batch(len(records))
            return [[0.4, 0.6], [0.51, 0.5]]

    scored = ATTRIBUTE_ANSWERS.of_model(FACES, PICTURES, AnsweringAttributes(), DecodeConfig())
    assert scored.columns["attributes"]["predicted"] == [[0, 1], [1, 0]]


def test_a_file_names_them_with_commas():
    records = [*PICTURES, PICTURES[0]]
    scored = ATTRIBUTE_ANSWERS.of_file(FACES, records, ["Male, Bald", "", "Male"])
    assert scored.columns["attributes"]["predicted"] == [[1, 1], [0, 0], [0, 1]]
    with rejects("predictions") as faults:
        ATTRIBUTE_ANSWERS.of_file(FACES, PICTURES, ["Male", "secret"])
    assert "record 2" in str(faults[0])
    assert "secret" not in repr(faults)


ENTAILMENT = GlueTask(name="rte", objective="cls", labels=("entailment", "not_entailment"))
SAME = [LabeledExample(texts=("It rains.", "It is wet."), label=label) for label in (0.0, 1.0)]


def test_records_of_the_same_text_are_told_apart_and_scored_apart() -> None:
    assert LabelAnswers().inputs(ENTAILMENT, SAME) == [
        "0: It rains. | It is wet.",
        "1: It rains. | It is wet.",
    ]
    scored = LabelAnswers().of_file(ENTAILMENT, SAME, ["1", "1"])
    predictions = scored.predictions
    assert [each.prediction for each in predictions] == ["not_entailment"] * 2
    assert [each.references for each in predictions] == [("entailment",), ("not_entailment",)]
    assert scored.columns == {LABELS: {"predicted": [1.0, 1.0], "gold": [0.0, 1.0]}}


GROUPED = [
    Example(prompt=group, target=target, group=group)
    for group, target in [("b", "1"), ("a", "2"), ("b", "3"), ("c", "4")]
]


def test_an_empty_target_is_a_reference_only_where_there_is_no_other():
    texts = [("a", ""), ("a", "1"), ("b", "")]
    groups = group_examples([Example(prompt="x", target=t, group=g) for g, t in texts])
    assert [group.references for group in groups] == [("1",), ("",)]


def test_classes_that_were_confused_are_counted_and_wrong_records_are_pictured():
    task = ImagesTask(name="images", labels=("cat", "dog"), metrics=("accuracy",))
    right = [(0.0,), (0.0,), (1.0,)]
    records = [
        LabeledImage(image=ImagePlace(file=f"{at}.png"), answer=a) for at, a in enumerate(right)
    ]

    class AnsweringClasses:
        encoding = SimpleNamespace(
            picture=lambda wrong: ",".join(each.image.file for each in wrong)
        )

        def answers(self, records, on_batch):
            return [[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]

    scored = LabelAnswers().of_model(task, records, AnsweringClasses(), DecodeConfig())
    assert scored.confusion == [[1, 1], [0, 1]]
    assert scored.picture == "1.png"


FOUR_WORDS = {"predictions": ["a b c d"], "references": [["a b c d"]]}


def test_every_metric_has_a_value_or_a_reason():
    values, reasons = compute_metrics(["bleu", "perplexity", "rouge_l"], {"texts": FOUR_WORDS})
    assert values == {"bleu": pytest.approx(100), "rouge_l": pytest.approx(1)}
    assert list(reasons) == ["perplexity"]
    assert "needs the model's likelihoods" in reasons["perplexity"]


def test_a_number_that_json_cannot_hold_is_a_reason():
    columns = {"likelihoods": {"nll_sums": [math.nan], "token_counts": [1]}}
    values, reasons = compute_metrics(["perplexity"], columns)
    assert values == {}
    assert reasons == {"perplexity": "not a finite number (nan)"}


@pytest.mark.filterwarnings("error")
def test_a_constant_prediction_has_no_correlation_and_warns_of_nothing(capfd):
    columns = {"labels": {"predicted": [1.5] * 3, "gold": [0.0, 1.0, 2.0]}}
    values, reasons = compute_metrics(["pearson", "spearman"], columns)
    assert values == {}
    assert set(reasons.values()) == {"not a finite number (nan)"}
    assert capfd.readouterr().err == ""


LIBRARIES = ("rouge_score", "nltk", "pycocoevalcap", "bert_score")


@pytest.fixture
def without_the_extra(monkeypatch):
    """Make the libraries of the extra impossible to import, and Java impossible to find."""
    for name in [name for name in sys.modules if name.partition(".")[0] in LIBRARIES]:
        monkeypatch.delitem(sys.modules, name)
    for library in LIBRARIES:
        monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setenv("PATH", "")


def test_without_the_extra_and_java_the_rest_is_computed(without_the_extra):
    names = ["bleu", "meteor", "cider", "rouge_1", "rouge_2", "rouge_score_l", "bertscore"]
    settings = MetricsConfig(bertscore_model=".")
    values, reasons = compute_metrics([*names, "bleurt", "nist"], {"texts": FOUR_WORDS}, settings)
    assert list(values) == ["bleu", "nist"]
    assert set(reasons) == {
        "meteor", "cider", "rouge_1", "rouge_2", "rouge_l", "bertscore", "bleurt"
    }  # fmt: skip
    assert reasons.pop("meteor") == "needs Java; install a Java runtime (8 or newer)"
    assert "set metrics.bleurt_model=DIR" in reasons.pop("bleurt")
    assert set(reasons.values()) == {"needs the extra: pip install 'dpft[metrics]'"}


def test_a_value_stands_under_the_metrics_key():
    values, _ = compute_metrics(["token_f1"], {"texts": FOUR_WORDS})
    assert values == {"f1": pytest.approx(1)}
