import csv
import gzip
import json
import os
import socket
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants
from omegaconf import OmegaConf

from dpft.data import sources
from dpft.data.sources import (
    fetch,
    has_split,
    has_training_split_alone,
    load_examples,
    read_examples,
)
from dpft.errors import InputError
from dpft.tasks.base import SPLITS
from dpft.tasks.custom import CustomLabels, CustomTexts
from dpft.tasks.e2e import E2ETask
from dpft.tasks.glue import GlueTask
from tests.data.conftest import load_with_units
from tests.rejections import rejects
from tests.slowness import slow

RECORD = "name[Aromi], eatType[coffee shop], near[Café Rouge]"
REFERENCE = 'Near "Café Rouge", Aromi is\na coffee shop.'
SECRET = "secret"


def e2e(folder: Path, **settings: object) -> E2ETask:
    aliases = {"mr": "meaning_representation", "ref": "human_reference"}
    return E2ETask(name="e2e", data_dir=str(folder), column_aliases=aliases, **settings)


def json_line(**columns: object) -> str:
    return json.dumps(columns, ensure_ascii=False) + "\n"


GOOD_LINE = json_line(meaning_representation=RECORD, human_reference=REFERENCE)


def write_csv(path: Path, header: tuple[str, str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, (RECORD, REFERENCE), (RECORD, "Aromi.")])


def write_jsonl(path: Path) -> None:
    path.write_text(GOOD_LINE + "\n" + GOOD_LINE.replace("Aromi is", "it is"), encoding="utf-8")


def write_json(path: Path) -> None:
    path.write_text(f"[\n{GOOD_LINE},\n{GOOD_LINE}]", encoding="utf-8")


def write_jsonl_gz(path: Path) -> None:
    path.write_bytes(gzip.compress((GOOD_LINE * 2).encode()))


@pytest.mark.parametrize(
    ("file", "write"),
    [
        ("train.csv", lambda path: write_csv(path, ("meaning_representation", "human_reference"))),
        ("train.csv", lambda path: write_csv(path, ("mr", "ref"))),
        ("train.jsonl", write_jsonl),
        ("train.jsonl.gz", write_jsonl_gz),
        ("train.json", write_json),
    ],
)
def test_each_format_gives_the_same_examples(tmp_path, file, write):
    write(tmp_path / file)
    first, second = load_examples(e2e(tmp_path), "train")
    assert first.prompt == "name : Aromi | Type : coffee shop | near : Café Rouge\n"
    assert first.target == REFERENCE
    assert first.group == second.group == RECORD


@pytest.mark.parametrize(
    "bad_line",
    [
        json_line(meaning_representation=RECORD, text=SECRET),
        json_line(meaning_representation=RECORD, human_reference=[SECRET]),
        json_line(mr=f"{SECRET}[x", ref="y"),
        '{"mr": "secret\\ud800", "ref": "y"}\n',
        '{"mr": "secret"\n',
        '["secret"]\n',
        "[" * 100_000 + "\n",
    ],
)
def test_a_bad_json_row_is_named_by_file_and_line_and_never_quoted(tmp_path, bad_line):
    (tmp_path / "train.jsonl").write_text(GOOD_LINE + "\n" + bad_line, encoding="utf-8")
    with rejects(f"{tmp_path / 'train.jsonl'}, line 3") as faults:
        load_examples(e2e(tmp_path), "train")
    assert SECRET not in str(faults[0])


