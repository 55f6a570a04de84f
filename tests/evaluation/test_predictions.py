import gzip
import json
import stat

import pytest

from dpft.errors import InputError
from dpft.evaluation.predictions import read_predictions, write_predictions
from dpft.records.scores import Prediction

INPUTS = ["name[Café Rouge], price[less than £20]", "name[Aromi], area[riverside]"]
TEXTS = ["Café Rouge is cheap.", 'Aromi is "by the river".']


def repair(text):
    return text.replace("Â£", "£").replace("Ã©", "é").replace("Ł", "£")


def write(folder, name, text):
    path = folder / name
    data = text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def tsv(rows, *, quoted=False, end="\n"):
    def field(text):
        return '"' + text.replace('"', '""') + '"' if quoted else text

    return "MR\toutput" + end + "".join(f"{field(a)}\t{field(b)}{end}" for a, b in rows)


ROWS = list(zip(INPUTS, TEXTS, strict=True))
FILES = {
    "plain.tsv": tsv(ROWS),
    "quoted.tsv": tsv(ROWS, quoted=True),
    "other_order.tsv": tsv(ROWS[::-1]),
    "windows.tsv": "\ufeff" + tsv(ROWS, end="\r\n"),
    "odd_line_ends.tsv": tsv(ROWS, end="\r\r\n"),
    "mangled.tsv": tsv([(a.replace("£", "Â£").replace("é", "Ã©"), b) for a, b in ROWS]),
    "polish.tsv": tsv([(a.replace("£", "Ł"), b) for a, b in ROWS]),
    "packed.tsv.gz": tsv(ROWS, quoted=True),
    "ours.jsonl": "".join(
        json.dumps({"input": a, "prediction": b, "references": []}) + "\n" for a, b in ROWS[::-1]
    ),
    "plain.txt": "\n".join(TEXTS) + "\n",
    "no_last_newline.txt": "\n".join(TEXTS),
    "packed.txt.gz": "\r\n".join(TEXTS) + "\r\n",
}


@pytest.mark.parametrize("name", FILES)
def test_every_form_gives_the_predictions_in_the_order_of_the_inputs(tmp_path, name):
    path = write(tmp_path, name, FILES[name])
    assert read_predictions(path, INPUTS, repair=repair) == TEXTS


def test_a_text_that_opens_with_a_quotation_hides_no_line(tmp_path):
    texts = ['"Café Rouge" is cheap.', 'We like "Aromi"']
    path = write(tmp_path, "a.tsv", tsv(zip(INPUTS, texts, strict=True)))
    assert read_predictions(path, INPUTS) == texts


def test_an_empty_prediction_is_a_prediction(tmp_path):
    assert read_predictions(write(tmp_path, "a.txt", "x\n\n"), INPUTS) == ["x", ""]
    path = write(tmp_path, "a.tsv", tsv([(INPUTS[0], ""), (INPUTS[1], "x")]))
    assert read_predictions(path, INPUTS) == ["", "x"]


@pytest.mark.parametrize("name", ["plain.tsv", "ours.jsonl", "plain.txt"])
def test_limit_takes_the_first_inputs_of_a_whole_file(tmp_path, name):
    path = write(tmp_path, name, FILES[name])
    assert read_predictions(path, INPUTS, limit=1) == TEXTS[:1]


def test_limit_takes_a_file_for_these_inputs_alone(tmp_path):
    assert read_predictions(write(tmp_path, "a.txt", "x\n"), INPUTS, limit=1) == ["x"]
    path = write(tmp_path, "a.tsv", tsv(ROWS[:1]))
    assert read_predictions(path, INPUTS, limit=1) == TEXTS[:1]


SECRET = "name[Secret], area[hidden]"
BAD_FILES = {
    "a.csv": ("x", "must end in .jsonl, .tsv or .txt"),
    "a.gz": ("x", "must end in .jsonl, .tsv or .txt"),
    "empty.txt": ("", "got an empty file"),
    "blank.tsv": ("\n \n", "got an empty file"),
    "short.txt": ("Secret\n", "one line for each distinct input of the split, .* got 1 lines"),
    "long.txt": ("Secret\n" * 3, "got 3 lines"),
    "header.tsv": (f"{INPUTS[0]}\tSecret\n", "header.tsv:1: .*'MR<tab>output'"),
    "columns.tsv": (
        f"MR\toutput\n{INPUTS[0]}\tSecret\tx\n",
        "columns.tsv:2: .*two columns.* got 3",
    ),
    "unknown.tsv": (tsv([*ROWS, (SECRET, "x")]), "unknown.tsv:4: .*one of the split's"),
    "missing.tsv": (tsv(ROWS[:1]), "each distinct input of the split, got none for some"),
    "twice.tsv": (tsv([*ROWS, ROWS[0]]), "twice.tsv:4: .*second one.* in line 2"),
    "header_only.tsv": (tsv([]), r"got none for some"),
    "broken.jsonl": ('{"input": "Secret', "broken.jsonl:1: .*'input' and 'prediction'"),
    "keys.jsonl": ('\n{"input": "Secret", "output": "x"}', "keys.jsonl:2: .*'prediction'"),
    "array.jsonl": ('["Secret"]', "array.jsonl:1: .*JSON object"),
    "number.jsonl": ('{"input": "Secret", "prediction": 3}', "number.jsonl:1: .*texts"),
    "half.jsonl": ('{"input": "Secret", "prediction": "\\ud800"}', "half.jsonl:1: .*texts"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_by_place_and_never_quoted(tmp_path, name):
    text, message = BAD_FILES[name]
    with pytest.raises(InputError, match=message) as caught:
        read_predictions(write(tmp_path, name, text), INPUTS)
    assert "Secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["nowhere.txt", "nowhere.tsv.gz"])
def test_a_missing_file_is_named(tmp_path, name):
    with pytest.raises(InputError, match=f"{name}: no such file"):
        read_predictions(tmp_path / name, INPUTS)


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(InputError, match="readable file"):
        read_predictions(tmp_path / "a.txt", INPUTS)


@pytest.mark.parametrize("data", [b"not gzip", gzip.compress(b"cut off" * 99, mtime=0)[:-9]])
def test_broken_gzip_is_named(tmp_path, data):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"a\.txt\.gz: .*whole gzip data"):
        read_predictions(path, INPUTS)


def test_bytes_that_are_not_utf8_are_named_by_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntw\xff\n")
    with pytest.raises(InputError, match=r"a\.txt:2: .*UTF-8"):
        read_predictions(path, INPUTS)


PREDICTIONS = [
    Prediction(input=name, prediction=f"{text}\n\u2028x", references=("£1", "b"))
    for name, text in ROWS
]


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "predictions.jsonl"
    write_predictions(path, PREDICTIONS)
    assert read_predictions(path, INPUTS) == [p.prediction for p in PREDICTIONS]
    first = path.read_text(encoding="utf-8").split("\n")[0]
    assert list(json.loads(first)) == ["input", "prediction", "references"]
    assert "£1" in first


def test_private_predictions_are_readable_by_the_owner_only(tmp_path):
    write_predictions(tmp_path / "predictions.jsonl", PREDICTIONS, private=True)
    assert stat.S_IMODE((tmp_path / "predictions.jsonl").stat().st_mode) == 0o600


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = write(tmp_path, "predictions.jsonl", "old")
    unwritable = Prediction(input="a", prediction="\ud800", references=())
    with pytest.raises(UnicodeEncodeError):
        write_predictions(path, [*PREDICTIONS, unwritable])
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(path.name, "old")]
