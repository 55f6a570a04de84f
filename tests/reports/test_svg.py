import re

import pytest
from markupsafe import Markup

from dpft.reports.plots import draw_svg


def line(axes) -> None:
    axes.plot([0, 1], [0, 1], label="$not$ math")
    axes.legend()


@pytest.fixture(scope="module")
def drawn() -> Markup:
    return draw_svg(line, name="one", label='so "much" <b>')


def test_the_same_drawing_is_the_same_bytes(drawn: Markup) -> None:
    assert draw_svg(line, name="one", label='so "much" <b>') == drawn


def test_it_is_an_element_with_a_label_and_without_address_or_script(drawn: Markup) -> None:
    assert drawn.startswith('<svg role="img" aria-label="so &#34;much&#34; &lt;b&gt;"')
    assert drawn.rstrip().endswith("</svg>")
    assert "<script" not in drawn and 'href="http' not in drawn and "<metadata" not in drawn


def test_texts_stay_texts_and_dollar_signs_dollar_signs(drawn: Markup) -> None:
    assert ">$not$ math</text>" in drawn


def test_two_figures_of_a_page_share_no_name_of_an_element(drawn: Markup) -> None:
    other = draw_svg(line, name="two", label="so much")
    names = [set(re.findall(r'\bid="([^"]+)"', figure)) for figure in (drawn, other)]
    assert all(names) and not names[0] & names[1]
