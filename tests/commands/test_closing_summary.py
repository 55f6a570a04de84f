"""The last lines of a run: what it promises, what it scores in public, what to do next."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from transformers import PretrainedConfig, ViTConfig

from dpft.cli.commands import subcommand
from dpft.commands import closing_summary as ending
from dpft.commands.closing_summary import ending_lines, show_ending
from dpft.commands.generate import generated_task, prompts_of
from dpft.commands.ledger_account import saved_run
from dpft.commands.task_model import trained_model_of_run
from dpft.config.hydra_compose import compose
from dpft.config.load import config_directory, dump
from dpft.constants import CAUSAL, MASKED, NOTHING, PROMPTS, SEQ2SEQ, TEXTS
from dpft.errors import InputError
from dpft.evaluation.metrics.base import metric_specs
from dpft.evaluation.scores import ScoreEntry
from dpft.tasks import classification, corpus, custom, glue
from dpft.tasks.base import TextTask
from dpft.tasks.custom import CustomTexts
from dpft.tasks.e2e import E2ETask
from tests.models import small
from tests.rejections import rejects
from tests.reports.folders import read, write_run
from tests.reports.test_report import entry, non_private, private
from tests.slowness import slow_but

E2E = E2ETask(name="e2e")
ANSI = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run whose guarantee is taken from privacy.json: it has no ledger."""
    monkeypatch.setattr(ending, "read_finished_run", read)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "outputs" / "day"


def lines(folder: Path) -> dict[str, list[str]]:
    """Return the lines by their first words."""
    found: dict[str, list[str]] = {}
    for line in ending_lines(folder, E2E):
        kind, _, text = line.partition(": ")
        found.setdefault(kind, []).append(text)
    return found


def test_a_run_says_its_promise_its_scores_its_data_and_its_files(folder: Path) -> None:
    said = lines(write_run(folder, task={"source": "embedded"}))
    record = private()
    assert list(said) == ["trained", "privacy", "scores", "report", "next"]
    (trained,) = said["trained"]
    assert trained.startswith("tiny by method full on E2E (bundled sample), ")
    said_of_number = "(privacy.num_examples; epsilon does not hide this number)"
    assert trained.endswith(f"{record['plan']['num_examples']} examples {said_of_number}")
    (promise,) = said["privacy"]
    assert promise.startswith("epsilon = ") and "at delta = " in promise
    assert "of one example" in promise and "upper bound by" in promise
    assert said["scores"] == [
        "e2e, split test, 630 distinct inputs, before -> after training: bleu 1 -> 60"
    ]
    assert said["report"] == ["outputs/day/report.md, outputs/day/report.html"]
    assert said["next"] == [
        "dpft eval run=outputs/day",
        "dpft generate run=outputs/day prompts=FILE",
        "dpft report runs=outputs/day",
    ]


