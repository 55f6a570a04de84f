"""Rules 4, 6, 7, 8 and 11 of docs/dev/design.md: a run's private things are in private/ alone.

``here`` is a run in this process; ``processes``, for ``make test-slow``, is every command in a
process of its own, watched at each file event, with fresh homes, caches and temporary folders.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.slowness import slow
from tests.stories import planted, planted_run
from tests.stories.observed import open_to_others, quoting_error
from tests.stories.planted import FOREIGN, found, left_in, public_files
from tests.stories.planted_run import Story
from tests.stories.tiny import MARKER

pytestmark = pytest.mark.slow

SPOKEN = (
    rb"(?i)loss\b|gradient|clipped|signal.to|drawn|median|(examples|units)/s|\d:\d\d\b|\blengths?\b"
)
"""Words for what ε does not cover, and for times; none is in a line that a run says."""
NOT_PUBLIC_KEYS = re.compile(
    r"loss|gradient|clipped|batch_sizes?$|drawn|length|time|second|signal|norm$"
)
UNPICKLED = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".npy", ".npz", ".arrow")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return planted_run.told_here(tmp_path_factory.mktemp("here"))


@pytest.fixture(
    scope="module", params=["here", pytest.param("processes", marks=pytest.mark.exhaustive)]
)
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Story:
    if request.param == "here":
        return request.getfixturevalue("here")
    return planted_run.told_in_processes(tmp_path_factory.mktemp("processes"))


@pytest.fixture(scope="module")
def wanted(story: Story) -> planted.Needles:
    return planted.needles(story.root / "model")


def test_the_story_went_as_told(story: Story) -> None:
    refused = {"refused settings": 2, "refused records": 2}
    expected = {name: 0 for name in story.codes} | {"crash": 1, **refused}
    assert story.codes == expected, story.said
    assert b"expected_batch_size cannot change" in story.said["refused settings"]
    assert b"the training records that the run began with" in story.said["refused records"]


def test_the_markers_are_where_they_may_be(story: Story, wanted: planted.Needles) -> None:
    """So a search that finds none elsewhere could have found them."""
    assert {"marker", "foreign marker"} <= {*found(_bytes(story, "qa/train.csv"), wanted)}
    for name in ("predictions.jsonl", "samples.md", "traceback.txt"):
        assert "marker" in found((story.folder / "private" / name).read_bytes(), wanted), name


def test_trust_rule_11_no_file_outside_private_holds_a_record(
    story: Story, wanted: planted.Needles
) -> None:
    files = public_files(story.folder)
    files += story.root.glob("compared.html")  # of one of the stories
    assert len(files) > 10
    assert left_in(files, wanted) == {}


def test_trust_rule_11_no_cache_and_no_temporary_folder_holds_a_record(
    story: Story, wanted: planted.Needles
) -> None:
    assert left_in((path for path in story.outside.rglob("*") if path.is_file()), wanted) == {}
    temporary = next(story.outside.glob("tmpdir"), story.outside)
    assert not [path for path in temporary.rglob("*") if not path.is_dir()]


def test_trust_rule_7_no_command_says_what_a_record_holds(
    story: Story, wanted: planted.Needles
) -> None:
    heard = {name: held for name, said in story.said.items() if (held := found(said, wanted))}
    assert heard == {}


def test_trust_rule_7_a_crash_says_where_and_keeps_what_for_the_owner(story: Story) -> None:
    said, kept = story.said["crash"].decode(), (story.folder / "private/traceback.txt").read_text()
    assert "Traceback (most recent call last)" in said and "loop.py" in said
    assert "RuntimeError\n" in said and "KeyError\n" in said
    assert "private/traceback.txt" in said and "dpft train resume=run" in said
    for quoted in (f"RuntimeError: no such word: {MARKER}", "in the record of", "KeyError: "):
        assert quoted in kept


def test_trust_rule_7_what_is_private_is_for_the_owner_alone_at_every_moment(
    story: Story,
) -> None:
    assert story.faults == []
    assert open_to_others(story.folder) == {}


def test_trust_rule_4_no_generator_state_is_public_and_none_is_left(story: Story) -> None:
    pieces = _secret_pieces(json.loads(story.secrets))
    assert len(pieces) >= 3, "keys of sampling and dropout, state of noise"
    everything = [path for path in story.root.rglob("*") if path.is_file()]
    assert not [path for path in everything if path.name.startswith("generators")]
    for piece in pieces:
        needles = planted.secret_needles(piece)
        assert found(story.secrets.encode(), needles), "the search would find it"
        assert left_in(everything, needles) == {}
        assert not [name for name, said in story.said.items() if found(said, needles)]


def test_trust_rule_6_epsilon_stands_with_all_that_it_depends_on(story: Story) -> None:
    record = json.loads((story.folder / "privacy.json").read_text())
    assert record["accountant"] in {"prv", "pld", "rdp"}
    assert record["epsilon"] > record["epsilons"]["gdp"], "an estimate is never the headline"
    for name in ("report.md", "report.html"):
        text = (story.folder / name).read_text(encoding="utf-8")
        shown = re.search(r"ε = ([\d.]+)", text)
        assert shown and 0 <= float(shown[1]) - record["epsilon"] < 1e-3, "rounded up"
        plan = record["plan"]
        parts = [
            f"{record['delta']:.4g}", record["accountant"], "upper bound", plan["sampler"],
            plan["neighboring_relation"].replace("_", " "), plan["unit"], record["noise_source"],
            f"{record['steps_taken']} steps taken of {plan['steps']} planned",
            "ChaCha20", "float64", "2^-21", record["ledger"]["head"],
        ]  # fmt: skip
        assert [part for part in parts if part not in text] == [], name


def test_trust_rule_7_no_training_statistic_is_public(story: Story) -> None:
    lines = (story.folder / "private" / "diagnostics.jsonl").read_text().splitlines()
    steps = [entry for line in lines if "step" in (entry := json.loads(line))]
    signal = ("signal_norm", "noise_norm", "signal_to_noise")
    assert all(set(signal) <= set(entry) for entry in steps)
    numbers = [
        written.encode()
        for entry in steps
        for key in ("mean_loss", "median_gradient_norm", *signal)
        if (value := entry.get(key))
        # with fewer digits one would stand somewhere by chance
        for written in (f"{value:.8f}", repr(value)[:12])
    ]
    assert len(numbers) >= 20
    texts = [path.read_bytes() for path in public_files(story.folder)] + [*story.said.values()]
    assert not [number for number in numbers if any(number in text for text in texts)]
    named = re.compile(rb'clipped|mean_loss|gradient_norm"|drawn|signal_|noise_norm')
    at_hand = [path for path in public_files(story.folder) if path.parent == story.folder]
    assert not [path for path in at_hand if named.search(path.read_bytes())]
    public = [path for path in public_files(story.folder) if path.suffix in (".json", ".jsonl")]
    keys = {
        f"{path.name}: {key}"
        for path in public
        if path.parent == story.folder
        for line in ([path.read_text()] if path.suffix == ".json" else path.open())
        for key in _keys(json.loads(line))
    }
    planned = ("expected_batch_size", "max_grad_norm")
    files = ("privacy.json", "ledger.jsonl")
    allowed = {f"{file}: {key}" for file in files for key in planned}
    assert {key for key in keys if NOT_PUBLIC_KEYS.search(key)} - allowed == set()


def test_trust_rule_7_no_line_names_a_step_s_time_or_statistic(story: Story) -> None:
    for line in story.said["resume"].splitlines():
        if b"Writing model shards" not in line:  # of a library, about the released model
            assert not re.search(SPOKEN, line), line
    first, *lines = (story.folder / "ledger.jsonl").read_text().splitlines()
    assert set(json.loads(first)) == {"run_id", "schema_version", "previous", "plan", "clipper"}
    for line in lines:
        assert set(json.loads(line)) <= {"step", "mechanism", "previous", "closed", "released"}


def test_trust_rule_8_texts_and_scores_of_a_private_split_are_private(story: Story) -> None:
    names = {path.name for path in public_files(story.folder)}
    assert not {name for name in names if re.match(r"predictions|samples", name)}
    evaluations = json.loads((story.folder / "metrics.json").read_text())["evaluations"]
    assert [entry["split_is_public"] for entry in evaluations] == [False, False]
    marked = "computed on private held-out records, not covered by epsilon"
    assert all(entry["note"].startswith(marked) for entry in evaluations)
    own = json.loads((story.folder / "private" / "metrics.json").read_text())["evaluations"]
    scores = [value for entry in own for value in entry["metrics"].values()]
    scores = [value for value in scores if len(repr(value)) > 9]  # others stand anywhere
    assert len(scores) >= 2
    public = [path.read_bytes() for path in public_files(story.folder)]
    public += [said for name, said in story.said.items() if name != "eval"]
    assert not [v for v in scores if any(repr(v)[:9].encode() in content for content in public)]
    for name in ("report.md", "report.html"):
        assert "private/metrics.json" in (story.folder / name).read_text()
    assert not re.search(rb"(?i)bleu|perplexity|model-index|metrics:", story.said["export"])


def test_trust_rule_11_weights_are_safetensors_and_nothing_is_pickled(story: Story) -> None:
    assert (story.folder / "model" / "model.safetensors").exists()
    assert list(story.folder.glob("private/checkpoints/*/model.safetensors"))
    for path in (path for path in story.folder.rglob("*") if path.is_file()):
        assert path.suffix not in UNPICKLED, path
        assert not re.match(rb"\x80[\x02-\x05]|PK\x03\x04", path.read_bytes()[:4]), path


def test_trust_rule_11_vocabulary_and_lengths_are_not_those_of_the_records(story: Story) -> None:
    before, after = story.root / "model", story.folder / "model"
    assert (after / "tokenizer.json").read_bytes() == (before / "tokenizer.json").read_bytes()
    config, base = (json.loads((at / "config.json").read_text()) for at in (after, before))
    same = ("vocab_size", "n_positions", "id2label", "label2id")
    assert [config.get(key) for key in same] == [base.get(key) for key in same]
    lengths = [AutoTokenizer.from_pretrained(at).model_max_length for at in (after, before)]
    assert lengths[0] == lengths[1]


def test_trust_rule_11_other_records_leave_the_same_configuration(tmp_path: Path) -> None:
    """All but weights, scores and what is secret or drawn is equal, byte by byte.

    Digests are of the weights, which are noisy, and of the run's number, which is drawn.
    """
    seen = []
    for name, rows in {
        "marked": planted.training_rows(MARKER, FOREIGN),
        "plain": [("a", "b", f"customer {n % 21}", "") for n in range(planted.ROWS)],
    }.items():
        (tmp_path / name).mkdir()
        workspace = planted.make_planted(tmp_path / name)
        planted.write_csv(workspace.root / "qa" / "train.csv", rows)
        quick = ("privacy.noise_seed=1", "eval.enabled=false")
        outcome = workspace.run(*planted_run.RUN, *quick)
        assert outcome.code == 0, outcome.err
        files = public_files(workspace.root / "run")
        root = workspace.root / "run"
        drawn = re.compile(rb"[0-9a-f]{64}|[0-9a-f]{32}")
        seen.append({str(p.relative_to(root)): drawn.sub(b"DRAWN", p.read_bytes()) for p in files})
    for each in seen:
        assert each.pop("model/model.safetensors")
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("command", "arguments", "broken"),
    [
        ("train", planted_run.RUN[1:], "dpft.commands.train.encoding_of"),
        *slow(
            ("plan", (*planted.TRAINING, "train.steps=3"), "dpft.data.sources.file_rows"),
            ("eval", ("run=run",), "dpft.commands.evaluate.records_to_score"),
            ("generate", ("run=run", "prompts=prompts.jsonl"), "dpft.commands.generate.prompts_of"),
        ),
    ],
)
def test_trust_rule_7_no_commands_crash_quotes_a_record(
    here: Story,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    arguments: tuple[str, ...],
    broken: str,
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise quoting_error()

    monkeypatch.setattr(broken, breaks)
    given = [word.replace("run.dir=run", "run.dir=early") for word in arguments]
    outcome = here.workspace.run(command, *given)
    assert outcome.code == 1
    assert "RuntimeError\n" in outcome.err and MARKER not in outcome.out + outcome.err
    kept = {"train": "early", "eval": "run", "generate": "run"}.get(command)
    if kept:
        path = here.root / kept / "private" / "traceback.txt"
        assert MARKER in path.read_text()
        assert open_to_others(here.root / kept) == {}


def _bytes(story: Story, name: str) -> bytes:
    return (story.root / name).read_bytes()


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from _keys(part)
    if isinstance(value, list):
        for part in value:
            yield from _keys(part)


def _secret_pieces(state: object) -> list[bytes]:
    """Return 16 bytes of each key and generator state, those that differ most."""
    if isinstance(state, dict):
        return [piece for part in state.values() for piece in _secret_pieces(part)]
    if isinstance(state, list):
        return [piece for part in state for piece in _secret_pieces(part)]
    if not isinstance(state, str):
        return []
    raw = bytes.fromhex(state)
    pieces = [raw[at : at + 16] for at in range(0, len(raw) - 15, 16)]
    return [max(pieces, key=lambda piece: len(set(piece)))]
