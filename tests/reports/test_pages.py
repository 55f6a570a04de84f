"""How reports escape what files hold, how numbers stand in them, and dpft's own sentences."""

import doctest

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from dpft.reports import pages
from dpft.reports.pages import digits, line, score, words

EVIL = "<script>alert(1)</script>"


def test_a_cell_of_markdown_stays_one_cell_and_holds_no_html() -> None:
    assert line(f"a |\n b {EVIL}") == "a \\| b &lt;script>alert(1)&lt;/script>"


def test_a_sentence_has_code_and_strong_and_nothing_else_of_html() -> None:
    assert words("`x < y` is **so**\nhere") == Markup(
        "<code>x &lt; y</code> is <strong>so</strong> here"
    )
    assert "<script" not in words(EVIL)


@pytest.mark.parametrize(("html", "escaped"), [(True, True), (False, False)])
def test_html_escapes_by_itself_and_markdown_by_its_filter(html: bool, escaped: bool) -> None:
    template = pages._environment(html=html).from_string("{{ name }} {{ name | line }}")
    plain, filtered = template.render(name="<b>").split()
    assert plain == ("&lt;b&gt;" if escaped else "<b>")
    assert "<b>" not in filtered


def test_a_value_that_a_template_lacks_is_an_error_and_no_empty_cell() -> None:
    with pytest.raises(UndefinedError, match="nothing"):
        pages._environment(html=True).from_string("{{ nothing }}").render()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (60.5321, "60.5"),
        (9.999, "10.0"),
        (0.6512, "0.651"),
        (1234.5, "1234"),
        (-0.1234, "-0.123"),
        (0.0, "0"),
        (0.00012, "0.000120"),
        (1.234e-9, "1.23e-09"),
    ],
)
def test_a_score_has_three_digits(value: float, shown: str) -> None:
    assert digits(value) == shown


def test_the_examples_of_the_module_hold() -> None:
    failed, tried = doctest.testmod(pages)
    assert tried and not failed


def test_a_score_beside_published_ones_has_four_digits() -> None:
    assert (score(0.123456), score(61)) == ("0.1235", "61.0000")
