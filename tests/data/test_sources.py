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
from dpft.data.raw_rows import FORMATS
from dpft.data.sources import (
    fetch,
    has_split,
    has_training_split_alone,
    load_examples,
    read_examples,
)
from dpft.errors import InputError
from dpft.tasks.base import SPLITS, LabeledExample
from dpft.tasks.custom import CustomLabels, CustomTexts
from dpft.tasks.e2e import E2ETask
from dpft.tasks.glue import GlueTask
from tests.data.conftest import load_with_units
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


def test_a_byte_order_mark_is_dropped(tmp_path):
    (tmp_path / "test.csv").write_text(f'mr,ref\r\n"{RECORD}",Aromi.\r\n', encoding="utf-8-sig")
    assert [example.target for example in load_examples(e2e(tmp_path), "test")] == ["Aromi."]


def test_extra_columns_are_ignored(tmp_path):
    line = json_line(meaning_representation=RECORD, human_reference="Aromi.", id=3)
    (tmp_path / "train.jsonl").write_text(line, encoding="utf-8")
    assert len(load_examples(e2e(tmp_path), "train")) == 1


def message(task: E2ETask, split: str = "train") -> str:
    with pytest.raises(InputError) as caught:
        load_examples(task, split)
    return str(caught.value)


def test_a_missing_folder_names_the_key_and_the_value(tmp_path):
    text = message(e2e(tmp_path / "nowhere"))
    assert "task.data_dir" in text
    assert "nowhere" in text


def test_a_missing_split_lists_the_accepted_names(tmp_path):
    text = message(e2e(tmp_path), "validation")
    assert all(f"validation{ending}" in text for ending in FORMATS)


def test_two_files_for_one_split_are_refused(tmp_path):
    write_jsonl(tmp_path / "train.jsonl")
    write_jsonl_gz(tmp_path / "train.jsonl.gz")
    assert "train.jsonl and train.jsonl.gz" in message(e2e(tmp_path))


@pytest.mark.parametrize("content", ["", "\n", "mr,ref\n"])
def test_an_empty_file_is_refused(tmp_path, content):
    (tmp_path / "train.csv").write_text(content)
    assert "holds no rows" in message(e2e(tmp_path))


@pytest.mark.parametrize(
    ("bad_line", "reason"),
    [
        (json_line(meaning_representation=RECORD, text=SECRET), "human_reference"),
        (json_line(meaning_representation=RECORD, human_reference=[SECRET]), "must hold text"),
        (json_line(meaning_representation=RECORD, human_reference=None), "must hold text"),
        (json_line(mr=f"{SECRET}[x", ref="y"), "field[value]"),
        ('{"mr": "secret\\ud800", "ref": "y"}\n', "must hold text"),
        ('{"mr": "secret"\n', "not a JSON object"),
        ('["secret"]\n', "not a JSON object"),
        ("[" * 100_000 + "\n", "not a JSON object"),
    ],
)
def test_a_bad_json_row_is_named_by_file_and_line_and_never_quoted(tmp_path, bad_line, reason):
    (tmp_path / "train.jsonl").write_text(GOOD_LINE + "\n" + bad_line, encoding="utf-8")
    text = message(e2e(tmp_path))
    assert f"{tmp_path / 'train.jsonl'}, line 3: " in text
    assert reason in text
    assert SECRET not in text


@pytest.mark.parametrize(
    ("bad_line", "reason"),
    [
        ("secret\n", "lacks the column human_reference (or ref)"),
        ("name[x],secret,more\n", "3 cells"),
        ('name[x],"secret', "not valid CSV"),
    ],
)
def test_a_bad_csv_row_is_named_by_the_line_it_starts_on(tmp_path, bad_line, reason):
    good = f'"{RECORD}","two\nlines"\n'
    (tmp_path / "train.csv").write_text("mr,ref\n" + good + bad_line, encoding="utf-8")
    text = message(e2e(tmp_path))
    assert ", line 4: " in text
    assert reason in text
    assert SECRET not in text


@pytest.mark.parametrize("name", ["train.csv", "train.jsonl"])
def test_bytes_that_are_not_utf8_are_named_by_line(tmp_path, name):
    (tmp_path / name).write_bytes(b"\n" + "Café secret\n".encode("latin-1"))
    text = message(e2e(tmp_path))
    assert "line 2: not UTF-8" in text
    assert SECRET not in text


@pytest.mark.parametrize(
    "content", [b"secret", gzip.compress(GOOD_LINE.encode() * 99, mtime=0)[:-9]]
)
def test_a_damaged_gzip_file_is_refused(tmp_path, content):
    (tmp_path / "train.jsonl.gz").write_bytes(content)
    assert "gzip" in message(e2e(tmp_path))


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


