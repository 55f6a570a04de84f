"""Classification from the command line: every kind of model, both objectives, bad input."""

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import sklearn  # noqa: F401  it writes to the environment, which commands are checked to leave alone
from transformers import AutoModelForSequenceClassification, BertModel, BertTokenizerFast

import dpft.commands.train  # noqa: F401  as sklearn
from tests.models import small
from tests.slowness import slow, slow_but
from tests.stories import glue
from tests.stories.glue import QUICK, TRAINING, setting, write
from tests.stories.tiny import Workspace, own_entries

CLS = "task.objective=cls"
PLAIN = ("privacy=none", "train.expected_batch_size=8", "train.steps=2", "task.max_length=24")
MEAN = "model.pooling=mean"
POOLER, CLASSES = 16 * 16 + 16, 2 * 16 + 2
RUNS = {
    "fresh": (*setting("sst2", "bert"), "model.init=random"),
    "head": (*setting("sst2", "bert"), CLS),
    "mean": (*setting("sst2", "bert"), CLS, MEAN),
    "mnli": (*setting("mnli", "bert"), "method=lora", "method.train_biases=true"),
    "stsb": setting("stsb", "bert"),
    "gpt2": setting("mnli", "gpt2"),
    "gpt2-head": (*setting("stsb", "gpt2"), CLS),
    "t5": setting("sst2", "t5"),
}
PRIVATE = ("fresh", "head", "gpt2")
"""The others train without privacy: accounting takes seconds, and their losses are clipped in
tests/models/test_losses.py."""
NEW = {"head": POOLER + CLASSES, "mean": CLASSES, "gpt2-head": 16}
"""New parameters: BERT's masked language model lacks the pooler; the mean needs none."""
METRICS = {"stsb": {"pearson", "spearman"}, "gpt2-head": {"pearson", "spearman"}}
PARTS = ["validation_matched", "validation_mismatched"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return glue.make_workspace(tmp_path_factory.mktemp("glue"))


@pytest.fixture(scope="module")
def train(workspace: Workspace) -> Callable[[str], str]:
    """Return a function from a name to itself, once that run has been trained."""

    @functools.cache
    def train(name: str) -> str:
        training = TRAINING if name in PRIVATE else PLAIN
        workspace.finished(*RUNS[name], *training, f"hydra.run.dir=runs/{name}")
        return name

    return train


@pytest.fixture(params=slow_but(("head",), RUNS))
def run(request, train: Callable[[str], str]) -> str:
    return train(request.param)


OWN_METRICS = ("private", "metrics.json")


def read(workspace: Workspace, name: str, file: str) -> dict:
    return json.loads((workspace.root / "runs" / name / file).read_text())


def own(workspace: Workspace, name: str) -> list[dict]:
    return own_entries(workspace.root / "runs" / name)


def test_a_run_says_whether_it_is_private_and_counts_new_modules_apart(
    workspace: Workspace, run: str
) -> None:
    privacy = read(workspace, run, "privacy.json")
    assert privacy["private"] is (run in PRIVATE)
    assert run not in PRIVATE or privacy["epsilon"] <= 3
    assert privacy["parameters"]["new"] == NEW.get(run, 0)
    assert privacy["parameters"]["trainable"] >= privacy["parameters"]["new"]


def test_every_part_is_scored_before_and_after(workspace: Workspace, run: str) -> None:
    entries = own(workspace, run)
    parts = PARTS if run in ("mnli", "gpt2") else ["validation"]
    expected = {(stage, part) for stage in ("before", "after") for part in parts}
    assert {(entry["stage"], entry["split"]) for entry in entries} == expected
    assert len(entries) == len(expected)
    for entry in entries:
        assert set(entry["metrics"]) == METRICS.get(run, {"accuracy"})
        assert (entry["not_computed"], entry["split_is_public"]) == ({}, False)
    names = {path.name for path in (workspace.root / "runs" / run / "private").iterdir()}
    several = {f"predictions_{part}.jsonl" for part in parts}
    assert (several if len(parts) > 1 else {"predictions.jsonl"}) <= names


@pytest.mark.slow
def test_evaluating_a_run_again_gives_its_own_scores(workspace: Workspace, run: str) -> None:
    def after() -> list[dict]:
        entries = own(workspace, run)
        return [entry for entry in entries if entry["stage"] == "after"]

    trained = after()
    outcome = workspace.run("eval", f"run=runs/{run}")
    assert outcome.code == 0, outcome.err
    for old, new in zip(trained, after(), strict=True):
        assert new["metrics"] == pytest.approx(old["metrics"], abs=1e-5)
        assert (new["split"], new["examples"]) == (old["split"], old["examples"])


@pytest.mark.slow
def test_mnlis_parts_have_their_own_records(
    workspace: Workspace, train: Callable[[str], str]
) -> None:
    entries = own(workspace, train("gpt2"))
    assert {(entry["split"], entry["examples"]) for entry in entries} == {
        ("validation_matched", 2),
        ("validation_mismatched", 3),
    }


def test_a_trained_classifier_is_one_of_transformers(
    workspace: Workspace, train: Callable[[str], str]
) -> None:
    folder = workspace.root / "runs" / train("head") / "model"
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert model.config.id2label == {0: "negative", 1: "positive"}


@pytest.mark.slow
def test_a_runs_own_predictions_are_scored_as_the_run_was(
    workspace: Workspace, train: Callable[[str], str]
) -> None:
    for name in (train("head"), train("gpt2-head")):
        task = "sst2" if name == "head" else "stsb"
        file = f"predictions=runs/{name}/private/predictions.jsonl"
        outcome = workspace.run(
            "eval", f"task={task}", f"task.data_dir={task}", file, "output=json"
        )
        assert outcome.code == 0, outcome.err
        (folder,) = {path.parents[1] for path in outcome.new if path.parts[-2:] == OWN_METRICS}
        (entry,), (*_, trained) = own_entries(folder), own(workspace, name)
        assert entry["metrics"] == pytest.approx(trained["metrics"], abs=1e-3)  # 6 digits


@pytest.mark.slow
@pytest.mark.parametrize("lines", [["positive", "negative", "1"], None])
def test_a_file_of_labels_is_scored(workspace: Workspace, lines: list[str] | None) -> None:
    labels = lines or ["1", "0", "positive"]
    path = workspace.root / f"labels.{'txt' if lines else 'jsonl'}"
    rows = [
        json.dumps({"input": f"{number}: {text}", "prediction": label})
        for number, (text, label) in enumerate(zip(glue.FILMS, labels, strict=False))
    ]
    path.write_text("\n".join(lines or rows) + "\n")
    arguments = ("task=sst2", "task.data_dir=sst2", f"predictions={path.name}", "output=json")
    arguments += ("eval.split_is_public=true",)
    outcome = workspace.run("eval", *arguments)
    assert outcome.code == 0, outcome.err
    (entry,) = json.loads(outcome.out)["evaluations"]
    assert entry["metrics"] == {"accuracy": pytest.approx(2 / 3)}


@pytest.mark.slow
@pytest.mark.parametrize("model", ("bert", "gpt2", "t5"))
def test_a_pretrained_models_label_words_are_scored_without_training(
    workspace: Workspace, model: str
) -> None:
    arguments = (*setting("mnli", model), "task.max_length=24", "output=json")
    arguments += ("eval.split_is_public=true",)
    outcome = workspace.run("eval", *arguments, f"hydra.run.dir=zero/{model}")
    assert outcome.code == 0, outcome.err
    entries = json.loads(outcome.out)["evaluations"]
    assert [entry["split"] for entry in entries] == PARTS
    assert all(set(entry["metrics"]) == {"accuracy"} for entry in entries)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "new"),
    [((CLS,), POOLER + CLASSES)]
    + slow(((), 0), ((CLS, MEAN), CLASSES), (("model.init=random",), 0)),
)
def test_a_plan_counts_what_training_does(workspace: Workspace, arguments, new: int) -> None:
    chosen = (*setting("sst2", "bert"), *PLAIN, *arguments, "output=json")
    outcome = workspace.run("plan", *chosen)
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    assert (record["parameters"]["new"], record["plan"]["num_examples"]) == (new, 20)