@pytest.mark.parametrize("bad_line", ["secret\n", "name[x],secret,more\n", 'name[x],"secret'])
def test_a_bad_csv_row_is_named_by_the_line_it_starts_on(tmp_path, bad_line):
    good = f'"{RECORD}","two\nlines"\n'
    (tmp_path / "train.csv").write_text("mr,ref\n" + good + bad_line, encoding="utf-8")
    with rejects(f"{tmp_path / 'train.csv'}, line 4") as faults:
        load_examples(e2e(tmp_path), "train")
    assert SECRET not in str(faults[0])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.jsonl", b'{"mr": "secret"\n'),
        ("train.jsonl", b'{"mr": "secret[", "ref": "secret"}\n'),
        ("train.jsonl", b'"secret \xff"\n'),
        ("train.csv", b'mr,ref\n"secret'),
    ],
)
def test_a_refused_row_leaves_no_content_in_the_traceback(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_examples(e2e(tmp_path), "train")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_local_files_leave_no_copy_in_a_library_cache(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    for variable in ("HOME", "HF_HOME", "XDG_CACHE_HOME", "DPFT_CACHE"):
        monkeypatch.setenv(variable, str(home))
    write_jsonl(tmp_path / "train.jsonl")
    load_examples(e2e(tmp_path), "train")
    assert list(home.iterdir()) == []


def test_an_unreachable_hub_is_rejected_at_once_with_a_task_that_needs_none(monkeypatch):
    monkeypatch.setattr(sources, "hub_is_reachable", lambda: False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: pytest.fail("asked the network"))
    with rejects("task.source", "hub") as faults:
        load_examples(E2ETask(name="e2e", source="hub", hub_name="tuetschek/e2e_nlg"), "train")
    assert "task.source=embedded" in faults[0].hint


def test_offline_mode_without_a_cached_copy_is_rejected(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    name = "nobody/nothing-of-the-kind"
    with rejects("task.hub_name", name):
        load_examples(E2ETask(name="e2e", source="hub", hub_name=name), "train")


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"source": "local"}, "task.data_dir"),
        ({"data_dir": "nowhere"}, "task.data_dir"),
        ({"data_dir": "."}, "task.data_dir"),
        ({"data_dir": __file__}, "task.data_dir"),
        ({"source": "hub"}, "task.hub_name"),
        ({"source": "hub", "hub_name": "."}, "task.hub_name"),
        ({"source": "url"}, "task.urls.train"),
        ({"source": "url", "urls": {"train": "https://x.org/train.xlsx"}}, "task.urls.train"),
    ],
)
def test_a_place_without_data_is_rejected_by_its_key(tmp_path, monkeypatch, settings, key):
    monkeypatch.chdir(tmp_path)
    with rejects(key):
        load_examples(E2ETask(name="e2e", **settings), "train")


@pytest.mark.slow
def test_the_embedded_sample_has_every_split_and_its_public_number_of_rows():
    task = E2ETask(name="e2e", source="embedded")
    rows = {split: len(load_examples(task, split)) for split in SPLITS}
    yaml = OmegaConf.load(Path(sources.__file__).parents[2] / "conf/task/e2e.yaml")
    assert rows["train"] == yaml.embedded_num_train_examples
    assert min(rows.values()) > 0


def glue(folder: Path, **settings: object) -> GlueTask:
    return GlueTask(
        name="sst2", data_dir=str(folder), labels=("negative", "positive"), objective="cls",
        split_parts={"validation": ("validation_a", "validation_b")}, **settings,
    )  # fmt: skip


def test_a_split_is_read_by_its_parts(tmp_path):
    (tmp_path / "validation_b.jsonl").write_text(json_line(sentence="fine", label=1))
    assert len(load_examples(glue(tmp_path), "validation_b")) == 1
    with rejects("task.data_dir"):
        load_examples(glue(tmp_path), "validation_a")
    with rejects("split", "validation"):
        load_examples(glue(tmp_path), "validation")


QA = "question,answer,customer_id\nWhy?,So.,7\nHow?,,8\n"


def custom(place: Path, **settings: object) -> CustomTexts:
    forms = {"prompt_template": "{question} ", "target_template": "{answer}"}
    return CustomTexts(**{"name": "custom", "data_dir": str(place), **forms, **settings})


def test_your_own_data_may_be_one_file_or_a_folder(tmp_path):
    (tmp_path / "qa.csv").write_text(QA)
    (tmp_path / "test.csv").write_text(QA)
    alone, folder = custom(tmp_path / "qa.csv"), custom(tmp_path)
    assert [e.target for e in load_examples(alone, "train")] == ["So.", ""]
    assert load_examples(folder, "test") == load_examples(alone, "train")
    assert (has_training_split_alone(alone), has_training_split_alone(folder)) == (True, False)
    assert [has_split(folder, split) for split in ("train", "test")] == [False, True]
    with rejects("task.data_dir", str(tmp_path / "qa.csv")) as faults:
        load_examples(alone, "test")
    assert faults[0].hint == "eval.held_out=0.1"


