"""samples.md shows each text as it is, whatever markup it spells."""

import gzip
import html
import json
import re
import stat

import pytest
from markdown_it import MarkdownIt

from dpft.evaluation.predictions import (
    SAMPLES,
    Prediction,
    read_predictions,
    render_samples,
    sample_records,
    spread,
    write_predictions,
    write_samples,
)
from tests.rejections import rejects

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
    "a.csv": ("x", ""),
    "a.gz": ("x", ""),
    "empty.txt": ("", ""),
    "blank.tsv": ("\n \n", ""),
    "short.txt": ("Secret\n", " 1 lines"),
    "long.txt": ("Secret\n" * 3, " 3 lines"),
    "header.tsv": (f"{INPUTS[0]}\tSecret\n", ":1:"),
    "columns.tsv": (f"MR\toutput\n{INPUTS[0]}\tSecret\tx\n", ":2:"),
    "unknown.tsv": (tsv([*ROWS, (SECRET, "x")]), ":4:"),
    "missing.tsv": (tsv(ROWS[:1]), ""),
    "twice.tsv": (tsv([*ROWS, ROWS[0]]), "line 2"),
    "header_only.tsv": (tsv([]), ""),
    "broken.jsonl": ('{"input": "Secret', ":1:"),
    "keys.jsonl": ('\n{"input": "Secret", "output": "x"}', ":2:"),
    "array.jsonl": ('["Secret"]', ":1:"),
    "number.jsonl": ('{"input": "Secret", "prediction": 3}', ":1:"),
    "half.jsonl": ('{"input": "Secret", "prediction": "\\ud800"}', ":1:"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_rejected_by_place_and_never_quoted(tmp_path, name):
    text, place = BAD_FILES[name]
    with rejects("predictions") as faults:
        read_predictions(write(tmp_path, name, text), INPUTS)
    assert name in str(faults[0]) and place in str(faults[0])
    assert "Secret" not in repr(faults)
    assert "\n" not in str(faults[0])


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (None, ""),
        (b"not gzip", ""),
        (gzip.compress(b"cut off" * 99, mtime=0)[:-9], ""),
        (gzip.compress(b"one\ntw\xff\n", mtime=0), ":2:"),
    ],
)
def test_an_unreadable_file_is_rejected_by_place(tmp_path, data, place):
    path = tmp_path / "a.txt.gz"
    path.mkdir() if data is None else path.write_bytes(data)
    with rejects("predictions") as faults:
        read_predictions(path, INPUTS)
    assert f"{path}{place}" in str(faults[0])
    with rejects("predictions"):
        read_predictions(tmp_path / "nowhere.txt", INPUTS)


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


MARKUP = [
    "a | b || c",
    "`code` and ``more",
    "<b>bold</b> <!-- gone --> <script>",
    "*stars* _lines_ ~~struck~~ **strong**",
    "[link](http://x.example) ![image](x) [x]: y",
    "back \\ slash \\| pipe \\\\ end \\",
    "&amp; &#124; &copy;",
    "$x^2$ # 1. - > ---",
    "| --- |",
]


def prediction(text: str, *references: str) -> Prediction:
    return Prediction(input=text, prediction=text, references=references or (text,))


def cells(markdown: str) -> list[list[str]]:
    """The rows of the table as a Markdown renderer makes them, tags but <br> taken off."""
    rendered = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    body = rendered.render(markdown).partition("<tbody>")[2]
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.S)
    found = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.S) for row in rows]
    for row in found:
        for cell in row:
            assert set(re.findall(r"<[^>]*>", cell)) <= {"<br>", "<em>", "</em>"}, cell
    return [[html.unescape(cell.replace("<br>", "\n")) for cell in row] for row in found]


@pytest.mark.parametrize("text", MARKUP)
def test_markup_in_a_text_is_shown_and_not_obeyed(text):
    markdown = render_samples([prediction(text), prediction("plain")], heading="H")
    assert cells(markdown) == [["1", text, text, text], ["2", "plain", "plain", "plain"]]


def test_lines_stay_lines_and_rows_stay_rows():
    markdown = render_samples([prediction("one\ntwo\r\n\nthree\u2028four\tfive")], heading="H")
    assert cells(markdown)[0][1] == "one\ntwo\n\nthree\nfour five"
    assert len(markdown.splitlines()) == 7


def test_several_references_are_told_apart_and_many_are_counted():
    markdown = render_samples([prediction("in", *"abcdefg")], heading="H")
    ((_, _, _, references),) = cells(markdown)
    lines = references.split("\n")
    assert lines == [*(f"• {letter}" for letter in "abcde"), "• <em>and 2 more</em>"]


def test_an_empty_output_is_said_to_be_empty():
    assert cells(render_samples([prediction("", "a")], heading="H"))[0][2] == "<em>empty</em>"


def test_twenty_inputs_are_spread_over_the_split():
    markdown = render_samples([prediction(f"in{i}") for i in range(630)], heading="Samples of e2e")
    rows = cells(markdown)
    assert len(rows) == SAMPLES == 20
    assert [row[0] for row in rows[:3]] == ["1", "32", "64"]
    assert all(int(number) == int(text.removeprefix("in")) + 1 for number, text, *_ in rows)
    assert markdown.startswith("# Samples of e2e\n\n20 of 630 inputs")


def test_three_inputs_of_a_split_are_shown_on_the_page_with_a_reference_if_there_is_one():
    shown = sample_records([prediction(f"in{i}", "a", "b") for i in range(630)])
    assert [sample.input for sample in shown] == ["in0", "in210", "in420"]
    assert shown[0].reference == "a"
    bare = Prediction(input="i", prediction="p", references=())
    assert sample_records([bare])[0].reference == ""


@pytest.mark.parametrize("count", [1, 19, 20, 21, 1000])
def test_no_input_is_shown_twice(count):
    places = spread(count)
    assert len(set(places)) == len(places) == min(count, SAMPLES)
    assert places[0] == 0 and max(places) < count


def test_private_samples_are_the_owners_alone_and_say_so(tmp_path):
    path = tmp_path / "samples.md"
    write_samples(path, [prediction("a")], heading="H", note="Private: keep.", private=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "**Private: keep.**" in path.read_text()
