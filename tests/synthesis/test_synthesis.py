"""A synthesis from the table to its pages; what spends, what is kept, and how it goes on."""

import contextlib
import csv
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import dpft
from dpft.data.raw_rows import memory_rows
from dpft.errors import InputError, RunError, StateError
from dpft.privacy.accounting import evaluate
from dpft.privacy.accounting.mechanism import Composition, SampledGaussian
from dpft.privacy.ledger import read_ledger
from dpft.reports.privacy_json import PrivateRun, read_privacy
from dpft.strict_model import read_model
from dpft.synthesis import command, generate, plan, records
from dpft.synthesis.histogram import Condition
from tests.rejections import rejects
from tests.slowness import slow, slow_but
from tests.stories.tiny import make_workspace
from tests.synthesis.tables import CITIES, SCHEMA, visitors, write_csv

QUICK = (
    "model=tiny", "model.path=model", "train.steps=2", "train.expected_batch_size=8",
    "train.num_threads=1",
)  # fmt: skip
EPS = 3.0


@pytest.fixture(scope="module", autouse=True)
def _shared(shared_accounting: None) -> None:
    """Every synthesis here shares its accountants."""


@pytest.fixture(scope="module", autouse=True)
def _beside_a_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The working folder has a model ``model`` of one layer."""
    with contextlib.chdir(make_workspace(tmp_path_factory.mktemp("beside")).root):
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data")
    (place / "notes.schema.yaml").write_text(yaml.safe_dump(SCHEMA, sort_keys=False))
    return write_csv(place / "notes.csv", visitors())


@pytest.fixture(scope="module")
def made(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dpft.Synthesized:
    folder = tmp_path_factory.mktemp("made") / "run"
    return dpft.synthesize(
        data, [*QUICK, "eval.held_out=0.3"], privacy={"eps": EPS, "share": 0.3}, folder=folder,
        condition=["city", "smoker"], num=12,
    )  # fmt: skip


@pytest.mark.slow
def test_every_row_is_one_and_shares_are_the_histograms(made: dpft.Synthesized) -> None:
    rows = list(csv.DictReader(made.path.open()))
    assert [row["customer_id"] for row in rows] == [str(number) for number in range(1, 13)]
    assert list(rows[0]) == ["customer_id", "city", "age", "smoker", "note"]
    for row in rows:
        assert row["city"] in CITIES and 18 <= int(row["age"]) <= 99
        assert row["smoker"] in ("true", "false")
    counts = json.loads((made.folder / "counts.json").read_text())["counts"]
    wanted = command.rows_per_cell(command.cell_shares(counts), 12)
    found = Counter((row["city"], row["smoker"]) for row in rows)
    cells = [(city, flag) for city in CITIES for flag in ("true", "false")]
    assert [found[cell] for cell in cells] == wanted
    assert made.rows.num_rows == 12 and len(made.to_pandas()) == 12


@pytest.mark.slow
def test_both_parts_are_one_epsilon_and_the_ledgers_say_so(made: dpft.Synthesized) -> None:
    """By PLD of both mechanisms, read from the ledgers alone; another accountant agrees."""
    said = read_model(made.folder / "synthesis.json", records.Synthesis)
    assert [part.name for part in said.parts] == ["histogram", "training"]
    histogram, training = (read_ledger(made.folder / name) for name in
                           ("ledger.jsonl", "training/ledger.jsonl"))  # fmt: skip
    assert (histogram.steps, histogram.closed, training.steps, training.closed) == (
        1,
        True,
        2,
        True,
    )
    noise = histogram.mechanisms[0].noise_multiplier
    step = training.mechanisms[0]
    parts = (
        SampledGaussian(noise_multiplier=noise, sample_rate=1, steps=1, delta=said.delta),
        SampledGaussian(
            noise_multiplier=step.noise_multiplier, sample_rate=8 / 60, steps=2,
            delta=said.delta,
        ),
    )  # fmt: skip
    pld, rdp = (evaluate(name, Composition(parts=parts)) for name in ("pld", "rdp"))
    assert said.epsilon == pytest.approx(pld.upper)
    assert EPS - 0.02 <= said.epsilon <= EPS <= rdp.upper + 1e-9 or said.epsilon <= rdp.upper
    assert said.parts[0].epsilon == pytest.approx(0.3 * EPS, rel=1e-3)
    assert said.parts[0].epsilon + said.parts[1].epsilon > said.epsilon
    assert said.delta == 1e-3 and said.num_examples == 60


@pytest.mark.slow
def test_the_trainings_ledger_alone_has_the_whole_epsilon(
    made: dpft.Synthesized, tmp_path: Path
) -> None:
    """Its first line names the histogram; whoever also reads the histogram's counts it once."""
    said = read_model(made.folder / "synthesis.json", records.Synthesis)
    (tmp_path / "alone").mkdir()
    shutil.copy(made.folder / "training/ledger.jsonl", tmp_path / "alone")
    ways = [{"run": made.folder}, {"run": tmp_path / "alone"}, {"runs": [made.folder]}]
    for given in (*ways, {"runs": [tmp_path / "alone"]}, {"runs": [made.folder / "training"]}):
        found = dpft.account(**given)
        assert found.epsilon == said.epsilon and found.delta == said.delta, given
    alone = said.parts[1].epsilon
    assert said.epsilon > alone, "the histogram costs something"
    twice = dpft.account(runs=[made.folder, tmp_path / "alone"]).epsilon
    assert twice > said.epsilon, "a copy's steps count again"
    steps = [each["steps"] for each in dpft.account(run=made.folder).mechanisms]
    assert sorted(steps) == [1, 2], "the histogram, and the training"


