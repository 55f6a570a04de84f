import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from torch import nn
from transformers import AutoTokenizer, BertModel, GPT2Config, GPT2LMHeadModel

from dpft.commands.modality import MODALITIES, modality_of
from dpft.commands.overrides import checked_overrides
from dpft.commands.task_model import (
    TrainedModel,
    encoding_of,
    fitted_to,
    head_of,
    prepare_model,
    written_tokens,
)
from dpft.config.load import from_values
from dpft.constants import (
    CAUSAL,
    CLASSES,
    CLASSIFIER,
    LABEL_WORDS,
    MASKED,
    SCORE,
    SEQ2SEQ,
    TEXT,
    Head,
)
from dpft.data.classification_rows import LabelWordEncoding, SentenceEncoding
from dpft.data.encoding import Encoding, TextEncoding
from dpft.errors import InputError
from dpft.generation.decoding import DecodeConfig
from dpft.models.architecture import Architecture, read_architecture
from dpft.models.loading import add_tokens, load_model, load_tokenizer
from dpft.models.losses import answer_logits, per_example_losses
from dpft.models.source import EMBEDDED_MODEL, ModelConfig
from dpft.privacy.clipping import PerExampleClipper
from dpft.tasks.base import LabeledExample, Task, chosen_task_class
from dpft.tasks.corpus import CorpusTask
from dpft.tasks.custom import CustomTexts
from dpft.tasks.personachat import TOKENS
from tests.config.test_conf import loaded
from tests.models import small
from tests.rejections import rejects
from tests.slowness import slow_but

CONF = Path(__file__).parents[2] / "conf" / "task"
CLS = {"objective": "cls"}


def task(name: str, **settings: object) -> Task:
    values = OmegaConf.to_object(OmegaConf.load(CONF / f"{name}.yaml"))
    values |= {"max_length": 24, **settings}
    return from_values(values, chosen_task_class(values))


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Architecture]:
    root = tmp_path_factory.mktemp("parts")
    return {
        name: read_architecture(ModelConfig(name=name, path=str(small.save(name, root / name))))
        for name in ("bert", "gpt2", "t5")
    }


def encoding(chosen: Task, model: Architecture):
    head = head_of(chosen, model)
    return encoding_of(chosen, model, head, load_tokenizer(model, kind=head.kind))


@pytest.mark.parametrize(("name", "kind"), [("bert", MASKED), ("gpt2", CAUSAL), ("t5", SEQ2SEQ)])
def test_infilling_asks_the_models_own_language_head(models, name, kind):
    assert head_of(task("sst2"), models[name]) == Head(kind=kind)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_classification_head_has_the_tasks_classes_or_one_number(models, name):
    labels = ("entailment", "neutral", "contradiction")
    assert head_of(task("mnli", **CLS), models[name]).num_outputs == len(labels)
    assert tuple(head_of(task("mnli", **CLS), models[name]).labels) == labels
    assert head_of(task("stsb", **CLS), models[name]) == Head(kind=CLASSIFIER)


TEMPLATES = {"prompt_template": "{q}:", "target_template": "{a}"}
LEARNED = CustomTexts(name="custom", learn_prompt=True, **TEMPLATES)


@pytest.mark.parametrize(
    ("chosen", "name", "key", "value"),
    [
        (task("sst2", **CLS), "t5", "task.objective", "cls"),
        (task("e2e"), "bert", "model", "bert"),
        (task("rte", objective="text2text"), "bert", "task.objective", MASKED),
        (task("rte", objective="text2text"), "gpt2", "task.objective", CAUSAL),
        (LEARNED, "t5", "task.learn_prompt", True),
        (LEARNED, "bert", "model", "bert"),
    ],
)
def test_a_model_without_the_head_that_the_task_needs_is_rejected(models, chosen, name, key, value):
    with rejects(key, value):
        head_of(chosen, models[name])


def test_a_prompt_is_learned_by_a_causal_model_alone(models):
    assert head_of(LEARNED, models["gpt2"]) == Head(kind=CAUSAL)
    assert head_of(LEARNED.replace(learn_prompt=False), models["t5"]) == Head(kind=SEQ2SEQ)


