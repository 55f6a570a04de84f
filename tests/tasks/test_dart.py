import doctest
import gzip
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dpft.data.sources import load_examples
from dpft.evaluation.evaluate import group_examples
from dpft.tasks import dart
from dpft.tasks.base import Example
from dpft.tasks.dart import DartTask
from tests.rejections import rejects

TASK = DartTask(name="dart")
TRIPLES = [["Mars Hill College", "JOINED", "1973"], ["Mars Hill College", "TYPE", " Private "]]
LINEAR = "Mars Hill College : JOINED : 1973 | Mars Hill College : TYPE : Private"
SECRET = "secret"


def row(triples: object = TRIPLES, *texts: object) -> dict[str, object]:
    return {
        "tripleset": triples,
        "annotations": [{"source": "webnlg", "text": text} for text in texts or ("It joined.",)],
    }


def test_docstrings_show_what_the_code_does():
    assert doctest.testmod(dart).failed == 0


def test_a_record_gives_one_example_for_each_text():
    examples = TASK.examples(row(TRIPLES, " It joined. ", "In 1973."))
    expected = Example(prompt=f"{LINEAR}\n", target="It joined.", group=LINEAR, separator="\n")
    assert examples == (expected, replace(expected, target="In 1973."))


def test_predicates_may_be_written_in_lower_case_under_the_same_name():
    """As in Li et al. 2022, Table 12; an outputs file names the record as the data does."""
    (made,) = DartTask(name="dart", lower_predicates=True).examples(row())
    assert made.prompt == LINEAR.replace("JOINED", "joined").replace("TYPE", "type") + "\n"
    assert made.group == LINEAR


def test_a_prompt_is_the_example_without_its_target_and_a_record_can_be_read_back():
    (made,) = TASK.examples(row())
    assert TASK.prompt({"tripleset": TRIPLES}) == replace(made, target="")
    assert TASK.examples(TASK.record(row(), made.target)) == (made,)


def test_a_text_that_is_null_leaves_no_target_and_no_reference():
    """The published test split has one."""
    examples = TASK.examples(row(TRIPLES, "It joined.", None))
    assert [example.target for example in examples] == ["It joined.", ""]
    (group,) = group_examples(examples)
    assert group.references == ("It joined.",)


@pytest.mark.parametrize(
    ("tripleset", "annotations", "key"),
    [
        (SECRET, [], "tripleset"),
        ([], [], "tripleset"),
        ([SECRET], [], "each triple"),
        ([[SECRET, "IS"]], [], "tripleset"),
        ([[SECRET, "IS", 3]], [], "each value of each triple"),
        ([[SECRET, "IS", "\ud800"]], [], "each value of each triple"),
        (TRIPLES, SECRET, "annotations"),
        (TRIPLES, [SECRET], "annotations"),
        (TRIPLES, [], "annotations"),
        (TRIPLES, [{"txt": SECRET}], "annotations"),
        (TRIPLES, [{"text": [SECRET]}], "text in annotations"),
    ],
)
def test_a_malformed_row_is_rejected_without_being_quoted(tripleset, annotations, key):
    with rejects(key) as faults:
        TASK.examples({"tripleset": tripleset, "annotations": annotations})
    assert SECRET not in repr(faults)
    assert "\ud800" not in repr(faults)


REAL = Path(os.environ.get("DPFT_DATA", Path(__file__).parents[3] / "shared" / "data")) / "dart"


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="needs DART; set DPFT_DATA to the data's folder")
def test_the_real_test_split_has_its_published_sizes():
    """5,097 records (Nan et al. 2021), of which 938 have a tripleset that another has."""
    examples = load_examples(TASK.replace(data_dir=str(REAL)), "test")
    groups = group_examples(examples)
    assert (len(examples), len(groups)) == (12552, 5097)
    assert all(all(group.references) for group in groups)
    assert sum(group.input.endswith(" (2)") for group in groups) >= 938


def test_a_tripleset_that_comes_twice_is_scored_apart(tmp_path):
    line = b'{"tripleset": [["a", "B", "c"]], "annotations": [{"text": "x"}, {"text": "y"}]}\n'
    named = line.replace(b'"c"', b'"c (2)"')
    (tmp_path / "test.jsonl.gz").write_bytes(gzip.compress(line + named + line + line))
    groups = group_examples(load_examples(TASK.replace(data_dir=str(tmp_path)), "test"))
    names = ["a : B : c", "a : B : c (2)", "a : B : c (3)", "a : B : c (4)"]
    assert [group.input for group in groups] == names
    assert [group.references for group in groups] == [("x", "y")] * 4
