"""How reports escape what files hold, and what dpft's own sentences look like in HTML."""

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from dpft.reports import pages
from dpft.reports.pages import line, score, words

EVIL = "<script>alert(1)</script>"


def test_a_cell_of_markdown_stays_one_cell_and_holds_no_html() -> None:
    assert line(f"a |\n b {EVIL}") == "a \\| b &lt;script>alert(1)&lt;/script>"


def test_a_sentence_has_code_and_strong_and_nothing_else_of_html() -> None:
    assert words("`x < y` is **so**\nhere") == Markup(
        "<code>x &lt; y</code> is <strong>so</strong> here"
    )
    assert "<script" not in words(EVIL)


def test_a_score_has_four_digits() -> None:
    assert (score(0.123456), score(61)) == ("0.1235", "61.0000")


@pytest.mark.parametrize(("html", "escaped"), [(True, True), (False, False)])
def test_html_escapes_by_itself_and_markdown_by_its_filter(html: bool, escaped: bool) -> None:
    template = pages._environment(html=html).from_string("{{ name }} {{ name | line }}")
    plain, filtered = template.render(name="<b>").split()
    assert plain == ("&lt;b&gt;" if escaped else "<b>")
    assert "<b>" not in filtered


def test_a_value_that_a_template_lacks_is_an_error_and_no_empty_cell() -> None:
    with pytest.raises(UndefinedError, match="nothing"):
        pages._environment(html=True).from_string("{{ nothing }}").render()
