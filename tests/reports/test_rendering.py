"""How reports escape what files hold, how numbers stand in them, and dpft's own sentences."""

import doctest
import re

import pytest
from markupsafe import Markup

from dpft.reports import rendering as pages
from dpft.reports.rendering import digits, draw_svg, line, render_page, score

EVIL = "<script>alert(1)</script>"


def test_a_cell_of_markdown_stays_one_cell_and_holds_no_html() -> None:
    assert line(f"a |\n b {EVIL}") == "a \\| b &lt;script>alert(1)&lt;/script>"


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


def draw_line(axes) -> None:
    axes.plot([0, 1], [0, 1], label="$not$ math")
    axes.legend()


@pytest.fixture(scope="module")
def drawn() -> Markup:
    return draw_svg(draw_line, name="one", label='so "much" <b>')


@pytest.mark.slow
def test_the_same_drawing_is_the_same_bytes(drawn: Markup) -> None:
    assert draw_svg(draw_line, name="one", label='so "much" <b>') == drawn


def test_it_is_an_element_with_a_label_and_without_address_or_script(drawn: Markup) -> None:
    assert drawn.startswith('<svg role="img" aria-label="so &#34;much&#34; &lt;b&gt;"')
    assert drawn.rstrip().endswith("</svg>")
    assert "<script" not in drawn and 'href="http' not in drawn and "<metadata" not in drawn


def test_texts_stay_texts_and_dollar_signs_dollar_signs(drawn: Markup) -> None:
    assert ">$not$ math</text>" in drawn


@pytest.mark.slow
def test_two_figures_of_a_page_share_no_name_of_an_element(drawn: Markup) -> None:
    other = draw_svg(draw_line, name="two", label="so much")
    names = [set(re.findall(r'\bid="([^"]+)"', figure)) for figure in (drawn, other)]
    assert all(names) and not names[0] & names[1]


CRAFTED = (
    f"{EVIL} <img src=http://x/y onerror=alert(1)> ![a](http://x/y.png) [b](javascript:alert(1))"
    " [c](http://x) [e](https://arxiv.org.evil/abs/1) [f](https://arxiv.org/abs/1234.5678/../x)"
    " <http://x> [d]\n\n[d]: http://x\n"
)
"""What a model may write."""


def test_a_page_runs_no_script_and_fetches_nothing_whatever_its_text_is() -> None:
    page = render_page(EVIL, f"# {EVIL}\n\n{CRAFTED}\n\n| a |\n|---|\n| {CRAFTED} |\n\n<script>")
    assert "<script" not in page and "<img" not in page and "<a " not in page
    assert "default-src 'none'" in page and page.count("&lt;script&gt;") >= 4
    assert not re.search(r'(src|href)="', page)


def test_plots_follow_their_heading_or_the_whole_report(drawn: Markup) -> None:
    page = render_page(
        "t", "# T\n\n## First\n\none\n\n## Second\n", {"First": [drawn], "New": [drawn]}
    )
    after = page.partition("<h2>First</h2>")[2]
    assert after.startswith("<figure><svg") or after.startswith("\n<figure><svg")
    assert page.partition("<h2>Second</h2>")[2].count("<svg") == 1
    assert "<h2>New</h2>\n<figure><svg" in page


def test_a_citation_links_to_arxiv_and_nowhere_else() -> None:
    cited = line("Kairouz et al. 2015, arXiv 1311.0776")
    assert cited.endswith("[arXiv 1311.0776](https://arxiv.org/abs/1311.0776)")
    page = render_page("t", f"# T\n\n{cited} [b](https://x.org) [c](https://arxiv.org/pdf/1)\n")
    assert re.findall(r'<a href="([^"]*)">([^<]*)</a>', page) == [
        ("https://arxiv.org/abs/1311.0776", "arXiv 1311.0776")
    ]


def test_figures_are_next_to_the_first_table_of_their_section(drawn: Markup) -> None:
    page = render_page("t", "# T\n\n## S\n\none\n\n| a |\n|---|\n| b |\n\ntwo\n", {"S": [drawn]})
    section = page.partition("<h2>S</h2>")[2]
    places = [section.index(part) for part in ("one", "beside", "<table>", "<svg", "</div>", "two")]
    assert places == sorted(places)


def test_sections_of_level_4_are_folded() -> None:
    page = render_page("t", "# T\n\n#### More <b>\n\ntext\n\n## Next\n")
    folded = page.partition("<details>")[2].partition("</details>")[0]
    assert "<summary>More &lt;b&gt;</summary>" in folded and "<p>text</p>" in folded


def test_only_the_differences_after_training_are_marked() -> None:
    samples = "Before:\n\n    The inn is old.\n\nAfter:\n\n    The <b>inn</b> is new.\n"
    page = render_page("t", f"# T\n\n{samples}\nAfter:\n\n    alone\n")
    assert "The <mark>&lt;b&gt;</mark>inn" in page and "is <mark>new</mark>." in page
    assert page.count("<mark>") == 3 and "<code>alone" in page