@pytest.mark.parametrize(
    ("name", "content", "settings", "key"),
    [
        ("qa.csv", QA, {"target_template": "{reply}"}, "{}, lines 2 and 3"),
        ("qa.csv", "secret,a secret\nWhy?,So.\n", {}, "{}, line 2"),
        ("qa.csv", "question,answer\nsecret\n", {}, "{}, line 2"),
        ("qa.jsonl", '{"question": "secret", "answer": null}\n', {}, "{}, line 1"),
        ("qa.txt", QA, {}, "task.data_dir"),
        ("qa.csv", "", {}, "task.data_dir"),
    ],
)
def test_a_file_that_does_not_fit_is_named_and_never_quoted(tmp_path, name, content, settings, key):
    (tmp_path / name).write_text(content)
    with rejects(key.format(tmp_path / name)) as faults:
        load_examples(custom(tmp_path / name, **settings), "train")
    assert name in str(faults[0]) and SECRET not in str(faults[0])


REAL_E2E = Path(os.environ.get("DPFT_E2E_DIR", Path(__file__).parents[3] / "shared/data/e2e"))


@pytest.mark.slow
@pytest.mark.skipif(not REAL_E2E.is_dir(), reason="the real E2E files are not here (DPFT_E2E_DIR)")
@pytest.mark.parametrize(
    ("split", "rows", "groups"),
    [("validation", 4672, 547), *slow(("train", 42061, 4862), ("test", 4693, 630))],
)
def test_the_real_e2e_files_have_their_published_sizes(split, rows, groups):
    examples = load_examples(E2ETask(name="e2e", data_dir=str(REAL_E2E)), split)
    assert (len(examples), len({example.group for example in examples})) == (rows, groups)


def owned_line(owner: object) -> str:
    return json_line(meaning_representation=RECORD, human_reference=REFERENCE, customer=owner)


def test_a_rows_unit_comes_with_each_of_its_examples_as_text(tmp_path):
    owners = ["ann", " 7", 7, "ann "]
    (tmp_path / "train.jsonl").write_text("".join(map(owned_line, owners)), encoding="utf-8")
    examples, units = load_with_units(e2e(tmp_path), "train", "customer")
    assert units == ["ann", "7", "7", "ann"]
    assert examples == load_examples(e2e(tmp_path), "train")


MESSY = "text,label\nfine,good\nno,\n,bad\n" + "off,worse\n" * 12 + "a,good,more\nlast,bad\n"


def labeled(path: Path, **settings: object) -> CustomLabels:
    given = {"text_template": "{text}", "label_column": "label", "labels": ("bad", "good")}
    return CustomLabels(name="custom", data_dir=str(path), **given, **settings)


def test_faulty_rows_are_refused_together_with_ten_lines_of_each_kind(tmp_path):
    path = tmp_path / "messy.csv"
    path.write_text(MESSY)
    with rejects() as faults:
        load_examples(labeled(path), "train")
    places = ("line 3", "lines 5, 6, 7, 8, 9, 10, 11, 12, 13, 14 and others", "line 17")
    assert [fault.key for fault in faults] == [f"{path}, {place}" for place in places]
    assert [fault.hint for fault in faults] == [None, None, "task.invalid=skip"]
    assert not any("worse" in str(fault) for fault in faults)


def test_a_skipped_row_is_left_out_and_still_counts_as_what_it_was(tmp_path):
    path = tmp_path / "messy.csv"
    path.write_text(MESSY)
    read = list(read_examples(labeled(path, invalid="skip"), "train", None))
    assert [each.record is None for each in read] == [False, True, False, *[True] * 13, False]
    assert [each.label for each in load_examples(labeled(path, invalid="skip"), "train")] == [
        1.0,
        0.0,
        0.0,
    ]


def test_a_faulty_row_of_nobody_is_of_a_unit_of_its_own(tmp_path):
    path = tmp_path / "owned.csv"
    path.write_text("text,label,of\na,good,x\nb,,x\nc,bad,\nd,bad,y\n")
    read = list(read_examples(labeled(path, invalid="skip"), "train", "of"))
    assert [each.record is None for each in read] == [False, True, True, False]
    units = [each.unit for each in read]
    assert units[:2] == ["x", "x"] and len(set(units)) == 3


