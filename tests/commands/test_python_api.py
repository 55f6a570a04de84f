"""Each function of ``dpft`` does what its command does, with rows and a model in memory too."""

import copy
import html
import json
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel

import dpft
from dpft.commands import tune as tuning
from dpft.commands.finished_run import Run
from dpft.commands.overrides import evaluate_configuration
from dpft.commands.python_api import EVALUATE_COMMAND
from dpft.commands.tune import resumed_search
from dpft.models.source import EMBEDDED_MODEL
from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.run_folder import hold_run, read_yaml
from tests.rejections import ANYTHING, rejects
from tests.stories.tiny import METRICS, Workspace, make_workspace

TRAINING = (
    "task=e2e", METRICS, "privacy.eps=8", "privacy.accountant=rdp", "privacy.noise_seed=3",
    "privacy.delta=0.01", "train.expected_batch_size=8",
    "train.steps=2", "train.num_threads=1", "eval.limit=2", "decode.max_new_tokens=4",
    "decode.num_beams=1",
)  # fmt: skip
FROM_FILES = (*TRAINING, "task.data_dir=data", "model=tiny", "model.path=model")
NOTES = [{"note": f"Place {n} is a pub.", "owner": n // 2} for n in range(20)]
NOTES_RUN = (
    "task=custom", 'task.text="{note}"', "task.max_length=16", "privacy.noise_multiplier=1",
    "privacy.accountant=rdp", "train.expected_batch_size=4",
    "train.steps=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_workspace(tmp_path_factory.mktemp("api"))


@pytest.fixture(autouse=True)
def in_workspace(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(workspace.root)
    yield


@pytest.fixture(scope="module")
def by_command(workspace: Workspace) -> Path:
    outcome = workspace.run("train", *FROM_FILES, "hydra.run.dir=command")
    assert outcome.code == 0, outcome.err
    return workspace.root / "command"


def splits() -> dict[str, list[dict[str, Any]]]:
    files = {name: Path("data") / f"{name}.jsonl" for name in ("train", "validation", "test")}
    return {name: [json.loads(row) for row in open(file)] for name, file in files.items()}


def given() -> tuple[Any, Any]:
    return GPT2LMHeadModel.from_pretrained("model"), AutoTokenizer.from_pretrained("model")


@pytest.fixture(scope="module")
def by_call(workspace: Workspace) -> Run:
    """The same run on rows in memory, of a model object."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace.root)
        model, tokenizer = given()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        run = dpft.train(
            TRAINING, rows=splits(), model=model, tokenizer=tokenizer, folder="runs/called"
        )
        after = model.state_dict()
        assert all(torch.equal(value, after[name]) for name, value in before.items())
    return run


@pytest.fixture(scope="module")
def notes(workspace: Workspace) -> Run:
    """An adapter trained on a frame alone, half of whose owners are held out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace.root)
        # A random key holds out none of the ten owners once in a thousand runs.
        patch.setattr("dpft.commands.new_run.new_key", lambda: bytes(range(32)))
        model, tokenizer = given()
        words = [*NOTES_RUN, "method=lora", "privacy.unit=owner", "eval.held_out=0.5"]
        return dpft.train(words, rows=pd.DataFrame(NOTES), model=model, tokenizer=tokenizer)


def test_importing_dpft_alone_imports_neither_torch_nor_transformers() -> None:
    program = (
        "import sys, dpft; assert 'train' in dir(dpft) and dpft.InputError;"
        "sys.exit(bool({'torch', 'transformers', 'hydra'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_every_name_that_is_promised_is_there() -> None:
    assert all(getattr(dpft, name) is not None for name in dpft.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = dpft.trian
    assert "audit" not in dpft.__all__, "the name is a room's"


@pytest.mark.slow
def test_a_call_with_rows_and_a_model_in_memory_trains_what_the_command_trains(
    by_command: Path, by_call: Run
) -> None:
    ours, theirs = (
        load_file(by_call.folder / "model/model.safetensors"),
        load_file(by_command / "model/model.safetensors"),
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for name in ("private", "epsilon", "delta", "plan"):
        assert by_call.privacy[name] == dpft.open_run(by_command).privacy[name], name
    assert dpft.open_run(by_command).scores == by_call.scores


@pytest.mark.slow
def test_configurations_of_both_differ_in_where_things_come_from_alone(
    by_command: Path, by_call: Run
) -> None:
    ours, theirs = read_yaml(by_call.folder / "config.yaml"), read_yaml(by_command / "config.yaml")
    assert (ours["task"].pop("source"), ours["task"].pop("data_dir")) == ("memory", None)
    assert (theirs["task"].pop("source"), theirs["task"].pop("data_dir")) == ("url", "data")
    assert ours.pop("model")["path"] == "runs/called/private/base_model"
    theirs.pop("model")
    assert ours == theirs


def test_a_run_says_what_its_files_say(by_call: Run) -> None:
    privacy = json.loads(Path("runs/called/privacy.json").read_text())
    assert (by_call.epsilon, by_call.delta) == (None, None), "the noise of a test's seed"
    assert repr(by_call) == "Run('runs/called', not private)"
    assert privacy["epsilon"] > 7.9
    assert by_call.report.read_text().startswith("# ")
    metrics = json.loads(Path("runs/called/private/metrics.json").read_text())["evaluations"]
    assert by_call.evaluations == metrics
    assert by_call.scores == next(e["metrics"] for e in metrics if e["stage"] == "after")
    shown = by_call._repr_markdown_()
    assert "| privacy | none |" in shown and "| scores | of private records" in shown


def test_a_runs_model_and_tokenizer_are_those_it_trained(by_call: Run) -> None:
    model = by_call.load_model()
    saved = load_file(by_call.folder / "model/model.safetensors")
    assert not model.training
    assert torch.equal(
        model.state_dict()["transformer.h.0.ln_1.weight"], saved["transformer.h.0.ln_1.weight"]
    )
    assert len(by_call.load_tokenizer()) == model.config.vocab_size


def test_public_files_of_rows_in_memory_name_them_and_hold_none(by_call: Run) -> None:
    report = by_call.report.read_text()
    assert "rows given by a program" in report
    page = html.unescape((by_call.folder / "report.html").read_text())
    assert "dpft.train(['task=e2e'," in page
    assert "], rows=..., model=..., tokenizer=...)" in page
    assert "model.path=" not in page, "no word of the user's"
    assert by_call.privacy["num_examples_source"] == "counted in the data"
    assert {entry["split_is_public"] for entry in by_call.evaluations} == {False}
    shown = [p for p in by_call.folder.rglob("*") if p.is_file() and "private" not in p.parts]
    assert not [path for path in shown if b"Place 1 " in path.read_bytes()]


@pytest.mark.slow
def test_rows_of_one_owner_are_one_unit_and_the_held_out_ones_are_scored(notes: Run) -> None:
    assert notes.epsilon == notes.privacy["epsilon"] and notes.delta == notes.privacy["delta"]
    bound = f"epsilon={eps_text(notes.epsilon)}, delta={delta_text(notes.delta)}, unit='owner'"
    assert bound in repr(notes)
    plan = notes.privacy["plan"]
    assert (plan["num_examples"], plan["unit"]) == (10, "owner")
    (before, after) = notes.evaluations
    assert before["split"] == after["split"] == "held_out"
    (again,) = dpft.evaluate(notes, rows=pd.DataFrame(NOTES))
    assert again.metrics == notes.scores
    (other,) = dpft.evaluate(notes.folder, ["eval.held_out=null"], rows=NOTES[:3])
    assert (other.split, other.examples) == ("test", 3)
    with rejects("eval.held_out", 0.5):
        dpft.evaluate(notes, rows=NOTES[:3])


@pytest.mark.slow
def test_an_adapter_of_a_model_object_needs_the_object_no_more(notes: Run, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(notes.folder, moved, ignore=shutil.ignore_patterns("base_model"))
    assert isinstance(dpft.open_run(moved).load_model(), PeftModel)


@pytest.mark.slow
def test_records_are_generated_from_a_run(notes: Run) -> None:
    words = ["decode=nucleus", "decode.max_new_tokens=3"]
    generated = dpft.generate(notes, words, num=2)
    assert [list(record) for record in generated.records] == [["note"], ["note"]]
    assert generated.path.parent == notes.folder / "generated"
    assert json.loads(generated.statement.read_text())["records"] == 2
    by_words = dpft.generate([f"run={notes.folder}", "num=1", *words])
    assert len(by_words.records) == 1


@pytest.mark.slow
def test_prompts_in_memory_are_gone_on_from_and_kept_from_others(by_call: Run) -> None:
    prompts = [{"meaning_representation": "name[Inn 1]"}, {"meaning_representation": "name[X]"}]
    generated = dpft.generate(by_call, ["decode.max_new_tokens=3"], prompts=prompts)
    asked = [row["meaning_representation"] for row in generated.records]
    assert asked == ["name[Inn 1]", "name[X]"]
    assert generated.path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(dpft.InputError, match="prompts split, row 1"):
        dpft.generate(by_call, prompts=[{"text": "name[X]"}])
    with rejects("prompts"):
        dpft.generate(by_call, prompts=[])


@pytest.mark.slow
def test_rows_are_needed_again_to_go_on_and_the_same_ones(workspace: Workspace) -> None:
    words = [*NOTES_RUN, "model=tiny", "model.path=model", "train.steps=2"]
    run = dpft.train(words, rows=NOTES, folder="broken")
    for name in ("report.md", "report.html", "privacy.json"):
        (run.folder / name).unlink()
    with pytest.raises(dpft.InputError, match="privacy.json"):
        dpft.open_run("broken")
    with rejects("task.source"):
        dpft.train(["resume=broken"])
    with rejects("resume"):
        dpft.train(["resume=broken"], rows=NOTES[:-1] + [{"note": "another", "owner": 9}])
    assert dpft.train(["resume=broken"], rows=NOTES).privacy["steps_taken"] == 2


@pytest.mark.slow
def test_figures_are_those_of_the_commands_json(
    workspace: Workspace, by_command: Path, by_call: Run
) -> None:
    words = "num_examples=1000", "expected_batch_size=10", "epochs=1", "eps=3", "accountant=rdp"
    printed = json.loads(workspace.run("account", *words, "output=json").out)
    figures = dpft.account(
        num_examples=1000, expected_batch_size=10, epochs=1, eps=3, accountant="rdp"
    )
    assert figures == printed
    assert figures.mechanism.noise_multiplier == printed["mechanism"]["noise_multiplier"]
    assert figures.epsilons.prv.upper == printed["epsilons"]["prv"]["upper"]
    with pytest.raises(AttributeError, match="sigma"):
        _ = figures.sigma
    assert dpft.account(words) == dpft.account(words[:3], eps=3, accountant="rdp") == printed
    assert dpft.account(run=by_call).steps_taken == 2
    assert dpft.account(runs=[by_call, "command"], accountant="rdp").epsilon > 8


@pytest.mark.slow
def test_a_plan_is_that_of_the_command(workspace: Workspace) -> None:
    printed = json.loads(workspace.run("plan", *FROM_FILES, "output=json").out)
    planned = dpft.plan(FROM_FILES)
    measured = {"measured"}  # Of this machine, just now.
    assert {name: planned[name] for name in planned if name not in measured} == {
        name: value for name, value in printed.items() if name not in measured
    }
    assert planned.measured.keys() == printed["measured"].keys()
    model = ("model=tiny", "model.path=model")
    assert dpft.plan([*TRAINING, *model], rows=splits()).plan.num_examples == 40


REJECTED: list[tuple[Any, str | None, Any]] = [
    (lambda: dpft.train([*NOTES_RUN, "--multirun"]), "overrides", "--multirun"),
    (lambda: dpft.train("task=e2e"), "overrides", "task=e2e"),
    (lambda: dpft.train([{"note": "Qzxsecret"}]), "overrides", None),
    (lambda: dpft.account(num_examples=10, epz=3), "epz", ANYTHING),
    (lambda: dpft.account(["epz=3"]), "epz", ANYTHING),
    (lambda: dpft.account("command"), "overrides", "command"),
    (lambda: dpft.train([*FROM_FILES], rows=NOTES), "task.data_dir", None),
    (lambda: dpft.train([*NOTES_RUN, "model=tiny"], rows="notes.csv"), "rows", ANYTHING),
    (lambda: dpft.train(NOTES_RUN, rows=NOTES, model=torch.nn.Linear(1, 1)), "model", "Linear"),
    (lambda: dpft.train(NOTES_RUN, rows=NOTES, model=adapted()), "model", "PeftModel"),
    (lambda: dpft.train(NOTES_RUN, rows=NOTES, model=given()[0]), "tokenizer", "NoneType"),
    (lambda: dpft.train(["model=tiny"], **pair()), "model", None),
    (lambda: dpft.train(["resume=command"], **pair()), "model", ANYTHING),
    (lambda: dpft.train(["resume=x"], folder="y"), "folder", "y"),
    (lambda: dpft.evaluate("command", folder="other"), "folder", None),
    (lambda: dpft.evaluate(None, FROM_FILES[:1], folder="command"), ANYTHING, ANYTHING),
    (lambda: dpft.evaluate(), "run", None),
    (lambda: dpft.generate(["num=5"]), "run", None),
    (lambda: dpft.generate({}), "run", None),
    (lambda: dpft.open_run("nowhere"), "run", "nowhere"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("call", "key", "value"), REJECTED)
def test_what_the_commands_refuse_is_raised_and_leaves_nothing(
    by_command: Path, call: Any, key: str | None, value: Any
) -> None:
    before = sorted(Path().rglob("*"))
    with rejects(key, value) as faults:
        call()
    assert "Qzxsecret" not in str(faults)
    assert sorted(Path().rglob("*")) == before


def adapted() -> PeftModel:
    adapters = LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True)
    return get_peft_model(given()[0], adapters)


def pair() -> dict[str, Any]:
    model, tokenizer = given()
    return {"model": model, "tokenizer": tokenizer}


@pytest.mark.slow
def test_a_search_that_breaks_off_keeps_the_model_object(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "run_trial", broken)
    monkeypatch.setattr(tuning, "draw_count", lambda count, stream: 1)
    words = [*TRAINING, "tune.metric=perplexity", "eval.split_is_public=true"]
    words += [
        f"tuning.space.train.{key}" for key in ("learning_rate=[0.1]", "expected_batch_size=[8]")
    ]
    with pytest.raises(KeyboardInterrupt):
        dpft.tune(words, rows=splits(), folder="searched", **pair())
    assert Path("searched/private/base_model/model.safetensors").exists()
    Path("searched").rename("moved")
    assert resumed_search("moved").model.path == "moved/private/base_model"


@pytest.mark.slow
def test_that_a_split_is_public_is_not_inherited_by_other_rows(by_command: Path) -> None:
    words = ["task=e2e", f"run={by_command}", "eval.split_is_public=true"]
    composed = EVALUATE_COMMAND.compose(words)
    said = evaluate_configuration(composed.values, composed.words)
    assert said.eval.split_is_public is True
    saved = by_command / "config.yaml"
    before = saved.read_text()
    saved.write_text(before.replace("split_is_public: null", "split_is_public: true"))
    try:
        for word, expected in (("eval.limit=1", True), ("task.data_dir=data", None)):
            composed = EVALUATE_COMMAND.compose([*words[:2], word])
            config = evaluate_configuration(composed.values, composed.words)
            assert config.eval.split_is_public is expected, word
    finally:
        saved.write_text(before)


@pytest.mark.slow
def test_a_folder_with_a_link_is_refused_before_a_model_is_kept_in_it(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/private").symlink_to(tmp_path / "elsewhere")
    with rejects(str(tmp_path / "run/private")):
        dpft.train(NOTES_RUN, rows=NOTES, folder=tmp_path / "run", **pair())
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_is_kept_of_a_model_object_is_the_owners_alone(by_call: Run) -> None:
    kept = list((by_call.folder / "private/base_model").iterdir())
    assert kept and {path.stat().st_mode & 0o777 for path in kept} == {0o600}


def test_figures_can_be_copied_and_numbers_may_be_numpys() -> None:
    figures = dpft.account(
        num_examples=np.int64(1000), expected_batch_size=10, steps=2, noise_multiplier=np.float64(2)
    )
    assert copy.deepcopy(figures) == pickle.loads(pickle.dumps(figures)) == figures


@pytest.mark.slow
def test_a_refused_run_leaves_no_copy_of_the_model_object() -> None:
    Path("mine").mkdir()
    for folder in ("mine", "fresh/run"):
        with pytest.raises(dpft.InputError, match="column other"):
            words = [*NOTES_RUN, 'task.text="{other}"']
            dpft.train(words, rows=NOTES, folder=folder, **pair())
    assert list(Path("mine").rglob("*")) == [] and not Path("fresh").exists()


@pytest.mark.slow
def test_what_another_process_keeps_in_a_folder_stays(tmp_path: Path) -> None:
    theirs = tmp_path / "private/base_model/model.safetensors"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    with hold_run(tmp_path), rejects(str(tmp_path)):
        dpft.train(NOTES_RUN, rows=NOTES, folder=tmp_path, **pair())
    assert theirs.exists()


@pytest.mark.slow
def test_the_tutorials_program_of_a_model_object_runs_on_the_embedded_model() -> None:
    text = Path(dpft.__file__).parents[1].joinpath("docs/start/first-model.md").read_text()
    (program,) = re.findall(r"`frame` with a column `note`:\n\n```python\n(.*?)```", text, re.S)
    names: dict[str, Any] = {"dpft": dpft, "frame": pd.DataFrame(NOTES * 4), "other_rows": NOTES}
    names["model"] = AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL)
    names["tokenizer"] = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    exec(program, names)
    assert names["run"].epsilon <= 8 and len(names["notes"]) == 100
    assert names["scores"]["perplexity"] > 1