@pytest.mark.slow
def test_a_plan_measures_a_classifier(workspace: Workspace) -> None:
    chosen = (*setting("mnli", "gpt2"), *PLAIN, CLS, "output=json")
    outcome = workspace.run("plan", *chosen)
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["measured"]["seconds_per_step"] > 0


@pytest.fixture(scope="module")
def encoder(workspace: Workspace) -> Path:
    """A checkpoint of the bare encoder, with its tokenizer."""
    folder = workspace.root / "encoder"
    BertModel(small.bert_config()).save_pretrained(folder)
    BertTokenizerFast.from_pretrained(workspace.root / "bert").save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", *slow(("plan",), ("eval",))])
def test_infilling_with_a_bare_encoder_is_refused(
    workspace: Workspace, encoder: Path, command: str
) -> None:
    model = ("task.max_length=24", "model.path=encoder")
    training = {"train": (*QUICK, "privacy.noise_multiplier=1"), "plan": PLAIN, "eval": ()}[command]
    sentence = workspace.refusal(command, *setting("sst2", "bert"), *training, *model)
    assert "no trained head of a masked language model" in sentence
    assert "task.objective=cls" in sentence


SST2 = setting("sst2", "bert")
BAD = [
    (SST2, "task.template='<S1> It was great .'", ["task.template", "[MASK]"]),
    (SST2, "task.label_words.positive=unlikely", ["'unlikely'", "'un' + '##likely'"]),
    (SST2, "task.label_words.positive=Terrible", ["terrible", "Terrible"]),
    (SST2, "eval.split=test", ["test.jsonl, line 1", "-1", "eval.split=validation"]),
    (SST2, "task.data_dir=bad", ["bad/train.jsonl, line 2", "0 (negative), 1 (positive)"]),
    (setting("mnli", "bert"), "task.data_dir=sst2", ["sst2", "premise"]),
    (setting("sst2", "t5"), CLS, ["task.objective=cls", "seq2seq", "infilling"]),
    *slow(
        (SST2, "task.template='<S1> <S2> [MASK]'", ["task.template", "<S2>"]),
        (SST2, "task.causal_template='[MASK] <S1>'", ["task.causal_template", "[MASK]"]),
        (SST2, "task.label_words.positive=terrible", ["task.label_words"]),
        (SST2, "task.objective=ranking", ["task.objective", "infilling", "cls"]),
        (SST2, "model.pooling=max", ["model.pooling", "mean"]),
        (SST2, "task.max_length=5", ["task.max_length"]),
        (SST2, "task.max_length=65", ["task.max_length", "64 positions"]),
        (SST2, "task.data_dir=hidden", ["hidden/train.jsonl, line 1", "-1"]),
        (SST2, "train.transfer_sample_rate_from=sst", ["'sst'", "from=sst2"]),
        (SST2, "train.transfer_sample_rate_from=warp", ["warp"]),
        (setting("sst2", "gpt2"), "task.label_words.positive=unlikely", ["'unlikely'"]),
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "change", "parts"), slow_but([*BAD][:1], BAD), ids=lambda value: str(value)[:40]
)
def test_bad_input_is_refused_in_one_sentence_before_anything_is_written(
    workspace: Workspace, arguments: tuple[str, ...], change: str, parts: list[str]
) -> None:
    good = {"sentence": "fine", "label": 1}
    write(workspace.root / "bad", "train", [good, {"sentence": "SECRET", "label": 2}])
    write(workspace.root / "hidden", "train", [{"sentence": "SECRET", "label": -1}])
    sentence = workspace.refusal("train", *arguments, *TRAINING, change)
    assert [part for part in parts if part not in sentence] == [], sentence
    assert "SECRET" not in sentence


@pytest.mark.slow
def test_one_part_must_be_chosen_for_a_file_of_labels(workspace: Workspace) -> None:
    arguments = ("task=mnli", "task.data_dir=mnli", "predictions=labels.txt")
    refused = workspace.refusal("eval", *arguments)
    assert "task.split_parts.validation=[validation_matched]" in refused
    (workspace.root / "mnli.txt").write_text("neutral\nnonsense\n")
    part = "task.split_parts.validation=[validation_matched]"
    sentence = workspace.refusal("eval", *arguments[:2], "predictions=mnli.txt", part)
    assert "record 2" in sentence and "nonsense" not in sentence


@pytest.mark.slow
def test_a_sample_rate_is_transferred_from_its_task(workspace: Workspace) -> None:
    rate = ("train.transfer_sample_rate_from=rte", "train.expected_batch_size=498")
    chosen = (*SST2, *PLAIN, *rate, "privacy.num_examples=1000", "output=json")
    record = json.loads(workspace.run("plan", *chosen).out)
    assert record["plan"]["expected_batch_size"] == 200  # as 498 of RTE's 2,490