@pytest.mark.parametrize(
    ("name", "chosen", "made", "answer"),
    [
        ("bert", task("sst2"), LabelWordEncoding, LABEL_WORDS),
        ("gpt2", task("stsb"), LabelWordEncoding, LABEL_WORDS),
        ("t5", task("mnli"), LabelWordEncoding, LABEL_WORDS),
        ("bert", task("qqp", **CLS), SentenceEncoding, CLASSES),
        ("gpt2", task("stsb", **CLS), SentenceEncoding, SCORE),
        ("gpt2", task("e2e"), TextEncoding, TEXT),
        ("t5", task("e2e"), TextEncoding, TEXT),
        ("t5", task("rte", objective="text2text"), TextEncoding, TEXT),
    ],
)
def test_task_and_model_choose_the_encoding_and_its_layout(models, name, chosen, made, answer):
    found = encoding(chosen, models[name])
    assert type(found) is made
    layout = found.layout
    assert (layout.answer, found.max_length) == (answer, 24)
    assert layout.takes_position_ids is (name != "t5")
    assert layout.takes_token_types is (name == "bert")
    assert layout.pad_token_id == {"bert": 0, "gpt2": 1, "t5": 0}[name]
    assert bool(layout.words) is (answer == LABEL_WORDS)


def test_label_words_are_in_the_order_of_the_labels(models):
    found = encoding(task("mnli"), models["t5"])
    names = found.tokenizer.convert_ids_to_tokens(list(found.layout.words))
    assert names == ["\u2581Yes", "\u2581Maybe", "\u2581No"]


@pytest.mark.slow
def test_a_masked_model_gets_the_template_and_a_causal_one_its_own(models):
    pair = LabeledExample(texts=("a film", "a song"), label=0.0)
    for name, expected in (
        ("bert", "[CLS] a film ? [MASK], a song [SEP]"),
        ("gpt2", "a film ? a song ?"),
        ("t5", "a film ? a song ?</s>"),
    ):
        found = encoding(task("mnli"), models[name])
        (row,) = found.rows([pair])
        decoded = found.tokenizer.decode(row.input_ids)
        assert decoded.replace(" ", "") == expected.replace(" ", ""), name


def test_words_that_are_no_tokens_are_refused(models):
    for word in ("unlikely", "Great"):
        words = {"negative": word, "positive": "great"}
        with rejects("task.label_words"):
            encoding(task("sst2", label_words=words), models["bert"])


def test_a_tasks_own_tokens_must_be_known_to_the_tokenizer(models):
    with pytest.raises(InputError, match="<persona>"):
        encoding(task("personachat"), models["gpt2"])
    tokenizer = load_tokenizer(models["gpt2"])
    add_tokens(tokenizer, TOKENS)
    head = Head(kind=CAUSAL)
    made = encoding_of(task("personachat"), models["gpt2"], head, tokenizer)
    assert made.special_tokens == TOKENS


def test_texts_longer_than_the_models_positions_are_refused(models):
    check_lengths = MODALITIES.named("text").check_fit
    for name in ("bert", "gpt2"):
        check_lengths(task("sst2", max_length=64), models[name], max_new_tokens=None)
        with rejects("task.max_length", 65) as faults:
            check_lengths(task("sst2", max_length=65), models[name], max_new_tokens=None)
        assert faults[0].hint == "task.max_length=64"
    check_lengths(task("sst2", max_length=500), models["t5"], max_new_tokens=500)
    with rejects("decode.max_new_tokens", 64):
        check_lengths(task("e2e"), models["gpt2"], max_new_tokens=64)


def test_a_corpus_says_what_its_model_learns_once_the_model_is_known(models):
    learned = {"bert": "mlm", "gpt2": "causal", "t5": "span_corruption"}
    for name, objective in learned.items():
        fitted = TrainedModel(architecture=models[name]).fitted(CorpusTask(name="corpus"))
        assert fitted.objective == objective
        written = None if objective == "mlm" else 7
        assert written_tokens(fitted, DecodeConfig(max_new_tokens=7)) == written
    chosen = CorpusTask(name="corpus", objective="prefix_lm")
    assert TrainedModel(architecture=models["t5"]).fitted(chosen).objective == "prefix_lm"


def test_a_bare_encoder_has_a_masked_kind_until_its_weights_are_asked(tmp_path):
    BertModel(small.bert_config()).save_pretrained(tmp_path)
    model = read_architecture(ModelConfig(name="bare", path=str(tmp_path)))
    assert head_of(task("sst2"), model) == Head(kind=MASKED)
    assert head_of(task("sst2", **CLS), model).kind == CLASSIFIER


TEXTS = ("a pub", "a pub that is very good, and near the river", "", "good")


