import doctest
from dataclasses import replace

import pytest

from dpft.tasks import e2e
from dpft.tasks.base import Example
from dpft.tasks.e2e import E2ETask, linearise
from tests.rejections import rejects

RECORD = (
    "name[The Punter], eatType[restaurant], food[Indian], priceRange[£20-25],"
    " customer rating[high], area[riverside], familyFriendly[no], near[Café Rouge]"
)


def row(record: str = RECORD, reference: str = "The Punter serves curry.") -> dict[str, str]:
    return {"meaning_representation": record, "human_reference": reference}


def test_docstrings_show_what_the_code_does():
    assert doctest.testmod(e2e).failed == 0


def test_a_record_is_linearised_as_in_table_11_of_li_et_al():
    assert linearise(RECORD) == (
        "name : The Punter | Type : restaurant | food : Indian | price : £20-25"
        " | customer rating : high | area : riverside | family friendly : no | near : Café Rouge"
    )


def test_an_example_is_prompt_with_separator_target_and_group():
    (made,) = E2ETask(name="e2e").examples(row("name[Aromi], area[riverside]", " By the river. "))
    assert made == Example(
        prompt="name : Aromi | area : riverside\n",
        target="By the river.",
        group="name[Aromi], area[riverside]",
        separator="\n",
    )


def test_a_prompt_is_the_example_without_its_target_and_a_record_has_the_files_columns():
    task, given = E2ETask(name="e2e"), row("name[Aromi]", "By the river.")
    (made,) = task.examples(given)
    assert task.prompt({"meaning_representation": "name[Aromi]"}) == replace(made, target="")
    assert task.record(given, "By the river.") == given


def test_the_separator_is_configuration():
    assert E2ETask(name="e2e", separator=" = ").examples(row())[0].prompt.endswith("Café Rouge = ")


@pytest.mark.parametrize(
    ("broken", "mended"),
    [("\ufeffname", "name"), ("Â£20", "£20"), ("Ł20", "£20"), ("CafÃ© Rouge", "Café Rouge")],
)
def test_encoding_faults_are_mended_as_by_the_official_reader(broken, mended):
    assert E2ETask(name="e2e").repair(broken) == mended


@pytest.mark.parametrize(
    "record", ["", "secret", "name[secret", "name secret]", "[secret]", "name[secret] area[x]"]
)
def test_a_malformed_record_is_refused_without_being_quoted(record):
    with rejects("meaning_representation") as faults:
        E2ETask(name="e2e").examples(row(record))
    assert "secret" not in repr(faults)