@pytest.mark.slow
def test_the_trainings_own_record_states_the_whole_epsilon_and_no_smaller_one(
    made: dpft.Synthesized, tmp_path: Path
) -> None:
    """Who reads the training's folder alone must not take its steps' epsilon for the table's."""
    said = read_model(made.folder / "synthesis.json", records.Synthesis)
    training = shutil.copytree(made.folder / "training", tmp_path / "training")
    privacy = read_privacy(training / "privacy.json")
    assert isinstance(privacy, PrivateRun) and privacy.plan.counts is not None
    assert privacy.epsilon == pytest.approx(said.epsilon, abs=1e-9) and privacy.delta == said.delta
    counts, histogram = privacy.plan.counts, said.parts[0]
    assert (counts.lines, counts.head) == (histogram.ledger.lines, histogram.ledger.head)
    assert counts.mechanism.noise_multiplier == histogram.noise_multiplier
    assert privacy.epsilon_curve is None and set(privacy.epsilons) == {"pld", "rdp"}
    alone, whole = (f"{each:.3f}" for each in (said.parts[1].epsilon, said.epsilon))
    assert alone != whole
    for name in ("report.md", "report.html", "privacy.json"):
        text = (training / name).read_text()
        assert whole in text and alone not in text, name
    assert "histogram of its synthesis together" in (training / "report.md").read_text()


@pytest.mark.slow
def test_what_is_public_says_nothing_of_real_rows(made: dpft.Synthesized) -> None:
    public = (made.folder / "report.html").read_text()
    assert "controls" not in public and "for the owner" not in public
    assert "visitor" not in public, "no text of a row"
    private = (made.folder / "private/report.html").read_text()
    assert "only for the owner of the data" in private
    for title in ("In short", "Columns: ", "Pairs of columns", "Copies of single", "Column age"):
        assert title in private, title
    for name in ("report.html", "measures.json", "table_key"):
        assert (made.folder / "private" / name).stat().st_mode & 0o077 == 0
    for path in made.folder.rglob("*"):
        if path.is_file() and "private" not in path.parts and path.suffix != ".safetensors":
            assert b"who smokes here." not in path.read_bytes(), path


