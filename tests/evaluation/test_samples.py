"""samples.md shows each text as it is, whatever markup it spells."""

import html
import re
import stat

import pytest
from markdown_it import MarkdownIt

from dpft.evaluation.samples import (
    SAMPLES,
    render_samples,
    sample_records,
    spread,
    write_samples,
)
from dpft.records.scores import Prediction

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