def encoded(folder: Path, pad_token_id: int | None) -> tuple[nn.Module, Encoding]:
    """A small GPT-2 that classifies; config.json says what padding is, the tokenizer says 0."""
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    tokenizer.save_pretrained(folder)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=32, n_embd=8, n_layer=1, n_head=2)
    config.bos_token_id = config.eos_token_id = tokenizer.eos_token_id
    GPT2LMHeadModel(config).save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    settings["pad_token_id"] = pad_token_id
    (folder / "config.json").write_text(json.dumps(settings))
    model = read_architecture(ModelConfig(name="tiny", path=str(folder)))
    chosen = task("sst2", **CLS)
    head = head_of(chosen, model)
    return load_model(model, seed=0, head=head).eval(), encoding(chosen, model)


@pytest.mark.slow
@pytest.mark.parametrize("pad_token_id", slow_but([5], [None, 5]))
def test_trust_rule_3_a_classifiers_loss_does_not_depend_on_padding(tmp_path, pad_token_id):
    """GPT-2 names no padding; and what it names need not be what its tokenizer does."""
    model, reading = encoded(tmp_path, pad_token_id)
    rows = reading.rows([LabeledExample(texts=(text,), label=1.0) for text in TEXTS])
    alone = [reading.layout.unpadded().collate([row]) for row in rows]
    with PerExampleClipper(model, per_example_losses, max_grad_norm=1.0) as clipper:
        clipper.self_check(reading.layout.collate(rows), alone=[alone])


@pytest.mark.slow
def test_a_batch_of_empty_texts_has_an_answer(tmp_path):
    """GPT-2's tokenizer writes no marks: whether a step fails must not depend on what it drew."""
    model, reading = encoded(tmp_path, None)
    rows = reading.rows([LabeledExample(texts=("",), label=0.0)] * 2)
    logits = answer_logits(model, reading.layout.collate(rows))
    assert logits.shape == (2, 2) and bool(logits.isfinite().all())


TARGETS = {
    "gpt2": {"c_attn"}, "bert": {"query", "value"}, "roberta": {"query", "value"},
    "t5": {"q", "v"}, "llama": {"q_proj", "v_proj"}, "opt": {"q_proj", "v_proj"},
}  # fmt: skip


@pytest.mark.parametrize("name", slow_but([], TARGETS))
def test_a_folder_alone_decides_what_lora_changes_and_what_pads(tmp_path: Path, name: str) -> None:
    folder = small.save(name, tmp_path / name)
    labeled = name in ("bert", "roberta")
    chosen = ["task=sst2", "task.objective=cls"] if labeled else ["task=e2e"]
    words = [*chosen, "method=lora", f"model.path={folder}"]
    command = loaded("train", checked_overrides([*words, "task.max_length=24", "privacy.eps=3"]))
    architecture = read_architecture(command.model)
    config = fitted_to(command.settings(), architecture)
    model, _ = prepare_model(config, architecture, head_of(config.task, architecture))
    trained = [key for key, value in model.named_parameters() if value.requires_grad]
    trained = [key for key in trained if ".lora_" in key]  # and a new head
    assert {key.partition(".lora_")[0].rpartition(".")[2] for key in trained} == TARGETS[name]
    made = encoding(config.task, architecture)
    own = architecture.read.pad_token_id if labeled else made.tokenizer.pad_token_id
    assert made.layout.pad_token_id == own is not None


def test_a_sentence_encoders_folder_says_itself_that_it_is_read_by_the_mean(tmp_path) -> None:
    folder = small.save("bert", tmp_path / "bert")
    config = ModelConfig(name="local", path=str(folder))
    assert read_architecture(config).pooling is None
    (folder / "1_Pooling").mkdir()
    for said, pooling in (("true", "mean"), ("false", None)):
        text = f'{{"pooling_mode_mean_tokens": {said}}}'
        (folder / "1_Pooling" / "config.json").write_text(text)
        assert read_architecture(config).pooling == pooling


OWN = ["task=custom", "task.data_dir=notes.csv", 'task.text="{note}"', "privacy.eps=8"]


@pytest.mark.slow
def test_a_length_that_nobody_gave_is_the_models_less_what_the_method_takes(caplog) -> None:
    config = loaded("train", [*OWN, "model=tiny", "method=prefix", "method.length=6"])
    with caplog.at_level("INFO"):
        fitted = fitted_to(config, read_architecture(config.model))
    assert fitted.task.max_length == 256 - 6
    assert caplog.messages == ["task.max_length: 250 (default: the longest text of model=tiny)"]


@pytest.mark.slow
def test_a_model_of_many_positions_leaves_512_without_a_word(tmp_path: Path, caplog) -> None:
    task = loaded("train", OWN).task
    architecture = read_architecture(ModelConfig(name="t5", path=str(small.save("t5", tmp_path))))
    with caplog.at_level("INFO"):
        assert modality_of(task).fitted(task, architecture, 0).max_length == 512
    assert caplog.messages == []