@pytest.mark.slow
@pytest.mark.usefixtures("uncalibrated")
def test_controls_are_in_neither_part(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are rows left out; the public number counts all of them. Texts count as it was said."""
    seen: dict[str, Any] = {}

    def counted(self: Any, rows: Any) -> Any:
        seen["histogram"] = list(rows)
        return count(self, seen["histogram"])

    def run(train: Any, folder: Path, counts: Any) -> None:
        seen["training"] = list(memory_rows("train"))
        seen["command"] = train
        raise KeyboardInterrupt

    count = Condition.count
    monkeypatch.setattr(Condition, "count", counted)
    monkeypatch.setattr(command, "train", run)
    with pytest.raises(KeyboardInterrupt):
        dpft.synthesize(
            data, [*QUICK, "eval.held_out=0.5"], privacy={"eps": EPS, "unit": "customer_id",
            "share": 0.5}, condition=["city"], folder=tmp_path / "run", text_weight=3,
        )  # fmt: skip
    # names and values by turns: age, smoker, note
    assert seen["command"].task.json_weights == (1, 1, 1, 1, 1, 3)
    units = {unit for unit, _ in seen["histogram"]}
    assert 0 < len(units) < 30
    assert {row.values["customer_id"] for row in seen["training"]} == units
    assert seen["command"].privacy.num_examples == 30, "units, controls among them"
    assert seen["command"].privacy.unit == "customer_id"
    assert seen["command"].eval.enabled is False


@pytest.fixture
def uncalibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare a test that never trains the search for the noise."""
    monkeypatch.setattr(plan, "training_noise", lambda *_, **__: 1.0)


class Broken(Exception):
    """Stands for a crash."""


def broken(*_: Any, **__: Any) -> Any:
    raise Broken


@pytest.mark.slow
@pytest.mark.parametrize(
    "place, kept",
    [
        ((command, "train"), ["counts.json", "ledger.jsonl"]),
        ((command, "generate_rows"), ["counts.json", "ledger.jsonl", "training"]),
        ((command, "write_outcome"), ["blocks", "counts.json", "ledger.jsonl", "training"]),
    ],
    ids=["before training", "before rows", "before pages"],
)
def test_it_goes_on_from_any_part_and_draws_no_noise_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[Any, str],
    kept: list[str], made: dpft.Synthesized,
) -> None:  # fmt: skip
    folder = tmp_path / "run"
    shutil.copytree(made.folder, folder)
    for name in ("synthesis.json", "report.html", "synthetic.csv", "private/report.html",
                 "private/measures.json"):  # fmt: skip
        (folder / name).unlink()
    if "training" not in kept:
        shutil.rmtree(folder / "training")
    before = {name: (folder / name).read_bytes() for name in ("counts.json", "ledger.jsonl")}
    with monkeypatch.context() as patched:
        patched.setattr(*place, broken)
        with pytest.raises(Broken):
            dpft.synthesize(overrides=[f"resume={folder}"])
    public = sorted(path.name for path in folder.iterdir() if path.name not in
                    ("private", "schema.yaml", "synthesis.yaml"))  # fmt: skip
    assert public == kept
    monkeypatch.setattr(command, "noisy_counts", broken)
    again = dpft.synthesize(overrides=[f"resume={folder}"])
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert again.rows.num_rows == 12
    if "training" in kept:
        assert again.path.read_bytes() == made.path.read_bytes()
        assert again.statement.epsilon == made.statement.epsilon
    assert not (folder / "blocks").exists()


def begun(data: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *place: Any) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(*place, broken)
        with pytest.raises(Broken):
            dpft.synthesize(
                data, [*QUICK, "eval.held_out=0.5"], privacy={"eps": EPS, "share": 0.5},
                condition=["city"], folder=folder,
            )  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("uncalibrated")