WAYS_OUT = ("task.data_dir", "task.source=embedded", "model=tiny")


def test_an_unreachable_hub_is_said_at_once_with_the_ways_out(monkeypatch):
    monkeypatch.setattr(sources, "hub_is_reachable", lambda: False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: pytest.fail("asked the network"))
    text = message(E2ETask(name="e2e", source="hub", hub_name="tuetschek/e2e_nlg"))
    assert all(way in text for way in WAYS_OUT)


def test_offline_mode_without_a_cached_copy_is_said_with_the_ways_out(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    text = message(E2ETask(name="e2e", source="hub", hub_name="nobody/nothing-of-the-kind"))
    assert "task.hub_name=nobody/nothing-of-the-kind" in text
    assert all(way in text for way in WAYS_OUT)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"source": "local"}, "task.data_dir"),
        ({"source": "hub"}, "task.hub_name"),
        ({"source": "url"}, "task.urls.train"),
        ({"source": "url", "urls": {"train": "https://x.org/train.xlsx"}}, ".jsonl.gz"),
    ],
)
def test_a_source_without_its_setting_names_the_key(settings, key):
    assert key in message(E2ETask(name="e2e", **settings))


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


def test_labels_are_read_as_numbers_digits_or_names(tmp_path):
    labels = (1, "1", "positive", 1.0)
    lines = [json_line(sentence="fine", label=label, idx=0) for label in labels]
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))
    assert load_examples(glue(tmp_path), "train") == [
        LabeledExample(texts=("fine",), label=1.0)
    ] * len(labels)


def test_labels_are_read_from_csv(tmp_path):
    (tmp_path / "train.csv").write_text("sentence,label\nfine,0\n")
    assert [example.label for example in load_examples(glue(tmp_path), "train")] == [0.0]


@pytest.mark.parametrize(
    ("bad_line", "reason"),
    [
        (json_line(sentence=SECRET, label=2), "label must be one of 0 (negative), 1 (positive)"),
        (json_line(sentence=SECRET, label=SECRET), "label must be one of"),
        (json_line(sentence=SECRET, label=None), "label must be one of"),
        (json_line(sentence=SECRET, label=10**400), "label must be one of"),
        (json_line(sentence=SECRET, label=-1), "hidden label"),
        (json_line(sentence=SECRET), "lacks the column label"),
        (json_line(sentence=[SECRET], label=1), "sentence must hold text"),
    ],
)
def test_a_bad_label_is_named_by_file_and_line_and_never_quoted(tmp_path, bad_line, reason):
    good = json_line(sentence="fine", label=1)
    (tmp_path / "train.jsonl").write_text(good + bad_line, encoding="utf-8")
    text = message(glue(tmp_path))
    assert f"{tmp_path / 'train.jsonl'}, line 2: " in text
    assert reason in text
    assert SECRET not in text


def test_a_split_is_read_by_its_parts(tmp_path):
    (tmp_path / "validation_b.jsonl").write_text(json_line(sentence="fine", label=1))
    assert len(load_examples(glue(tmp_path), "validation_b")) == 1
    assert "task.data_dir" in message(glue(tmp_path), "validation_a")
    assert "train, validation_a, validation_b, test" in message(glue(tmp_path), "validation")


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
    assert "eval.held_out=0.1" in message(alone, "test")


def test_only_your_own_data_may_be_one_file(tmp_path):
    write_jsonl(tmp_path / "train.jsonl")
    assert "must be a folder, got" in message(e2e(tmp_path / "train.jsonl"))