def test_what_a_row_lacks_is_read_as_empty_where_that_is_asked(tmp_path):
    path = tmp_path / "qa.jsonl"
    rows = [{"q": "a", "r": "b"}, {"q": None, "r": "b"}, {"q": "a"}, {"q": {}, "r": "b"}]
    path.write_text("".join(map(json_line_of, rows)))
    settings = {"prompt_template": "{q}: ", "target_template": "{r}", "invalid": "missing"}
    read = list(
        read_examples(CustomTexts(name="custom", data_dir=str(path), **settings), "train", None)
    )
    made = [each.record and (each.record.prompt, each.record.target) for each in read]
    assert made == [("a: ", "b"), (": ", "b"), ("a: ", ""), None]


def json_line_of(row: dict[str, object]) -> str:
    return json.dumps(row) + "\n"


@pytest.mark.parametrize("invalid", ["skip", "missing"])
def test_data_of_faulty_rows_alone_are_refused_however_they_are_to_be_read(tmp_path, invalid):
    path = tmp_path / "messy.csv"
    path.write_text("text,mood\na,good\nb,bad\n")
    with rejects(f"{path}, lines 2 and 3") as faults:
        load_examples(labeled(path, invalid=invalid), "train")
    assert faults[0].hint is None


def test_a_text_is_cut_at_the_end_that_tokens_would_be_cut_at(tmp_path):
    path = tmp_path / "long.csv"
    long = "".join(f"{number} " for number in range(2000))
    path.write_text(f"q,r\n{long},{long}\na,b\n")
    settings = {"prompt_template": "Q {q}:", "target_template": "{r}", "max_length": 8}
    read = list(
        read_examples(CustomTexts(name="custom", data_dir=str(path), **settings), "train", None)
    )
    kept = 8 * sources.LETTERS_PER_TOKEN
    assert [each.is_cut for each in read] == [True, False]
    assert read[0].record.prompt == f"Q {long[:kept]}:"
    assert read[0].record.target == long[-kept:]


CSV = b'mr,ref\n"name[Aromi], area[riverside]",Aromi is by the river.\n'


class Handler(BaseHTTPRequestHandler):
    requests: list[str] = []

    def do_GET(self):
        self.requests.append(self.path)
        if "missing" in self.path:
            self.send_error(404)
            return
        self.send_response(200)
        # a server that dies halfway announces more than it sends
        self.send_header("Content-Length", str(len(CSV) + 10 * ("cut" in self.path)))
        self.end_headers()
        self.wfile.write(CSV)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[str]:
    monkeypatch.setenv("DPFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    Handler.requests = []
    http = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    http.server_close()


def test_a_file_is_fetched_once_and_then_read_from_the_cache(server):
    for _ in range(2):
        assert fetch(f"{server}/train.csv", cache=True) == CSV
    assert Handler.requests == ["/train.csv"]


def test_the_url_source_reads_the_official_column_names(server):
    task = E2ETask(
        name="e2e",
        source="url",
        urls={"train": f"{server}/trainset.csv"},
        column_aliases={"mr": "meaning_representation", "ref": "human_reference"},
    )
    (example,) = load_examples(task, "train")
    assert example.target == "Aromi is by the river."


@pytest.mark.parametrize("file", ["missing.csv", "cut.csv"])
def test_a_failed_download_is_rejected_and_leaves_nothing(server, file, tmp_path):
    with rejects("task.source", "url"):
        fetch(f"{server}/{file}", cache=True)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_file_address_is_refused():
    with rejects("task.urls", "file:///etc/hosts"):
        fetch("file:///etc/hosts", cache=True)


def test_without_a_writable_cache_the_file_is_still_read(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DPFT_CACHE", str(tmp_path / "file"))
    assert fetch(f"{server}/train.csv", cache=True) == CSV


def test_a_users_own_file_is_kept_in_no_cache(server, tmp_path, monkeypatch):
    monkeypatch.setenv("DPFT_CACHE", str(tmp_path / "cache"))
    assert fetch(f"{server}/train.csv", cache=False) == CSV
    assert not (tmp_path / "cache").exists()