def test_the_ledgers_line_is_there_before_noise_is_drawn(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash in between leaves it spent: noise is not drawn a second time."""
    begun(data, tmp_path / "run", monkeypatch, command, "noisy_counts")
    assert read_ledger(tmp_path / "run/ledger.jsonl").steps == 1
    with pytest.raises(StateError, match="counts.json"):
        dpft.synthesize(overrides=[f"resume={tmp_path / 'run'}"])
    assert not (tmp_path / "run/counts.json").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("uncalibrated")
def test_a_crash_before_the_line_spends_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(data, tmp_path / "run", monkeypatch, command.Ledger, "append")
    monkeypatch.setattr(command, "train", broken)
    with pytest.raises(Broken):
        dpft.synthesize(overrides=[f"resume={tmp_path / 'run'}"])
    assert read_ledger(tmp_path / "run/ledger.jsonl").steps == 1


def _counts(folder: Path, change: Any) -> None:
    content = json.loads((folder / "counts.json").read_text())
    change(content["counts"])
    (folder / "counts.json").write_text(json.dumps(content))


def _begun_training(folder: Path) -> None:
    (folder / "training").mkdir()
    for name in ("counts.json", "ledger.jsonl"):
        (folder / name).unlink()


CHANGES: dict[str, tuple[Any, str]] = {
    "counts and ledger are gone": (_begun_training, "counts.json"),
    "a count is another": (lambda f: _counts(f, lambda c: c.__setitem__(0, 9.0)), "counts.json"),
    "the ledger is gone": (lambda f: (f / "ledger.jsonl").unlink(), "ledger.jsonl"),
    "the key is gone": (lambda f: (f / "private/table_key").unlink(), "table_key"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("uncalibrated")
@pytest.mark.parametrize("what", slow_but(["a count is another"], CHANGES))
def test_what_was_changed_in_between_is_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    change, file = CHANGES[what]
    begun(data, tmp_path / "run", monkeypatch, command, "train")
    change(tmp_path / "run")
    with pytest.raises(StateError, match=file):
        dpft.synthesize(overrides=[f"resume={tmp_path / 'run'}"])


@pytest.mark.slow
@pytest.mark.usefixtures("uncalibrated")
def test_other_rows_are_refused_when_it_goes_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = shutil.copytree(data.parent, tmp_path / "data") / data.name
    begun(copied, tmp_path / "run", monkeypatch, command, "train")
    rows = visitors()
    rows[3]["age"] = "55" if rows[3]["age"] != "55" else "56"
    write_csv(copied, rows)
    with rejects("resume"):
        dpft.synthesize(overrides=[f"resume={tmp_path / 'run'}"])


@pytest.mark.slow
def test_a_finished_synthesis_without_its_ledger_is_refused(
    made: dpft.Synthesized, tmp_path: Path
) -> None:
    for name in ("ledger.jsonl", "training/ledger.jsonl"):
        folder = shutil.copytree(made.folder, tmp_path / name.replace("/", "-"))
        (folder / name).unlink()
        with pytest.raises(StateError, match="ledger.jsonl"):
            dpft.synthesize(overrides=[f"resume={folder}"])


@pytest.mark.slow
def test_another_synthesis_in_the_folder_is_refused(made: dpft.Synthesized, data: Path) -> None:
    with rejects("hydra.run.dir", str(made.folder)) as faults:
        dpft.synthesize(data, QUICK, privacy={"eps": EPS}, folder=made.folder)
    assert "resume=" in faults[0].hint


@pytest.mark.slow
def test_without_a_condition_training_has_all_of_epsilon(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def run(train: Any, folder: Path, counts: Any) -> None:
        seen.append(train.privacy.noise_multiplier)
        raise Broken

    monkeypatch.setattr(command, "train", run)
    for number, condition in enumerate(([], ["city"])):
        with pytest.raises(Broken):
            dpft.synthesize(
                data, QUICK, privacy={"eps": EPS, "share": 0.5}, folder=tmp_path / str(number),
                condition=condition,
            )  # fmt: skip
    assert not (tmp_path / "0/ledger.jsonl").exists()
    assert seen[0] < seen[1], "what the histogram spends, training makes up for"
    noise = dpft.account(
        num_examples=60, expected_batch_size=8, steps=2, eps=EPS, delta=1e-3, accountant="pld"
    ).mechanism.noise_multiplier
    assert seen[0] == pytest.approx(noise, rel=1e-3)


BAD: dict[str, tuple[Mapping[str, Any], str]] = {
    "no schema": ({"schema": None, "data": "other.csv"}, "schema"),
    "num is 0": ({"num": 0}, "num"),
    "a unit that is no column": ({"unit": "patient"}, "privacy.unit"),
    "a condition of texts": ({"condition": ["note"]}, "condition"),
    "all noise": ({"condition": ["city"], "share": 0.001}, "condition"),
    "an ending": ({"to": "rows.xls"}, "to"),
    "a folder that is none": ({"to": "nowhere/rows.csv"}, "to"),
    "noise in place of eps": ({"eps": None, "noise_multiplier": 1}, "privacy.eps"),
    "no room in the model": ({"room": 400}, "model"),
    "a schema that is none": ({"schema": "x.yaml"}, "schema"),
    "adapters of no layer": (
        {"method": "lora", "model.lora_targets": ["nowhere"]},
        "method.targets",
    ),
    "an ending of the data": ({"data": "notes.xlsx"}, "data"),
    "a batch above the data": ({"batch": 100}, "train.expected_batch_size"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("uncalibrated")
@pytest.mark.parametrize(
    "what",
    slow_but(
        ["num is 0", "a unit that is no column", "noise in place of eps", "a schema that is none"],
        BAD,
    ),
)
def test_bad_input_is_one_sentence_before_noise_is_drawn(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    changed, key = BAD[what]
    monkeypatch.setattr(command, "noisy_counts", broken)
    monkeypatch.setattr(command, "train", broken)
    given = dict(changed)
    shutil.copytree(data.parent, tmp_path / "data")
    path = tmp_path / "data" / given.pop("data", data.name)
    if path.suffix != data.suffix or path.name == "other.csv":
        shutil.copy(data, path)
    schema: Any = {**SCHEMA, "columns": {**SCHEMA["columns"]}}
    if (room := given.pop("room", None)) is not None:
        schema["columns"]["note"] = {"type": "text", "max_tokens": room}
    privacy = {"eps": EPS, **{k: given.pop(k) for k in ("unit", "share", "eps", "noise_multiplier")
                              if k in given}}  # fmt: skip
    privacy = {key: value for key, value in privacy.items() if value is not None}
    words = [*QUICK[:3], f"train.expected_batch_size={given.pop('batch', 8)}"]
    with rejects(key):
        dpft.synthesize(
            path, words, schema=given.pop("schema", schema), privacy=privacy,
            folder=tmp_path / "run", **given,
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_unit_cannot_take_the_place_of_what_is_learned(tmp_path: Path) -> None:
    """Its values, which are never learned, would be the training's targets."""
    rows = [{**row, "__row__": row["customer_id"]} for row in visitors()]
    schema = {"columns": {**SCHEMA["columns"], "__row__": {"type": "id"}}}
    with rejects("privacy.unit", "__row__"):
        dpft.synthesize(rows, QUICK, schema=schema, privacy={"eps": EPS, "unit": "__row__"},
                        folder=tmp_path / "run")  # fmt: skip
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("uncalibrated")
def test_what_decoding_lacks_is_refused_before_anything_is_spent(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "noisy_counts", broken)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with rejects() as faults:
        dpft.synthesize(
            data, QUICK, privacy={"eps": EPS}, condition=["city"], folder=tmp_path / "run"
        )
    assert faults[0].hint == "pip install 'dpft[synthesis]'"
    assert not (tmp_path / "run").exists()


TABLES: dict[str, tuple[bytes, str]] = {
    "ragged": (b"city,age\nRome,42,x\n", "{}, line 2"),
    "latin-1": ("city,age\nRome,42\nZ\u00fcrich,42\n".encode("latin-1"), "{}, line 3"),
    "three rows": (b"city,age\n" + 3 * b"Rome,42\n", "data"),
    "nothing": (b"", "data"),
    "a column too few": (b"city\nRome\n", "columns"),
    "a column too many": (b"city,age,phone\nRome,42,1\n", "columns"),
    "a value outside": (b"city,age\nRome,42\nRome,17\n", "age"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("uncalibrated")
@pytest.mark.parametrize("what", slow_but(["latin-1", "a value outside"], TABLES))
def test_a_bad_table_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    content, key = TABLES[what]
    monkeypatch.setattr(command, "train", broken)
    (tmp_path / "t.csv").write_bytes(content)
    schema = {"columns": {"city": {"type": "category", "values": CITIES},
                          "age": {"type": "integer", "minimum": 18, "maximum": 99}}}  # fmt: skip
    with rejects(key.format(tmp_path / "t.csv")) as faults:
        dpft.synthesize(tmp_path / "t.csv", QUICK, schema=schema, privacy={"eps": EPS},
                        folder=tmp_path / "run")  # fmt: skip
    assert len(faults) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("uncalibrated")
@pytest.mark.parametrize("invalid, left", [("skip", 20), *slow(("missing", 24))])
def test_rows_that_do_not_fit_change_no_public_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invalid: str, left: int
) -> None:
    """A byte-order mark is none of them."""
    seen: list[Any] = []

    def run(train: Any, folder: Path, counts: Any) -> None:
        seen.append((train.privacy.num_examples, len(list(memory_rows("train")))))
        raise Broken

    monkeypatch.setattr(command, "train", run)
    lines = ["\ufeffcity,age", *20 * ["Rome,42"], *4 * ["Rome,17"], *2 * ["Riga,42"]]
    (tmp_path / "t.csv").write_text("\n".join(lines), encoding="utf-8")
    schema = {"columns": {"city": {"type": "category", "values": CITIES},
                          "age": {"type": "integer", "minimum": 18, "maximum": 99,
                                  "missing": True}}}  # fmt: skip
    with pytest.raises(Broken):
        dpft.synthesize(
            tmp_path / "t.csv", [*QUICK, "eval.held_out=null"], schema=schema,
            privacy={"eps": EPS}, folder=tmp_path / "run", invalid=invalid,
        )  # fmt: skip
    assert seen == [(26, left)]


@pytest.mark.slow
def test_rows_in_memory_and_a_rule_by_rejection(tmp_path: Path) -> None:
    schema = {**SCHEMA, "rules": ["age >= 30"]}
    rows = [{**row, "age": str(max(30, int(row["age"])))} for row in visitors()]
    found = dpft.synthesize(
        rows, [*QUICK, "eval.held_out=null", "privacy=none", "retries=9"], schema=schema, num=20,
        folder=tmp_path / "run",
    )  # fmt: skip
    assert all(row["age"] in map(str, range(30, 100)) for row in found.rows)
    said = read_model(tmp_path / "run/synthesis.json", records.Synthesis)
    assert said.private is False and said.epsilon is None and said.parts == ()
    assert said.rejected.get("rule age >= 30", 0) > 0
    assert said.rows + said.left_out == 20
    assert "NOT PRIVATE" in (tmp_path / "run/report.html").read_text()
    assert not (tmp_path / "run/private/report.html").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("uncalibrated")
def test_a_table_of_no_row_is_said_and_not_written(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a rule that the model never keeps."""
    none = generate.Drawn(rows=(), unparsed=0, rejected={"rule age > 98": 72})
    monkeypatch.setattr(command, "train", lambda *_, **__: None)
    monkeypatch.setattr(command, "generate_rows", lambda *_: none)
    with pytest.raises(RunError, match="12 rows .* 6 attempts"):
        dpft.synthesize(data, QUICK, privacy={"eps": EPS}, folder=tmp_path / "run", num=12)
    assert not (tmp_path / "run/synthetic.csv").exists()


@pytest.mark.slow
def test_files_and_answer_are_as_their_schemas_have_them(
    made: dpft.Synthesized, capsys: pytest.CaptureFixture[str]
) -> None:
    from jsonschema import Draft202012Validator

    from docs.tools.reference.forms import schema
    from dpft.cli.main import main

    assert main(["synthesize", f"resume={made.folder}", "output=json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    for name, content in {
        "synthesis": json.loads((made.folder / "synthesis.json").read_text()),
        "synthesis_measures": json.loads((made.folder / "private/measures.json").read_text()),
        "synthesize": printed,
    }.items():
        assert [*Draft202012Validator(schema(name)).iter_errors(content)] == [], name
    assert printed["statement"]["rows"] == 12
    for line in (made.folder / "ledger.jsonl").read_text().splitlines():
        assert [*Draft202012Validator(schema("ledger_line")).iter_errors(json.loads(line))] == []
    assert main(["synthesize", f"resume={made.folder}"]) == 0
    shown = capsys.readouterr().out
    assert "differentially private" in shown and "private page" in shown
    assert "controls" not in shown, "a pipe is not told what is of private rows"


def test_a_restart_by_slurm_must_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would pay for a second histogram and a second training."""
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with pytest.raises(InputError, match="resume"):
        dpft.synthesize([{"city": "Rome"}], schema={"columns": {}}, privacy={"eps": 3})


@pytest.mark.slow
def test_a_draft_lies_in_private_and_says_what_to_do(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from dpft.cli.main import main

    monkeypatch.chdir(tmp_path)
    shutil.copy(data, tmp_path / "other.csv")
    words = ["synthesize", "data=other.csv", "model=tiny"]
    assert main([*words, "schema=draft", "hydra.run.dir=drafts"]) == 0
    path = tmp_path / "drafts/private/draft.schema.yaml"
    assert path.stat().st_mode & 0o077 == 0 and "A DRAFT" in path.read_text()
    assert [each.name for each in (tmp_path / "drafts").iterdir()] == ["private"]
    assert main([*words, "privacy.eps=1"]) == 2


@pytest.mark.slow
def test_a_table_that_is_not_there_is_said_before_any_model_is_looked_for(tmp_path: Path) -> None:
    schema = tmp_path / "rows.schema.yaml"
    schema.write_text("columns: {city: {type: category, values: [Oslo, Rome]}}\n")
    with rejects("data", str(tmp_path / "gone.csv")):
        dpft.synthesize(
            tmp_path / "gone.csv", ["model=local", "model.path=gone"], schema=schema,
            privacy={"eps": EPS}, folder=tmp_path / "run",
        )  # fmt: skip