@pytest.mark.parametrize(
    ("name", "content", "settings", "reasons"),
    [
        ("qa.csv", QA, {"target_template": "{reply}"}, ["lines 2 and 3: lacks the column reply", "task.target names; the row has 3 columns under other names"]),  # noqa: E501
        ("qa.csv", "secret,a secret\nWhy?,So.\n", {}, ["line 2: lacks the column question", "the first line of a .csv file is its header"]),  # noqa: E501
        ("qa.csv", "question,answer\nsecret\n", {}, ["line 2: lacks the column answer, which task.target names; the row has cells for 1 of the header's 2"]),  # noqa: E501
        ("qa.jsonl", '{"question": "secret", "answer": null}\n', {}, ["line 1: the column answer, which task.target names, is empty"]),  # noqa: E501
        ("qa.jsonl", '{"question": "secret\\ud800", "answer": ""}\n', {}, ["must hold text"]),
        ("qa.txt", QA, {}, ["must end with .csv, .jsonl, .jsonl.gz", ".parquet"]),
        ("qa.csv", "", {}, ["holds no rows"]),
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit_is_named_and_never_quoted(
    tmp_path, name, content, settings, reasons
):
    (tmp_path / name).write_text(content)
    text = message(custom(tmp_path / name, **settings))
    assert [reason for reason in reasons if reason not in text] == [], text
    assert name in text and SECRET not in text


def test_a_missing_file_and_a_folder_without_files_are_refused(tmp_path):
    assert "a folder, or a file that ends with" in message(custom(tmp_path / "qa.csv"))
    assert "holds no train split" in message(custom(tmp_path))
    assert "FILE or DIR" in message(CustomTexts(name="custom", text_template="{a}"))


def test_one_file_has_no_split_to_score(tmp_path):
    (tmp_path / "qa.csv").write_text(QA)
    assert "train with eval.held_out=0.1" in message(custom(tmp_path / "qa.csv"), "test")


def test_a_local_path_is_not_handed_to_the_hub_library_which_would_copy_it(tmp_path):
    task = custom(tmp_path, data_dir=None, source="hub", hub_name=str(tmp_path))
    assert "task.data_dir" in message(task)


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


@pytest.mark.parametrize("owner", ["", "  ", None, 7.5, True, ["ann"], "\ud800"])
def test_a_row_that_is_nobodys_is_refused_by_file_and_line(tmp_path, owner):
    row = {"meaning_representation": RECORD, "human_reference": REFERENCE, "customer": owner}
    lines = owned_line("ann") + json.dumps(row) + "\n"
    (tmp_path / "train.jsonl").write_text(lines, encoding="utf-8")
    with pytest.raises(InputError, match=r"train\.jsonl, line 2: the column customer, .*unit"):
        load_with_units(e2e(tmp_path), "train", "customer")


def test_a_unit_column_that_is_missing_is_refused(tmp_path):
    (tmp_path / "train.jsonl").write_text(GOOD_LINE, encoding="utf-8")
    with pytest.raises(InputError) as refused:
        load_with_units(e2e(tmp_path), "train", "owner")
    assert "line 1: lacks the column owner, which privacy.unit names; the row has 2 columns" in str(
        refused.value
    )
    assert "meaning_representation" not in str(refused.value), "it may be a record"


def test_a_place_that_is_not_there_is_said_not_to_exist(tmp_path):
    missing = custom(tmp_path / "qa.csv", prompt_template="{question}", target_template="{answer}")
    assert "which does not exist" in message(missing)


MESSY = "text,label\nfine,good\nno,\n,bad\n" + "off,worse\n" * 12 + "a,good,more\nlast,bad\n"


def labeled(path: Path, **settings: object) -> CustomLabels:
    given = {"text_template": "{text}", "label_column": "label", "labels": ("bad", "good")}
    return CustomLabels(name="custom", data_dir=str(path), **given, **settings)


def test_faulty_rows_are_refused_together_with_ten_lines_of_each_kind(tmp_path):
    path = tmp_path / "messy.csv"
    path.write_text(MESSY)
    with pytest.raises(ValueError) as error:
        load_examples(labeled(path), "train")
    empty, wrong, long = map(str, error.value.faults)
    assert empty.startswith(f"{path}, line 3: ") and empty.endswith(", and is empty.")
    assert f"{path}, lines 5, 6, 7, 8, 9, 10, 11, 12, 13, 14 and others: " in wrong
    assert long.startswith(f"{path}, line 17: 3 cells")
    assert long.endswith("task.invalid=skip leaves such rows out.")
    assert "worse" not in str(error.value)


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
    with pytest.raises(InputError, match="lines 2 and 3: lacks the column label") as error:
        load_examples(labeled(path, invalid=invalid), "train")
    assert "task.invalid" not in str(error.value)


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
def test_a_failed_download_is_said_with_the_ways_out_and_leaves_nothing(server, file, tmp_path):
    with pytest.raises(InputError, match=r"task\.data_dir.*task\.source=embedded model=tiny"):
        fetch(f"{server}/{file}", cache=True)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_unreachable_address_is_said_with_the_ways_out(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFT_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"127\.0\.0\.1:1/train\.csv .*task\.data_dir"):
        fetch("http://127.0.0.1:1/train.csv", cache=True)


def test_a_file_address_is_refused():
    with pytest.raises(InputError, match=r"task\.urls must be http.*task\.data_dir"):
        fetch("file:///etc/hosts", cache=True)


def test_without_a_writable_cache_the_file_is_still_read(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DPFT_CACHE", str(tmp_path / "file"))
    assert fetch(f"{server}/train.csv", cache=True) == CSV


def test_a_users_own_file_is_kept_in_no_cache(server, tmp_path, monkeypatch):
    monkeypatch.setenv("DPFT_CACHE", str(tmp_path / "cache"))
    assert fetch(f"{server}/train.csv", cache=False) == CSV
    assert not (tmp_path / "cache").exists()