@pytest.mark.slow
def test_trust_rule_8_of_a_private_split_there_is_no_number_but_where_it_stands(
    folder: Path,
) -> None:
    said = lines(write_run(folder, public=False, bleu=60.4321))
    assert said["scores"] == ["e2e, split test: private, in outputs/day/private/metrics.json"]
    assert "60.4" not in str(said)
    said = lines(write_run(folder / "shown", public=False, publish=True, bleu=60.4321))
    assert said["scores"] == [
        "e2e, split test, before -> after training: bleu 1 -> 60 (computed on private held-out"
        " records, not covered by epsilon; rounded to two digits)"
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_trust_rule_8_the_ending_names_the_file_of_private_scores_and_prints_none(
    folder: Path,
    terminal: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_run(folder, public=False, bleu=60.4321)
    said = ending_shown(folder, terminal, monkeypatch, capsys)
    assert any("private, in outputs/day/private/metrics.json" in line for line in said)
    assert not [line for line in said if "60" in line or "bleu" in line]


def test_a_terminal_has_scores_in_a_table_and_a_pipe_a_line_for_each_fact(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(folder, bleu=60.4321, task={"source": "embedded"})
    assert ending_shown(folder, False, monkeypatch, capsys) == ending_lines(folder, E2E)
    drawn = ending_shown(folder, True, monkeypatch, capsys)
    assert drawn[0] == "✓ Trained tiny on E2E (bundled sample)"
    cells = [line.split() for line in drawn]
    assert cells[1][:3] == ["Privacy", "ε", "≤"] and "(PRV," in cells[1]
    assert "membership guess correct at most" in drawn[2]
    assert "E2E test (630)" in drawn and ["before", "after"] in cells
    assert ["BLEU", "↑", "1.00", "60.4"] in cells
    assert ["Private", "outputs/day/private", "(never", "publish)"] in cells
    assert ["Next", "dpft", "eval", "run=outputs/day"] in cells
    assert ["dpft", "report", "runs=outputs/day"] in cells, "one heading for all commands"
    assert "Warning" not in str(drawn)


def ending_shown(
    folder: Path,
    terminal: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> list[str]:
    """Return the lines that are shown on a wide terminal, or in a pipe."""
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    show_ending(folder, E2E)
    return ANSI.sub("", capsys.readouterr().out).splitlines()


def scored(stage: str, public: bool = True, **metrics: float) -> ScoreEntry:
    return entry(stage, 0.0, task="mine", metrics=metrics).marked(public)


@pytest.mark.parametrize(
    ("before", "after", "baseline"),
    [
        ({"accuracy": 0.5}, {"accuracy": 0.49}, "the model before training"),
        ({"accuracy": 0.4}, {"accuracy": 0.75}, "always answering the most frequent class"),
        ({"accuracy": 0.4}, {"accuracy": 0.76}, None),
        ({"perplexity": 9}, {"perplexity": 8}, None),
        ({"bleu": 9, "perplexity": 1280}, {"bleu": 9, "perplexity": 139}, None),
        ({"bleu": 9, "mean_length": 5}, {"bleu": 8, "mean_length": 9}, "the model before training"),
        ({"bleu": 9}, {}, None),
    ],
)
def test_a_run_in_which_no_score_is_better_ends_with_advice(
    folder: Path, before: dict, after: dict, baseline: str | None
) -> None:
    write_run(folder)
    right = ["yes"] * 3 + ["no"]
    if baseline is None or "always" not in baseline:
        right = ["a", "b", "c", "d"]
    if after.get("accuracy") == 0.76:
        right = ["yes"] * 3 + ["no"]
    lines_of_file = (json.dumps({"references": [one]}) + "\n" for one in right)
    (folder / "predictions.jsonl").write_text("".join(lines_of_file))
    record = read(folder)
    record.evaluations[:] = [scored("before", **before), scored("after", **after)]
    notes = ending._if_nothing_was_learned(record)
    assert len(notes) == (baseline is not None)
    for note in notes:
        assert baseline in note and "train.learning_rate" in note
    assert ending._majority(folder / "none.jsonl") is None


@pytest.mark.slow
@pytest.mark.parametrize("public", [True, False])
def test_trust_rule_8_only_public_scores_decide_whether_there_is_advice(
    folder: Path,
    public: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_run(folder, public=public, bleu=0.5)  # It was 1 before.
    assert any(line.startswith("warning: ") for line in ending_lines(folder, E2E)) == public
    assert ("Warning: " in str(ending_shown(folder, True, monkeypatch, capsys))) == public


@pytest.mark.parametrize(
    ("record", "begins"),
    [
        (non_private(), "NOT PRIVATE: this model was trained without"),
        (private(reproducible=True), "NOT PRIVATE: reproducible run"),
    ],
)
def test_a_run_without_a_guarantee_says_so_and_no_epsilon(
    folder: Path, record: dict, begins: str
) -> None:
    write_run(folder)
    (folder / "privacy.json").write_text(json.dumps(record))
    said = lines(folder)
    (promise,) = said["privacy"]
    assert ("epsilon" in said["trained"][0]) == ("epsilon" in record)
    assert promise.startswith(begins) and "epsilon" not in promise


def test_a_model_that_learned_its_prompts_is_asked_for_rows_and_not_given_prompts(
    folder: Path,
) -> None:
    write_run(folder)
    templates = {"prompt_template": "{q}:", "target_template": "{a}"}
    for learned, asked in ((True, "num=100"), (False, "prompts=FILE")):
        task = CustomTexts(name="custom", learn_prompt=learned, **templates)
        assert f"next: dpft generate run=outputs/day {asked}" in ending_lines(folder, task)


def test_data_on_this_machine_is_named_by_no_path(folder: Path) -> None:
    said = lines(write_run(folder, task={"source": "url", "data_dir": "/home/ann/secret"}))
    assert "E2E (local files)" in said["trained"][0] and "secret" not in str(said)


def test_next_commands_are_quoted_for_a_shell_and_for_hydra(folder: Path) -> None:
    odd = folder.with_name("two words, it's")
    commands = [shlex.split(command) for command in lines(write_run(odd))["next"]]
    assert commands[0][:2] == ["dpft", "eval"]
    override = OverridesParser.create().parse_override(commands[0][2])
    assert override.value() == "outputs/two words, it's"
    spaced = folder.with_name("two words")
    assert shlex.split(lines(write_run(spaced))["next"][0])[2] == "run=outputs/two words"


CONF_TASKS = {path.stem: path for path in sorted(config_directory().glob("task/*.yaml"))}
FORMS = {
    custom.PLAIN: ["text='{text}'"],
    custom.TEMPLATES: ["prompt='{q}: '", "target='{a}'"],
    custom.CHAT: ["messages=messages"],
    custom.LABELS: ["text='{text}'", "label=label", "labels=[no,yes]"],
}
"""Keys that choose each form of task=custom; those of the second also with learn_prompt."""
OBJECTIVES = (*corpus.OBJECTIVES, *classification.OBJECTIVES, glue.TEXT2TEXT, "dpo", "ipo", "orpo")
ROWS = {
    "tripleset": [["Inn", "NEAR", "river"]],
    "personality": ["i like pubs."],
    "history": ["hello"],
    "messages": [{"role": "user", "content": "hello"}],
    "meaning_representation": "name[Inn], eatType[pub]",
    "task": "rte",
}
"""Values of columns of prompts; of any other column a text with a gap."""


def words_of_task(name: str) -> list[list[str]]:
    """The words that choose a task of conf/task, in each of its forms and objectives."""
    values = yaml.safe_load(CONF_TASKS[name].read_text())
    if name == "custom":
        forms = [[f"task.{word}" for word in words] for words in FORMS.values()]
        learned = [*forms[1], "task.learn_prompt=true"]
        return [["task=custom", "task.data_dir=d", *words] for words in (*forms, learned)]
    if "objective" not in values:
        own = [] if values.get("labels", True) else ["task.labels=[no,yes]", "task.data_dir=d"]
        return [[f"task={name}", *own]]
    assert values["objective"] in (None, *OBJECTIVES), "an objective that this test does not know"
    data = ["task.data_dir=d"] if name == "preference" else []
    return [[f"task={name}", f"task.objective={each}", *data] for each in OBJECTIVES]


def composed(command: str, words: list[str]) -> Any:
    """What a command would be called with, by its own words; an objective of other tasks: None."""
    own = subcommand(command)
    made = compose(command, own.expand(words), own.config)
    return own.load(made.values, made.words)


def config_of_model(kind: str, *, image: bool) -> PretrainedConfig:
    if image:
        return ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    of_kind = {CAUSAL: small.gpt2_config, SEQ2SEQ: small.t5_config, MASKED: small.bert_config}
    return of_kind[kind]()


@pytest.mark.parametrize("name", slow_but([], CONF_TASKS))
def test_every_command_that_a_run_advises_takes_that_run_of_every_task_and_objective(
    name: str, folder: Path
) -> None:
    """The commands are composed of the words that are printed, and their own checks are called."""
    done = 0
    for number, words in enumerate(words_of_task(name)):
        try:
            trained = composed("train", [*words, "privacy=none", "model=tiny"]).settings()
        except InputError as error:
            assert error.faults[0].key == "task.objective"
            continue
        done += 1
        task, run = trained.task, folder.parent / str(number)
        objective = getattr(task, "objective", None)
        kind = corpus.OBJECTIVES.get(objective, CAUSAL)
        kind = SEQ2SEQ if objective == glue.TEXT2TEXT else kind
        run.mkdir(parents=True)
        dump(trained, run / "config.yaml")
        config_of_model(kind, image=task.modality == "image").save_pretrained(run / "model")
        advised = [shlex.split(said) for said in ending._next(run, saved_run(str(run)).task, [])]
        assert [command for command, *_ in advised][::2] == ["eval", "report"]
        for command, *others in advised:
            others = [word.replace("=FILE", f"={run}.jsonl") for word in others]
            made = composed(command, others)
            if command == "eval":
                check_scorable(made.task)
            if command == "generate":
                assert isinstance(task, TextTask)
                row = {column: ROWS.get(column, "a ____ b") for column in task.given_columns}
                Path(f"{run}.jsonl").write_text(json.dumps(row) + "\n")
                _, asked, of_run = with_model_facts(made, saved_run(str(run)))
                assert prompts_of(asked, generated_task(asked, of_run))
        check_others_refused(task.written_from, str(run))
    assert done


def with_model_facts(config: Any, saved: Any) -> tuple[Any, Any, Any]:
    """A run's model, and both tasks with the lengths that the model's config.json decides."""
    trained_model = trained_model_of_run(Path(config.run), saved)
    asked = config.replace(task=trained_model.fitted(config.task))
    return trained_model, asked, trained_model.fitted(saved.task)


def check_scorable(task: Any) -> None:
    """Each metric is known, and one of a model that writes in gaps alone reads no texts."""
    specs = metric_specs(task.metrics)
    assert specs
    if getattr(task, "objective", None) in corpus.OBJECTIVES:
        assert all(spec.inputs != TEXTS for spec in specs)


def check_others_refused(written_from: str | None, run: str) -> None:
    """What is not advised is refused by the same property, before a model is loaded."""
    asked = {NOTHING: "num=3", PROMPTS: f"prompts={run}.jsonl"}
    for given in {NOTHING, PROMPTS} - {written_from}:
        made = composed("generate", [f"run={run}", asked[given]])
        _, config, of_run = with_model_facts(made, saved_run(run))
        if getattr(of_run, "learn_prompt", False):
            continue  # It writes both.
        with rejects() as faults:
            prompts_of(config, generated_task(config, of_run))
        assert faults[0].key in ("num", "prompts", "run")
